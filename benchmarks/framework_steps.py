"""The cost of recording steps of Megatron-core or DeepSpeed, as recorded_steps.py measures those of torch.

    python benchmarks/framework_steps.py megatron|deepspeed [--rounds N]

One process without a GPU is a pipeline of one stage. Its environment needs Megatron-core 0.16 or DeepSpeed 0.19; set
DS_ACCELERATOR=cpu for the latter.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import recorded_steps as steps

import stagescope.record as record
from stagescope.record.patching import MARK

if TYPE_CHECKING:
    from collections.abc import Callable

    Step = Callable[[], object]

WIDTH, ROWS = 8, 2


class Marked:
    """Marks the functions that compute forwards and backwards by hand; `owner` is a module or a dict."""

    def __init__(self, owner: Any, kinds: dict[Any, str]) -> None:
        self._entries = owner if isinstance(owner, dict) else vars(owner)
        self._set = (
            owner.__setitem__ if isinstance(owner, dict) else lambda name, value: setattr(owner, name, value)
        )
        self._kinds = kinds
        self._originals = {name: _original(self._entries[name]) for name in kinds}

    def set(self, *, on: bool) -> None:
        """Install the marked functions, or those of the framework."""
        for name, kind in self._kinds.items():
            original = self._originals[name]
            self._set(name, _marked(kind, original) if on else original)


def _original(function: Any) -> Any:
    while hasattr(function, MARK):
        function = getattr(function, MARK)
    return function


def _marked(kind: str, original: Callable) -> Callable:
    def call(*args: object, **kwargs: object) -> object:
        with record.span(kind, microbatch=0, stage=0):
            return original(*args, **kwargs)

    return call


def megatron() -> dict[str, tuple[Callable[[int], Step], Callable[[], Marked]]]:
    """Return what trains a step with a number of micro-batches, for two schedules."""
    pretend = importlib.import_module("cpu_for_cuda")
    pretend.pretend_a_gpu()
    pretend.CpuForCuda().__enter__()
    core = importlib.import_module("megatron.core")
    importlib.import_module("megatron.core.parallel_state").initialize_model_parallel(
        create_gloo_process_groups=False
    )
    schedules = importlib.import_module("megatron.core.pipeline_parallel.schedules")
    torch = importlib.import_module("torch")

    class Model(torch.nn.Module):
        def __init__(self, config: Any) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(WIDTH, WIDTH)
            self.config, self.vp_stage = config, None
            self.model_type = importlib.import_module("megatron.core.enums").ModelType.encoder_or_decoder
            self.pre_process = self.post_process = True
            self.share_embeddings_and_output_weights = False

        def set_input_tensor(self, tensor: object) -> None:
            """Take nothing: the only stage receives nothing."""

        def forward(self, batch: Any) -> Any:
            return self.linear(batch)

    def forward_step(batches: Any, model: Any) -> tuple[Any, Callable]:
        return model(next(batches)), lambda out: (out.pow(2).mean(), {})

    def made(name: str) -> Callable[[int], Step]:
        def training(microbatches: int) -> Step:
            config = core.transformer.transformer_config.TransformerConfig(
                num_layers=1, hidden_size=WIDTH, num_attention_heads=1, pipeline_dtype=torch.float32,
                batch_p2p_sync=False, use_cpu_initialization=True,
            )  # fmt: skip
            model = Model(config)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            batch = torch.ones(1, ROWS, WIDTH)

            def step() -> None:
                optimizer.zero_grad()
                getattr(schedules, name)(
                    forward_step_func=forward_step, data_iterator=iter([batch] * microbatches), model=model,
                    num_microbatches=microbatches, seq_length=1, micro_batch_size=ROWS, forward_only=False,
                )  # fmt: skip
                optimizer.step()

            return step

        return training

    importlib.import_module("megatron.core.transformer.transformer_config")
    hand = {"forward_step": "forward", "backward_step": "backward"}
    names = ("forward_backward_no_pipelining", "forward_backward_pipelining_without_interleaving")
    return {name: (made(name), lambda: Marked(schedules, hand)) for name in names}


def deepspeed() -> dict[str, tuple[Callable[[int], Step], Callable[[], Marked]]]:
    """Return what trains a step with a number of micro-batches."""
    importlib.import_module("deepspeed")
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: (
        None
    )  # compiles, and is not used here
    framework, torch = sys.modules["deepspeed"], importlib.import_module("torch")
    framework.init_distributed("gloo")
    pipe = importlib.import_module("deepspeed.pipe")
    engine_class = importlib.import_module("deepspeed.runtime.pipe.engine").PipelineEngine
    passes = importlib.import_module("deepspeed.runtime.pipe.schedule")

    def training(microbatches: int) -> Step:
        layers = [pipe.LayerSpec(torch.nn.Linear, WIDTH, WIDTH)]
        module = pipe.PipelineModule(layers=layers, num_stages=1, loss_fn=torch.nn.MSELoss())
        sizes = {"train_micro_batch_size_per_gpu": ROWS, "gradient_accumulation_steps": microbatches}
        engine, *_ = framework.initialize(
            model=module,
            model_parameters=list(module.parameters()),
            config={**sizes, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "steps_per_print": 10**9},
        )
        batch = (torch.ones(ROWS, WIDTH), torch.zeros(ROWS, WIDTH))
        return lambda: engine.train_batch(data_iter=iter([batch] * microbatches))

    hand = {passes.ForwardPass: "forward", passes.BackwardPass: "backward"}
    return {"TrainSchedule": (training, lambda: Marked(engine_class._INSTRUCTION_MAP, hand))}  # noqa: SLF001  # no public name


FRAMEWORKS = {"megatron": megatron, "deepspeed": deepspeed}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("framework", choices=FRAMEWORKS)
    options.add_argument("--rounds", type=int, default=20)
    given = options.parse_args()
    torch, dist = (importlib.import_module(name) for name in ("torch", "torch.distributed"))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=0, world_size=1)
        record.start(Path(directory, "recording"))
        for name, (training, hand) in FRAMEWORKS[given.framework]().items():
            steps.report(name, given.rounds, training, hand)
        record.stop()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
