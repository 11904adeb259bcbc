"""The cost of recording a pipeline of several ranks, whose stages send and receive, with gloo.

    python benchmarks/recorded_ranks.py [--ranks 4] [--schedule 1F1B] [--microbatches 32] [--steps 30] [--functions]
    python benchmarks/recorded_ranks.py --framework megatron [--schedule 1F1B|interleaved] ...
    python benchmarks/recorded_ranks.py --framework deepspeed ...
    python benchmarks/recorded_ranks.py --timing device ...

The first trains with torch.distributed.pipelining, the others with Megatron-core 0.16 and the pipeline engine of
DeepSpeed 0.19, which must be installed. Set DS_ACCELERATOR=cpu for the latter.

With `--timing device`, the actions and receives of the same training are timed with events of the GPU of this machine,
as if its tensors were there: gloo cannot send those. What it takes to read the times of the events at the end of a step
is measured, too.

Ranks that wait for each other on a few processors have no step time worth comparing. A clock is read around each
function that the recorder wraps, and inside of it, around the original: the difference is what recording costs, without
the waits. Pairs of steps, one with the hooks and one without them, are in random order; those without show the cost of
the readings themselves, which is subtracted. All steps make the same calls: the medians over the steps with and without
hooks are compared for each call of a step, and summed; a call during which the thread was stopped is far from them.
The CPU clock of the thread is no such clock: reading it is a system call, after which the hooks take longer than in a
training, 2.03 instead of 1.93 us per record (docs/performance.md, 2026-11-28). A stage in the middle records a
forward, a backward, two sends and two receives for each micro-batch. What a step leaves to the writer thread is written
before the next one, because steps that follow each other without a pause leave more than its queue holds. Where there
are more ranks than processors, other ranks evict the caches at each wait.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

import stagescope.record as record
from stagescope.ingest.recording.frames import read_contents
from stagescope.record import session
from stagescope.record.patching import MARK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WARM_UP, WIDTH = 5, 64
LENGTH, ROWS = 4, 2
"""Of a micro-batch of Megatron-core."""
PAUSE_S = 0.1
"""Between two steps that are timed on a GPU, whose records wait for the next anchor: there are about 1,000 a second."""
V_SCHEDULES = ("ZBVZeroBubble", "DualPipeV")
"""Schedules of torch in which the first and the last stage are on the first rank."""
SEED = 1
"""Of the order of steps, which is the same on all ranks."""
METHODS = (
    "forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk",
    "get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops",
)  # fmt: skip


class Point:
    """A function of a framework, with readings of the clock around and inside of what the recorder makes of it."""

    def __init__(self, owner: object, name: str) -> None:
        self.owner, self.name = owner, name
        self._inside_ns = 0
        self._costs: dict[bool, list[list[int]]] = {True: [], False: []}
        self._inner = self._read_inside(self.get())
        self.set(self._inner)

    def get(self) -> Any:
        """Return the function that is called now."""
        return vars(self.owner)[self.name]

    def set(self, function: Callable[..., Any]) -> None:
        """Let this function be called."""
        setattr(self.owner, self.name, function)

    def _read_inside(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*args: Any, **kwargs: Any) -> Any:
            begun_ns = perf_counter_ns()
            result = original(*args, **kwargs)
            self._inside_ns = perf_counter_ns() - begun_ns
            return result

        inner.__wrapped__ = original  # type: ignore[attr-defined]  # for its signature
        inner.__name__ = self.name
        return inner

    def wrap(self) -> None:
        """Read the clock around what the recorder has put in place of the function."""
        wrapper = self.get()
        self._ways = {
            on: self._read_around(wrapper if on else self._inner, self._costs[on]) for on in self._costs
        }

    def _read_around(self, function: Callable[..., Any], steps: list[list[int]]) -> Callable[..., Any]:
        def outer(*args: Any, **kwargs: Any) -> Any:
            begun_ns = perf_counter_ns()
            result = function(*args, **kwargs)
            steps[-1].append(perf_counter_ns() - begun_ns - self._inside_ns)
            return result

        vars(outer)[MARK] = function  # for those that look whether a function is observed
        return outer

    def begin_step(self, *, on: bool) -> None:
        """Call the one or the other in the next step."""
        self._costs[on].append([])
        self.set(self._ways[on])

    def cost_us(self) -> tuple[float, float]:
        """Return what recording adds to a call, and the number of calls in a step."""
        total_us, calls = compare(self._costs[True][WARM_UP:], self._costs[False][WARM_UP:])
        return total_us / max(calls, 1), calls


def compare(
    on: list[list[int]], off: list[list[int]], at: np.ndarray[Any, Any] | None = None
) -> tuple[float, int]:
    """Return what all calls of a step, or those `at` these places, take longer in steps `on`, and how many there are.

    Interrupted calls do not change a median.
    """
    calls = min(map(len, (*on, *off)), default=0)
    medians = [np.median([step[:calls] for step in steps], axis=0) for steps in (on, off)]
    longer_ns = medians[0] - medians[1]
    return float((longer_ns if at is None else longer_ns[at[:calls]]).sum()) / 1e3, calls


def time_on_gpu() -> list[list[float]]:
    """Let the recorder time all actions on the GPU, whatever device a framework reports.

    Returns a list, to whose last element the time that it takes to read events is appended, in microseconds.
    """
    torch, timing, device_timer = (
        importlib.import_module(name)
        for name in ("torch", "stagescope.record.timing", "stagescope.record.devices.device_timer")
    )
    torch.ones(1, device="cuda")
    report_device, harvest = timing.Timer.set_tensor_device, device_timer.DeviceTimer.harvest
    steps: list[list[float]] = [[]]

    def timed_harvest(timer: Any) -> None:
        begun_ns = perf_counter_ns()
        harvest(timer)
        steps[-1].append((perf_counter_ns() - begun_ns) / 1e3)

    device_timer.DeviceTimer.harvest = timed_harvest
    timing.Timer.set_tensor_device = lambda timer, *_: report_device(timer, "cuda:0")
    return steps


class Entry(Point):
    """A function of a framework in a dict, by the class of an instruction."""

    def __init__(self, owner: dict[type, Any], key: type) -> None:
        self._key = key
        super().__init__(owner, key.__name__)

    def get(self) -> Any:
        """Return the function that is called now."""
        return self.owner[self._key]  # type: ignore[index]  # a dict

    def set(self, function: Callable[..., Any]) -> None:
        """Let this function be called."""
        self.owner[self._key] = function  # type: ignore[index]  # as above


class Ranges(Point):
    """What makes the ranges of torch's schedules. A call is all of a range: it is made, entered and left.

    Where the object is of torch's own class, recording only takes part in making it. Entering and leaving it are then
    left out: they take about 20 us, which vary by more than recording costs.
    """

    def __init__(self, owner: object, name: str) -> None:
        self._rest: dict[bool, list[list[int]]] = {True: [], False: []}
        self._observed: list[bool] = []
        super().__init__(owner, name)

    def _read_inside(self, original: Callable[..., Any]) -> Callable[..., Any]:
        return original

    def _read_around(self, function: Callable[..., Any], steps: list[list[int]]) -> Callable[..., Any]:
        on, own = steps is self._costs[True], self._inner
        rests = self._rest[on]

        class Range:
            def __init__(self, text: str) -> None:
                begun_ns = perf_counter_ns()
                self._range = function(text)
                steps[-1].append(perf_counter_ns() - begun_ns)

            def __enter__(self) -> None:
                begun_ns = perf_counter_ns()
                self._range.__enter__()
                self._rest_ns = perf_counter_ns() - begun_ns

            def __exit__(self, *error: object) -> None:
                begun_ns = perf_counter_ns()
                self._range.__exit__(*error)
                rests[-1].append(self._rest_ns + perf_counter_ns() - begun_ns)
                if on:
                    observed.append(type(self._range) is not own)

        observed = self._observed
        return Range

    def begin_step(self, *, on: bool) -> None:
        """Call the one or the other in the next step."""
        super().begin_step(on=on)
        self._rest[on].append([])
        if on:
            self._observed.clear()  # so that those of the last step are left

    def cost_us(self) -> tuple[float, float]:
        """Return what recording adds to a range, and the number of ranges in a step."""
        making_us, calls = super().cost_us()
        rest_us, _ = compare(
            self._rest[True][WARM_UP:], self._rest[False][WARM_UP:], np.array(self._observed, bool)
        )
        return making_us + rest_us / max(calls, 1), calls


def points() -> Iterator[Point]:
    """Yield the functions that the recorder wraps in each step and that all frameworks call."""
    c10d = importlib.import_module("torch.distributed.distributed_c10d")
    yield Point(c10d.Work, "wait")
    for name in ("send", "recv"):
        yield Point(c10d.ProcessGroup, name)


def points_of_torch() -> Iterator[Point]:
    """Yield those of torch.distributed.pipelining."""
    pipelining = "torch.distributed.pipelining"
    schedules, stage = (importlib.import_module(f"{pipelining}.{name}") for name in ("schedules", "stage"))
    for name in METHODS:
        yield Point(stage._PipelineStageBase, name)  # noqa: SLF001  # no public name
    yield Point(schedules._PipelineSchedule, "_maybe_compute_loss")  # noqa: SLF001  # same
    yield Point(schedules, "_batch_p2p")
    yield Ranges(schedules, "record_function")


def points_of_megatron() -> Iterator[Point]:
    """Yield those of Megatron-core."""
    torch = importlib.import_module("torch")
    zeros = torch.zeros
    torch.zeros = lambda *sizes, **given: zeros(
        *sizes, **given | {"device": "cpu"}
    )  # a schedule asks for "cuda"
    torch.cuda.current_device = lambda: "cpu"
    pipeline = "megatron.core.pipeline_parallel"
    transfers, schedules = (
        importlib.import_module(f"{pipeline}.{name}") for name in ("p2p_communication", "schedules")
    )
    for owner, names in (
        (schedules, ("forward_step", "backward_step")), (transfers, ("_p2p_ops", "_batched_p2p_ops")),
    ):  # fmt: skip
        for name in names:
            yield Point(owner, name)


def points_of_deepspeed() -> Iterator[Point]:
    """Yield those of DeepSpeed's pipeline engine."""
    backend = importlib.import_module("deepspeed.comm.torch")
    backend.build_shm_op = lambda: None  # compiles, and is not used here
    p2p, engine = (importlib.import_module(f"deepspeed.runtime.pipe.{name}") for name in ("p2p", "engine"))
    instructions = engine.PipelineEngine._INSTRUCTION_MAP  # noqa: SLF001  # no public name
    for instruction in instructions:
        yield Entry(instructions, instruction)
    for owner, names in ((p2p, ("send", "recv")), (engine.PipelineEngine, ("train_batch", "_exec_schedule"))):
        for name in names:
            yield Point(owner, name)


def training_with_torch(options: argparse.Namespace) -> Callable[[], object]:
    """Return a function that trains one step."""
    torch, pipelining, schedules = map(
        importlib.import_module,
        ("torch", "torch.distributed.pipelining", "torch.distributed.pipelining.schedules"),
    )
    rank, ranks, microbatches = options.rank, options.ranks, options.microbatches
    cls = getattr(schedules, f"Schedule{options.schedule}")
    chunks = 1 if issubclass(cls, schedules.PipelineScheduleSingle) else 2
    own = (rank, 2 * ranks - 1 - rank if options.schedule in V_SCHEDULES else rank + ranks)
    stages = [
        pipelining.PipelineStage(torch.nn.Linear(WIDTH, WIDTH), index, ranks * chunks, torch.device("cpu"))
        for index in own[:chunks]
    ]
    made = cls(stages[0] if chunks == 1 else stages, microbatches, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD([one for stage in stages for one in stage.submod.parameters()], lr=0.01)
    data, target = torch.ones(microbatches, WIDTH), torch.zeros(microbatches, WIDTH)
    inputs = [data] if rank == 0 else []
    targets = {"target": target} if ranks * chunks - 1 in own[:chunks] else {}

    def step() -> None:
        optimizer.zero_grad()
        made.step(*inputs, **targets)
        optimizer.step()

    return step


def training_with_megatron(options: argparse.Namespace) -> Callable[[], object]:
    """Return a function that trains one step. Interleaved chunks overlap their transfers with computations."""
    torch, state, schedules, configs = map(
        importlib.import_module,
        ("torch", "megatron.core.parallel_state", "megatron.core.pipeline_parallel.schedules",
         "megatron.core.transformer.transformer_config"),
    )  # fmt: skip
    chunks = 2 if options.schedule == "interleaved" else 1
    stages, is_single = chunks * options.ranks, chunks == 1
    sizes = {"pipeline_model_parallel_size": options.ranks}
    if not is_single:
        sizes["virtual_pipeline_model_parallel_size"] = chunks
    state.initialize_model_parallel(create_gloo_process_groups=False, **sizes)
    config = configs.TransformerConfig(
        num_layers=stages, hidden_size=WIDTH, num_attention_heads=1, pipeline_dtype=torch.float32,
        batch_p2p_sync=False, use_cpu_initialization=True, overlap_p2p_comm=not is_single, batch_p2p_comm=is_single,
        deallocate_pipeline_outputs=is_single, **sizes,
    )  # fmt: skip
    models = [chunk_of_megatron(config, chunk, chunks, stages) for chunk in range(chunks)]
    optimizer = torch.optim.SGD([one for model in models for one in model.parameters()], lr=0.01)
    batch = torch.ones(LENGTH, ROWS, WIDTH)
    train = schedules.get_forward_backward_func()

    def loss(output: Any) -> tuple[Any, dict[str, object]]:
        return output.pow(2).mean(), {}

    def step() -> None:
        optimizer.zero_grad()
        batches = [iter([batch] * options.microbatches) for _ in range(chunks)]
        train(
            forward_step_func=lambda each, model: (model(next(each)), loss), num_microbatches=options.microbatches,
            data_iterator=batches[0] if is_single else batches, model=models[0] if is_single else models,
            seq_length=LENGTH, micro_batch_size=ROWS, forward_only=False,
        )  # fmt: skip
        optimizer.step()

    return step


def chunk_of_megatron(config: Any, chunk: int, chunks: int, stages: int) -> Any:
    """Return one chunk of a model, with what the schedules expect of it."""
    torch, enums = (importlib.import_module(name) for name in ("torch", "megatron.core.enums"))
    linear = torch.nn.Linear(WIDTH, WIDTH)

    class Chunk(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.config, self.received = linear, config, None
            stage = chunk * config.pipeline_model_parallel_size + torch.distributed.get_rank()
            self.vp_stage = chunk if chunks > 1 else None
            self.model_type = enums.ModelType.encoder_or_decoder
            self.pre_process, self.post_process = stage == 0, stage == stages - 1
            self.share_embeddings_and_output_weights = False

        def set_input_tensor(self, received: Any) -> None:
            """Take the output of the stage before."""
            self.received = received[0] if isinstance(received, (list, tuple)) else received

        def forward(self, batch: Any) -> Any:
            return torch.tanh(self.linear(batch if self.received is None else self.received))

    return Chunk()


def training_with_deepspeed(options: argparse.Namespace) -> Callable[[], object]:
    """Return a function that trains one step."""
    torch, framework, pipe = map(importlib.import_module, ("torch", "deepspeed", "deepspeed.pipe"))
    framework.init_distributed("gloo")
    layers = [pipe.LayerSpec(torch.nn.Linear, WIDTH, WIDTH) for _ in range(options.ranks)]
    module = pipe.PipelineModule(layers=layers, num_stages=options.ranks, loss_fn=torch.nn.MSELoss())
    sizes = {"train_micro_batch_size_per_gpu": ROWS, "gradient_accumulation_steps": options.microbatches}
    optimizer = {"type": "SGD", "params": {"lr": 0.01}}
    engine, *_ = framework.initialize(
        model=module, model_parameters=list(module.parameters()),
        config={**sizes, "optimizer": optimizer, "steps_per_print": 10**9},
    )  # fmt: skip
    batch = torch.ones(ROWS, WIDTH), torch.zeros(ROWS, WIDTH)
    return lambda: engine.train_batch(data_iter=iter([batch] * options.microbatches))


FRAMEWORKS = {
    "torch": (points_of_torch, training_with_torch),
    "megatron": (points_of_megatron, training_with_megatron),
    "deepspeed": (points_of_deepspeed, training_with_deepspeed),
}
"""What yields the functions of a framework that the recorder wraps, and what prepares a training with it."""


def run_rank(options: argparse.Namespace) -> None:
    """Train, and leave the number of records of the last step and the cost of each function in a file."""
    torch, dist = (importlib.import_module(name) for name in ("torch", "torch.distributed"))
    torch.set_num_threads(1)
    store = f"file://{options.directory}/store"
    os.environ |= {
        "RANK": str(options.rank), "LOCAL_RANK": str(options.rank), "WORLD_SIZE": str(options.ranks)
    }  # fmt: skip
    dist.init_process_group("gloo", init_method=store, rank=options.rank, world_size=options.ranks)
    points_of, training = FRAMEWORKS[options.framework]
    observed = [*points(), *points_of()]
    reads = time_on_gpu() if options.timing == "device" else [[]]
    record.start(options.directory / "recording")
    for point in observed:
        point.wrap()
    pause_s = PAUSE_S if options.timing == "device" else 0.0
    step, guards = training(options), list(session.recorder.guards.values())
    pairs = [[True, False]] * (WARM_UP + options.steps)
    order = np.random.default_rng(SEED).permuted(pairs, axis=1).ravel().tolist()
    for on in order:
        for guard in guards:
            guard.is_off = not on
        for point in observed:
            point.begin_step(on=on)
        session.recorder.flush()
        time.sleep(pause_s)
        reads.append([])
        step()
    session.recorder.flush()
    spans = read_contents(Path(session.recorder.path).read_bytes()).spans
    records = int(np.unique(spans["step"], return_counts=True)[1].max())  # the last step may wait for the GPU
    costs = [(point.name, *point.cost_us()) for point in observed]
    if options.timing == "device":
        of_steps = [sum(of_step) for of_step, on in zip(reads[1:], order, strict=True) if on]
        costs.append(("reading of events", statistics.median(of_steps[WARM_UP:]), 1))
    device = session.recorder.timer.device
    found = [records, costs, device.model if device else "the host"]
    (options.directory / f"{options.rank}.json").write_text(json.dumps(found), encoding="ascii")
    dist.barrier()
    record.stop()
    dist.destroy_process_group()


def report(options: argparse.Namespace, directory: Path) -> None:
    """Print what recording costs each rank."""
    size = f"{options.microbatches} micro-batches, {options.ranks} rank{'s' * (options.ranks > 1)}"
    print(f"{options.schedule}, {size}: us of the training thread in the functions that are wrapped")
    for rank in range(options.ranks):
        records, costs, device = json.loads((directory / f"{rank}.json").read_text(encoding="ascii"))
        total = sum(cost * calls for _, cost, calls in costs)
        print(
            f"  rank {rank}, timed on {device}: {total:.0f} us for {records} records, {total / records:.1f} us a record"
        )
        for name, cost, calls in costs if options.functions else ():
            if calls:
                print(f"    {name:28}{calls:6.0f} calls a step, {cost:+6.2f} us each")


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--ranks", type=int, default=4)
    options.add_argument("--framework", choices=FRAMEWORKS, default="torch")
    options.add_argument("--schedule", default="1F1B")
    options.add_argument("--microbatches", type=int, default=32)
    options.add_argument("--steps", type=int, default=30)
    options.add_argument("--timing", choices=("host", "device"), default="host")
    options.add_argument("--functions", action="store_true", help="print the cost of each function")
    options.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.rank is not None:
        run_rank(asked)
        return
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, *sys.argv, "--directory", directory, "--rank"]
        processes = [subprocess.Popen([*command, str(rank)]) for rank in range(asked.ranks)]
        if sum(process.wait() != 0 for process in processes):
            raise SystemExit(1)
        report(asked, Path(directory))


if __name__ == "__main__":
    main()
