"""Execute the real source of DualPipeV of MindSpeed or FlagScale and compare what is recorded with what ran.

    python -m tools.compatibility.execute_dualpipev mindspeed FOLDER
    python -m tools.compatibility.execute_dualpipev flagscale FOLDER

FOLDER is a checkout of the project. Its dualpipev_schedules.py runs as it is, and in MindSpeed weight_grad_store.py;
the model, Megatron and the transfers are replaced. Every rank runs alone: what it receives is made up. The hooks are
those of `stagescope run`, installed by its watch of imports.
"""

# ruff: noqa: ARG005, D102, D103 - replacements have the names and signatures of the originals

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
import tempfile
import types
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import torch

from stagescope import api
from stagescope.record import session
from stagescope.record.points import mindspeed as points
from stagescope.vocabulary.kinds import ACTION_KINDS, label

STEPS = 2
SHAPES = ((2, 4), (2, 6), (4, 8), (4, 11))
MODULES = {"mindspeed": points.MODULE_OF_MINDSPEED, "flagscale": points.MODULE_OF_FLAGSCALE}
ENTRIES = {
    "mindspeed": "forward_backward_pipelining_with_cutinhalf",
    "flagscale": "forward_backward_pipelining_with_dualpipev",
}


class Case(NamedTuple):
    """One training: whether the model creates graphs (so that passes overlap), and whether the end splits backwards."""

    ranks: int
    microbatches: int
    has_graphs: bool
    splits_end: bool


class World:
    """The rank that runs, and what it has executed, in the notation of schedules."""

    def __init__(self) -> None:
        self.case = Case(2, 4, has_graphs=True, splits_end=True)
        self.rank = 0
        self.graphs_are_lists = False  # as in MindSpeed since core_r0.12.1; objects in FlagScale and before
        self.done: list[str] = []
        self.moved: Counter[str] = Counter()
        self.outputs: dict[int, tuple[Any, str]] = {}

    def stage(self, chunk: int) -> int:
        return self.rank if chunk == 0 else 2 * self.case.ranks - 1 - self.rank


WORLD = World()


class Block:
    """The decoder of a model: keeps the graph of its last forward, and the results of an overlapped pair."""

    layers = ()

    def __init__(self) -> None:
        self.graph: Any = None
        self.communicated: Any = None

    def get_fwd_layer_graphs(self) -> Any:
        return self.graph

    def get_pp_comm_output(self) -> Any:
        return self.communicated


class Model(torch.nn.Module):
    """One chunk. It is its own wrapper, so that code that unwraps it twice finds it."""

    def __init__(self, chunk: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.chunk, self.decoder = chunk, Block()
        self.pre_process = self.post_process = False
        self.microbatch = 0

    @property
    def module(self) -> Model:
        return self

    def set_input_tensor(self, tensors: Any) -> None:
        del tensors

    def run(self, extra: Any = None) -> Any:
        """Execute a forward, with `extra` together with a backward; return output, graph and transfers."""
        case = WORLD.case
        action = f"{WORLD.stage(self.chunk)}.{self.microbatch - self.chunk * case.microbatches}"
        output = torch.zeros(1, requires_grad=True).clone()
        layer = types.SimpleNamespace(action=action, unperm2_graph=(None, torch.zeros(1, requires_grad=True)))
        graph = [layer] if WORLD.graphs_are_lists else types.SimpleNamespace(layer_graphs=[layer])
        text = f"F{action}"
        communicated = None
        if extra is not None:
            text += f"+B{take_layer(extra.get('bwd_block_graphs') or extra['bwd_model_graph']).action}"
            communicated = types.SimpleNamespace(
                input_tensor=torch.zeros(1, requires_grad=True),
                output_tensor_grad=torch.zeros(1),
                input_tensor_grad=torch.zeros(1),
                fwd_wait_handles={},
                bwd_wait_handles={},
            )
        WORLD.done.append(text)
        WORLD.outputs[id(output)] = (output, action)
        self.decoder.graph, self.decoder.communicated = graph, communicated
        return output, graph, communicated

    def forward(self, *_: Any, extra_block_kwargs: Any = None, **__: Any) -> Any:
        output, graph, communicated = self.run(extra_block_kwargs)
        if not WORLD.case.has_graphs:
            return output
        return (output, graph) if communicated is None else (output, graph, communicated)


def execute_backward(action: str) -> None:
    """Execute a backward; postpone its weight gradients if the store is set to."""
    store = (
        getattr(sys.modules[MODULES["mindspeed"]], "WeightGradStore", None)
        if is_loaded("mindspeed")
        else None
    )
    is_split = bool(store and store.is_decoupleBlock)
    WORLD.done.append(f"{'I' if is_split else 'B'}{action}")
    if store and is_split:
        for _ in range(2):  # two layers
            store.put(action, torch.zeros(1), None, sequence_parallel=False)


def take_layer(graph: Any) -> Any:
    """Remove the only layer from a graph, as the real models do."""
    return getattr(graph, "layer_graphs", graph).pop()


def is_loaded(project: str) -> bool:
    return MODULES[project] in sys.modules


def stub(name: str, **values: Any) -> None:
    """Put a module with these values into ``sys.modules``, and packages above it."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        path = ".".join(parts[:end])
        module = sys.modules.get(path) or types.ModuleType(path)
        module.__path__ = getattr(module, "__path__", [])
        sys.modules[path] = module
        if end > 1:
            setattr(sys.modules[".".join(parts[: end - 1])], parts[end - 1], module)
    vars(sys.modules[name]).update(values)


def install_megatron() -> None:
    """Replace what the schedules import of Megatron."""
    of_last = {"is_pipeline_last_stage": lambda: WORLD.rank == WORLD.case.ranks - 1}
    state = {
        "get_pipeline_model_parallel_rank": lambda: WORLD.rank,
        "get_pipeline_model_parallel_world_size": lambda: WORLD.case.ranks,
        "get_pipeline_model_parallel_next_rank": lambda: (WORLD.rank + 1) % WORLD.case.ranks,
        "get_pipeline_model_parallel_prev_rank": lambda: (WORLD.rank - 1) % WORLD.case.ranks,
        "is_pipeline_first_stage": lambda: WORLD.rank == 0,
        "is_pipeline_stage_after_split": lambda: False,
        "get_context_parallel_world_size": lambda: 1,
        "get_tensor_model_parallel_world_size": lambda: 1,
        "get_tensor_model_parallel_group": lambda: None,
        **of_last,
    }
    stub("megatron.core.parallel_state", **state)
    stub(
        "megatron.core",
        ModelParallelConfig=object,
        parallel_state=sys.modules["megatron.core.parallel_state"],
    )
    stub("megatron.core.enums", ModelType=types.SimpleNamespace(encoder_and_decoder=2))
    arguments = types.SimpleNamespace(
        overlap_grad_reduce=False, schedules_method="dualpipev", gradient_accumulation_fusion=False
    )

    def get_args() -> Any:
        arguments.moe_fb_overlap = WORLD.case.has_graphs
        arguments.dualpipev_dw_detach = WORLD.case.splits_end
        return arguments

    class Timers:
        def __call__(self, *_: Any, **__: Any) -> Any:
            return types.SimpleNamespace(start=lambda **_: None, stop=lambda: None)

    stub("megatron.training", get_args=get_args, get_timers=Timers)
    scaler = types.SimpleNamespace(set_loss_scale=lambda scale: None)
    stub("megatron.core.transformer.moe.router", MoEAuxLossAutoScaler=scaler)
    stub("megatron.core.transformer.multi_token_prediction", MTPLossAutoScaler=scaler)
    stub("megatron.core.transformer.transformer_layer", TransformerLayer=object)
    stub("megatron.core.models.gpt.gpt_model", GPTModel=Model)
    stub("megatron.core.models.gpt", GPTModel=Model)
    stub(
        "megatron.core.utils",
        get_attr_wrapped_model=getattr,
        get_model_config=lambda model: CONFIG,
        get_model_type=lambda model: 1,
    )

    def backward_step(
        input_tensor: Any, output_tensor: Any, output_tensor_grad: Any, model_type: Any, config: Any
    ) -> Any:
        del input_tensor, output_tensor_grad, model_type, config
        execute_backward(WORLD.outputs[id(output_tensor)][1])
        return torch.zeros(1)

    def set_current_microbatch(model: Any, microbatch: int) -> None:
        model.microbatch = microbatch

    def communicate(
        *,
        tensor_send_next: Any,
        tensor_send_prev: Any,
        recv_prev: bool,
        recv_next: bool,
        tensor_shape: Any,
        config: Any,
        wait_on_reqs: bool = True,
    ) -> Any:
        del tensor_shape, config, wait_on_reqs
        WORLD.moved["send"] += (tensor_send_next is not None) + (tensor_send_prev is not None)
        WORLD.moved["recv"] += recv_prev + recv_next
        received = [torch.zeros(1, requires_grad=True) if side else None for side in (recv_prev, recv_next)]
        return (*received, {})

    communicate.__name__ = "_communicate"
    nothing: Any = lambda *args, **kwargs: None  # noqa: E731

    def schedule(*, model: Any, num_microbatches: int, forward_only: bool = False) -> None:
        raise NotImplementedError(model, num_microbatches, forward_only)

    def forward_step(forward_step_func: Any, data_iterator: Any, model: Any, input_tensor: Any) -> None:
        raise NotImplementedError(forward_step_func, data_iterator, model, input_tensor)

    unused = ("no_pipelining", "pipelining_without_interleaving", "pipelining_with_interleaving")
    stub(
        "megatron.core.pipeline_parallel.schedules",
        **{
            f"forward_backward_{name}": schedule for name in unused
        },  # so that Megatron's hooks are installed, too
        forward_step=forward_step,
        backward_step=backward_step,
        set_current_microbatch=set_current_microbatch,
        clear_embedding_activation_buffer=nothing,
        deallocate_output_tensor=nothing,
        finish_embedding_wgrad_compute=nothing,
        custom_backward=lambda output, grad: WORLD.done.append("logits"),
    )
    stub("megatron.core.pipeline_parallel.p2p_communication", _communicate=communicate)


CONFIG = types.SimpleNamespace(
    **dict.fromkeys(
        ("timers", "finalize_model_grads_func", "no_sync_func", "grad_sync_func", "param_sync_func")
    ),
    **dict.fromkeys(("num_moe_experts", "mtp_num_layers", "grad_scale_func")),
    enable_autocast=False,
    deallocate_pipeline_outputs=True,
    sequence_parallel=False,
    calculate_per_token_loss=False,
    hidden_size=1,
    moe_fb_overlap=True,
)


def graph_backward(gradient: Any, graph: Any) -> Any:
    del gradient
    execute_backward(take_layer(graph).action)
    return torch.zeros(1)


def install_project(project: str, folder: Path) -> Any:
    """Replace what the schedules import of their own project, and import them."""
    params = types.SimpleNamespace
    stub("pretrain_gpt", get_batch=lambda iterator: [None] * 5, loss_func=loss_of)
    torch.Tensor.cuda = lambda self: self  # type: ignore[method-assign, assignment]  # there is no device
    if project == "flagscale":
        package = "flagscale.train.dualpipev"
        stub(
            f"{package}.fb_overlap.gpt_model",
            gpt_model_backward=graph_backward,
            gpt_model_forward_backward_overlapping=Model.forward,
        )
        stub(
            f"{package}.fb_overlap.transformer_layer",
            P2PCommParams=params,
            transformer_layer_forward_backward_overlapping=graph_backward,
        )
    else:
        package = "mindspeed.core.pipeline_parallel.dualpipev"
        overlap = "mindspeed.core.transformer.moe.moe_feature.fb_overlap"
        if not (folder / overlap.replace(".", "/")).exists():
            overlap = "mindspeed.core.pipeline_parallel.fb_overlap"  # core_r0.8.0
        WORLD.graphs_are_lists = "transformer" in overlap
        stub(f"{overlap}.gpt_model", gpt_model_backward=graph_backward)
        stub(f"{overlap}.transformer_layer", P2PCommParams=params)
        stub(f"{overlap}.modules.utils", detach_tensor=lambda tensor: tensor)
        stub(f"{overlap}.vpp_schedules", forward_step_func_wrapper=lambda function: function)
        stub("mindspeed.ops.gmm", GMMFunction=object)
        stub("mindspeed.ops.npu_groupmatmul_add", npu_groupmatmul_add_fp32=None)
        npu = types.SimpleNamespace(
            Stream=lambda **_: None, current_device=lambda: 0, stream=contextlib.nullcontext, Event=object
        )
        stub("torch_npu", npu=npu)
        torch.npu = npu
        sys.modules[f"{overlap}.modules"].__path__ = [str(folder / overlap.replace(".", "/") / "modules")]
        store = importlib.import_module(f"{overlap}.modules.weight_grad_store").WeightGradStore
        store.overlap_matmul = classmethod(lambda cls, cached: note_weight(cached[0]))
    stub(package)
    sys.modules[package].__path__ = [str(folder / package.replace(".", "/"))]
    return importlib.import_module(MODULES[project])


def note_weight(action: str) -> None:
    """Note the weight gradient of a layer; those of one backward are one action."""
    if WORLD.done[-1] != f"W{action}":
        WORLD.done.append(f"W{action}")


def loss_of(*given: Any, **_: Any) -> Any:
    return given[-1], {"loss": 0}


def forward_step_func(
    iterator: Any, model: Any, checkpoint: Any = None, extra_block_kwargs: Any = None
) -> Any:
    """Return the result of a forward and the function that computes its loss."""
    del iterator, checkpoint
    return model.run(extra_block_kwargs)[0], loss_of


def train(
    schedules: Any, project: str, case: Case, rank: int, directory: str
) -> tuple[list[str], Counter[str]]:
    """Record one rank; return the actions and the number of transfers of one step."""
    WORLD.case, WORLD.rank, WORLD.done, WORLD.outputs = case, rank, [], {}
    WORLD.moved = Counter()
    CONFIG.moe_fb_overlap = case.has_graphs
    session.start(directory, rank=rank, world_size=case.ranks)
    for _ in range(STEPS):
        getattr(schedules, ENTRIES[project])(
            forward_step_func=forward_step_func,
            data_iterator=[None, None],
            model=[Model(0), Model(1)],
            num_microbatches=case.microbatches,
            seq_length=1,
            micro_batch_size=1,
        )
    session.stop()
    return WORLD.done, WORLD.moved


def differences(directory: str, done: dict[int, list[str]], moved: dict[int, Counter[str]]) -> list[str]:
    """Return how the recording differs from what was executed."""
    timeline = api.read(directory)
    found = []
    for rank, executed in done.items():
        own = timeline.spans.filter(pl.col("rank") == rank).sort("start_ns", maintain_order=True)
        recorded = order_of(own)
        if recorded != executed:
            found.append(f"rank {rank}: executed {executed}, recorded {recorded}")
        steps = timeline.steps.filter(pl.col("rank") == rank)["step"].to_list()
        if steps != list(range(STEPS)):
            found.append(f"rank {rank}: steps {steps}")
        transfers = own.filter(pl.col("kind").cast(pl.String).str.contains("^(send|recv)_"))
        counts = Counter(kind[:4] for kind in transfers["kind"].cast(pl.String))
        if counts != +moved[rank]:
            found.append(f"rank {rank}: transfers {dict(moved[rank])}, recorded {dict(counts)}")
        sends = transfers.filter(pl.col("kind").cast(pl.String).str.starts_with("send"))
        if sends["microbatch"].null_count():
            found.append(f"rank {rank}: {sends['microbatch'].null_count()} sends have no micro-batch")
    return found


def order_of(spans: pl.DataFrame) -> list[str]:
    """Return the recorded actions in the notation of schedules."""
    order: list[str] = []
    pairs: dict[int, int] = {}
    for action in spans.filter(pl.col("kind").is_in([*ACTION_KINDS, "loss"])).iter_rows(named=True):
        text = (
            "logits"
            if action["kind"] == "loss"
            else label(action["kind"], action["stage"], action["microbatch"])
        )
        if action["pair"] in pairs:
            order[pairs[action["pair"]]] += f"+{text}"
            continue
        if action["pair"] is not None:
            pairs[action["pair"]] = len(order)
        order.append(text)
    return order


def main(arguments: list[str] | None = None) -> int:
    """Return the exit status: 1 if a recording differs from what was executed."""
    parser = argparse.ArgumentParser(prog="execute_dualpipev", description=__doc__.partition("\n")[0])
    parser.add_argument("project", choices=sorted(MODULES))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args(arguments)
    install_megatron()
    schedules = install_project(given.project, given.folder)
    failed = 0
    for ranks, microbatches in SHAPES:
        for has_graphs in (True, False):
            for splits_end in (True, False) if given.project == "mindspeed" else (False,):
                case = Case(ranks, microbatches, has_graphs, splits_end)
                with tempfile.TemporaryDirectory() as directory:
                    results = {
                        rank: train(schedules, given.project, case, rank, directory) for rank in range(ranks)
                    }
                    found = differences(
                        directory,
                        {rank: done for rank, (done, _) in results.items()},
                        {rank: moved for rank, (_, moved) in results.items()},
                    )
                actions = sum(len(done) for done, _ in results.values())
                print(f"{case}: {actions} actions, {found or 'as executed'}")  # noqa: T201
                failed += bool(found)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
