"""Execute the real source of Primus' zero-bubble runtime and compare what is recorded with what ran.

    python -m tools.compatibility.execute_primus FOLDER

FOLDER is a checkout of Primus. Its V-shaped plans, its TrainingIteration and its WeightGradStore run as they are; the
model, Megatron and the transfers are replaced. Every rank runs alone. The hooks are those of `stagescope run`.
"""

# ruff: noqa: ARG001, ARG005, D102, FBT001, FBT002, PLR0917 - replacements have the names and signatures of the originals

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import torch

from stagescope import api
from stagescope.record import session
from stagescope.record.points import primus as points

from .execute_dualpipev import order_of, stub

STEPS = 2
SHAPES = ((2, 4), (4, 8), (4, 11))
PLANS = ("zbv", "half", "min")
ARGUMENTS = types.SimpleNamespace(
    num_seq_splits=1,
    profile=False,
    profile_memory_iter=-1,
    cpu_offload=False,
    pre_communication_optimization=False,
    zero_bubble_pipeline_timers_end_iter=-1,
    dump_pp_data=False,
    debug_scheduler_table=False,
    overlap_grad_reduce=False,
    gradient_accumulation_fusion=True,
    pipeline_model_parallel_size=2,
    num_virtual_stages_per_pipeline_rank=None,
    pipeline_model_parallel_layout=None,
    overlap_p2p_comm=True,
)


class World:
    """The rank and the chunk that run, and what has been executed, in the notation of schedules."""

    rank, ranks, chunk = 0, 2, 0
    done: list[str] = []  # noqa: RUF012  # replaced for each rank
    numbers: dict[int, tuple[Any, str]] = {}  # noqa: RUF012  # as above

    @classmethod
    def stage(cls, chunk: int) -> int:
        return cls.rank if chunk == 0 else 2 * cls.ranks - 1 - cls.rank


def install(folder: Path) -> Any:
    """Replace what the runtime imports, and import it."""
    torch.Tensor.cuda = lambda self: self  # type: ignore[method-assign, assignment]  # there is no device
    for name in ("empty_cache", "synchronize"):
        setattr(torch.cuda, name, lambda: None)
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]  # as above

    def set_chunk(chunk: int) -> None:
        World.chunk = chunk

    def is_first(ignore_virtual: bool = False, vp_stage: Any = None, in_zero_bubble: bool = False) -> bool:
        return World.rank == 0 and (ignore_virtual or World.chunk == 0)

    def is_last(ignore_virtual: bool = False, vp_stage: Any = None, in_zero_bubble: bool = False) -> bool:
        if ignore_virtual:
            return World.rank == World.ranks - 1
        return World.rank == 0 and World.chunk == 1

    stub(
        "megatron.core.parallel_state",
        get_pipeline_model_parallel_rank=lambda: World.rank,
        get_pipeline_model_parallel_world_size=lambda: World.ranks,
        get_virtual_pipeline_model_parallel_world_size=lambda: 2,
        get_virtual_pipeline_model_parallel_rank=lambda: World.chunk,
        set_virtual_pipeline_model_parallel_rank=set_chunk,
        is_pipeline_first_stage=is_first,
        is_pipeline_last_stage=is_last,
        get_pipeline_model_parallel_group=None,
        get_pipeline_model_parallel_next_rank=lambda: (World.rank + 1) % World.ranks,
        get_pipeline_model_parallel_prev_rank=lambda: (World.rank - 1) % World.ranks,
    )
    stub("megatron.core", parallel_state=sys.modules["megatron.core.parallel_state"])
    stub("megatron.core.enums", ModelType=None)
    stub("megatron.core.num_microbatches_calculator", get_num_microbatches=None)
    stub("megatron.core.pipeline_parallel.p2p_communication", P2PCommunicator=None, _communicate=None)
    stub("megatron.core.process_groups_config", ProcessGroupCollection=None)
    stub("megatron.core.timers", Timer=object)
    stub("megatron.core.utils", get_model_config=None, get_model_type=None, get_model_xattn=None)
    stub("megatron.training", get_args=lambda: ARGUMENTS, print_rank_0=None)
    stub("megatron.training.global_vars", get_args=lambda: ARGUMENTS)
    stub("pulp")
    install_passes()
    for package in ("primus", "primus.core", "primus.core.utils", "primus.backends.megatron.training"):
        stub(package)
        sys.modules[package].__path__ = [str(folder / package.replace(".", "/"))]
    silent: Any = lambda *args, **kwargs: None  # noqa: E731
    stub("primus.core.utils.module_utils", log_rank_0=silent, log_rank_all=silent)
    stub("primus.backends.megatron.training.training", RollbackDataIteratorWrapper=object)
    stub("primus.backends.megatron.training.utils", is_second_last_pipeline_stage=None)
    store = types.SimpleNamespace(cache=[None], push=silent)
    stub("primus.backends.megatron.data_loader_store", DataLoaderStore=store)
    # The same until 26.2:
    stub("primus.modules.module_utils", log_rank_0=silent, log_rank_all=silent)
    stub("primus.modules.trainer.megatron.pre_trainer", DataLoaderStore=store)
    stub("primus.modules.trainer.megatron.utils", fwd_bwd_wrapper=None, schedule_wrapper=lambda run: run)
    package = f"{points.PACKAGE}.zerobubble"
    stub(
        f"{package}.offload",
        ActivationStorePool=None,
        FakeActivationStore=None,
        partial_recompute=NoContext(),
    )
    stub(f"{package}.timer", ScheduleTimers=types.SimpleNamespace(iter_counter=0))
    for each in (points.PACKAGE, package):
        sys.modules[each].__path__ = [str(folder / each.replace(".", "/"))]
    return importlib.import_module(points.RUNTIME)


class NoContext:
    """A context that can be entered any number of times."""

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


class Request:
    """The handle of a transfer."""

    def wait(self) -> None: ...


def install_passes() -> None:
    """Replace Megatron's forward and backward; a backward leaves the weight gradients of two layers if it is split."""

    def forward_step(
        forward_step_func: Any,
        data_iterator: Any,
        model: Any,
        num_microbatches: int,
        input_tensor: Any,
        forward_data_store: Any,
        config: Any,
        collect_non_loss_data: bool = False,
        checkpoint_activations_microbatch: Any = None,
        is_first_microbatch: bool = False,
        current_microbatch: Any = None,
        vp_stage: Any = None,
        is_last_stage: bool = True,
    ) -> Any:
        action = f"{World.stage(vp_stage or 0)}.{current_microbatch}"
        output = torch.zeros(1)
        World.done.append(f"F{action}")
        World.numbers[id(output)] = (output, action)
        return [output], 0

    def backward_step(
        input_tensor: Any, output_tensor: Any, output_tensor_grad: Any, model_type: Any, config: Any
    ) -> Any:
        action = World.numbers[id(output_tensor[0])][1]
        gradients = sys.modules[points.GRADIENTS.partition(":")[0]].WeightGradStore
        World.done.append(f"{'I' if gradients.split_bw() else 'B'}{action}")
        for _ in range(2) if gradients.split_bw() else ():
            gradients.put(None, lambda async_op: (action,), note_weight)
        return [torch.zeros(1)]

    def schedule(*, model: Any, num_microbatches: int, forward_only: bool = False) -> None:
        raise NotImplementedError(model, num_microbatches, forward_only)

    unused = ("no_pipelining", "pipelining_without_interleaving", "pipelining_with_interleaving")
    stub(
        "megatron.core.pipeline_parallel.schedules",
        **{f"forward_backward_{name}": schedule for name in unused},
        forward_step=forward_step,
        backward_step=backward_step,
        check_first_val_step=lambda first, forward_only, condition: condition,
        deallocate_output_tensor=lambda *_: None,
        get_tensor_shapes=None,
    )


def note_weight(action: str) -> None:
    """Note the weight gradient of a layer; those of one backward are one action."""
    if World.done[-1] != f"W{action}":
        World.done.append(f"W{action}")


def plan(name: str, ranks: int, microbatches: int) -> Any:
    """Return the nodes of all ranks that Primus' code plans."""
    package = f"{points.PACKAGE}.zerobubble.scheduler"
    graph, passes = (importlib.import_module(f"{package}.{each}") for each in ("graph", "passes"))
    config = graph.GraphConfig.basic_config(
        f=1000.0,
        b=1200.0,
        w=700.0,
        n_stages=ranks,
        n_micro=microbatches,
        max_chunks=2,
    )
    if name == "zbv":
        module = importlib.import_module(f"{package}.zbv")
        memory = {"f_mem": 3, "b_mem": -2, "w_mem": -1, "max_mem": None}
        order = module.PipelineGraph(ranks, microbatches, 1000, 1200, 700, 1, **memory).create_schedule(
            config
        )
    else:
        module = importlib.import_module(f"{package}.zbv_greedy")
        order = module.PipelineGraph(ranks, microbatches, name, 1000, 1000, 1000, 1).create_schedule(config)
    return passes.run_schedule_passes(config, order, validate=False)


def train(runtime: Any, nodes: Any, microbatches: int, directory: str) -> list[str]:
    """Record one rank, and return what it executed."""
    World.done, World.numbers = [], {}
    gradients = sys.modules[points.GRADIENTS.partition(":")[0]].WeightGradStore
    gradients.weight_grad_queue = None
    config = types.SimpleNamespace(
        schedules=nodes,
        forward_step_func=None,
        data_iterator=[None, None],
        model=[None, None],
        model_type=None,
        config=types.SimpleNamespace(
            finalize_model_grads_func=None,
            batch_p2p_comm=False,
            pipeline_dtype=torch.float32,
            deallocate_pipeline_outputs=False,
        ),
        num_microbatches=microbatches,
        forward_only=False,
        collect_non_loss_data=False,
        no_sync_func=NoContext,
        tensor_shape=(1,),
        recv_tensor_shapes=[(1,)],
        send_tensor_shapes=[(1,)],
        run_timer=False,
        first_val_step=None,
    )

    def multi_pipeline_ops(*tensors: Any) -> Any:
        return [], tuple([Request() for _ in each] for each in tensors[:4])

    runtime.multi_pipeline_ops = multi_pipeline_ops
    session.start(directory, rank=World.rank, world_size=World.ranks)
    for number in range(STEPS):
        cache = types.SimpleNamespace(assert_empty=lambda: None)
        runtime.TrainingIteration(config, number, cache).run()
    session.stop()
    return World.done


def main(arguments: list[str] | None = None) -> int:
    """Return the exit status: 1 if a recording differs from what was executed."""
    parser = argparse.ArgumentParser(prog="execute_primus", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    runtime = install(parser.parse_args(arguments).folder)
    failed = 0
    for name in PLANS:
        for ranks, microbatches in SHAPES:
            World.ranks = ranks
            ARGUMENTS.pipeline_model_parallel_size = ranks
            nodes, found, actions = plan(name, ranks, microbatches), [], 0
            with tempfile.TemporaryDirectory() as directory:
                done = {}
                for rank in range(ranks):
                    World.rank = rank
                    done[rank] = train(runtime, nodes[rank], microbatches, directory)
                spans = api.read(directory).spans.sort("start_ns", maintain_order=True)
                for (rank,), own in spans.group_by("rank"):
                    actions += len(done[rank])
                    if order_of(own) != done[rank]:
                        found.append(f"rank {rank}: executed {done[rank]}, recorded {order_of(own)}")
            outcome = found or "as executed"
            sys.stdout.write(
                f"{name}, {ranks} ranks, {microbatches} micro-batches: {actions} actions, {outcome}\n"
            )
            failed += bool(found)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
