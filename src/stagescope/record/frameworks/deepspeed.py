"""Instruments DeepSpeed's pipeline engine without a change to the training; DeepSpeed 0.19.8.

The engine looks up each instruction of its schedule in the class dict ``PipelineEngine._INSTRUCTION_MAP`` (runtime/
pipe/engine.py, ``_exec_schedule``), so the functions in that dict are replaced: patching the methods by name has no
effect. An instruction contains its buffer, not its micro-batch. Each kind of instruction processes the micro-batches
of a batch in order (runtime/pipe/schedule.py), so the micro-batch is the number of earlier instructions of the same
kind.

A transfer is one instruction, however many tensors it moves. Its size and peer come from ``p2p.send`` and
``p2p.recv`` inside it. The shapes that are sent ahead of the first tensors are not counted.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from stagescope.record.calls import never_raises
from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.frameworks.optimizer_steps import optimizer_steps
from stagescope.record.frameworks.runs import BACKWARD, FORWARD, Place, Runs
from stagescope.record.patching import MARK
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Function = Callable[..., Any]

ACTIONS = {"ForwardPass": FORWARD, "BackwardPass": BACKWARD}
TRANSFERS = {
    "SendActivation": BY_NAME["send_forward"].code,
    "RecvActivation": BY_NAME["recv_forward"].code,
    "SendGrad": BY_NAME["send_backward"].code,
    "RecvGrad": BY_NAME["recv_backward"].code,
}
RECEIVES = (TRANSFERS["RecvActivation"], TRANSFERS["RecvGrad"])
REDUCTIONS = ("ReduceGrads", "ReduceTiedGrads")
GRAD_REDUCE, OTHER = BY_NAME["grad_reduce"].code, BY_NAME["other"].code
SCHEDULES = {"TrainSchedule": "1f1b", "DataParallelSchedule": "no-pipelining"}
"""DeepSpeed's schedule classes and the schedules they implement. InferenceSchedule is missing, as it only has forwards.
"""


def instrument(engine: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """Wrap `engine`, the imported module deepspeed.runtime.pipe.engine, and the functions it communicates with."""
    Instrumentation(recorder, patches).install(engine)


class Transfer:
    """The data moved by one send or receive instruction, and the moments at which its wait began and ended."""

    __slots__ = ("kind", "peer", "place", "size_bytes", "start_ns", "step", "wait_end", "wait_start")

    def __init__(self, kind: int, place: Place, step: int) -> None:
        self.kind = kind
        self.place = place
        self.step = step
        self.peer = NONE
        self.size_bytes = 0
        self.wait_start: Any = None
        self.wait_end: Any = None
        self.start_ns = now_ns()


class Instrumentation:
    """The wrappers and their shared state: the current batch and the transfer in progress."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self.recorder = recorder
        self.patches = patches
        self.runs = Runs(recorder)
        self.optimizers = optimizer_steps(recorder)
        self._counts: Counter[str] = Counter()
        self._transfer: Transfer | None = None
        self._described: object = None

    def install(self, engine: ModuleType) -> None:
        """Replace the instructions, the two batch methods, and the functions that move a tensor."""
        wrap = self.patches.wrap
        self._replace_instructions(engine.PipelineEngine._INSTRUCTION_MAP)  # noqa: SLF001  # no public name
        wrap(engine.PipelineEngine, "train_batch", self._train_batch)
        wrap(engine.PipelineEngine, "eval_batch", self._eval_batch)
        wrap(engine.PipelineEngine, "_exec_schedule", self._exec_schedule)
        for name in ("_send_tensor_meta", "_recv_tensor_meta"):
            wrap(engine.PipelineEngine, name, self._without_counting)
        self._p2p = engine.p2p
        wrap(engine.p2p, "send", self._moved)
        wrap(engine.p2p, "recv", self._moved)

    def _replace_instructions(self, instructions: dict[type, Function]) -> None:
        for instruction, original in list(instructions.items()):
            make = self._maker(instruction.__name__)
            if make is None or hasattr(original, MARK):
                continue
            replacement = functools.wraps(original)(make(original))
            setattr(replacement, MARK, original)
            instructions[instruction] = replacement
            self.patches.on_undo(functools.partial(_restore, instructions, instruction, replacement))

    def _maker(self, name: str) -> Callable[[Function], Function] | None:
        """Return what wraps the function of an instruction; None for an unknown instruction."""
        if name in ACTIONS:
            return lambda original: self._action(name, original)
        if name in TRANSFERS:
            return lambda original: self._transfers(name, original)
        if name in REDUCTIONS:
            return lambda original: self._timed_on_host(name, GRAD_REDUCE, original)
        if name == "LoadMicroBatch":
            return lambda original: self._timed_on_host(name, OTHER, original)
        return self.optimizers.watch if name == "OptimizerStep" else None

    def _action(self, name: str, original: Function) -> Function:
        def execute(engine: Any, *args: Any, **kwargs: Any) -> Any:
            place = self._next_place(name, engine)
            return self.runs.action(ACTIONS[name], place, lambda: original(engine, *args, **kwargs))

        return execute

    def _transfers(self, name: str, original: Function) -> Function:
        def execute(engine: Any, *args: Any, **kwargs: Any) -> Any:
            place = self._next_place(name, engine)
            if not self.recorder.enabled:
                return original(engine, *args, **kwargs)
            transfer = self._transfer = Transfer(TRANSFERS[name], place, self.recorder.step)
            try:
                result = original(engine, *args, **kwargs)
            finally:
                self._transfer = None
            self._end(transfer)
            return result

        return execute

    def _end(self, transfer: Transfer) -> None:
        """Record a transfer.

        For a receive, NCCL blocks the stream instead of the host, so the timer determines its end.
        """
        end_ns = now_ns()
        if transfer.wait_end is None:
            self._emit(transfer, end_ns, NONE, NONE)
        elif transfer.kind in RECEIVES:
            self.recorder.timer.resolve(
                lambda start_ns, wait_end_ns: self._emit(transfer, wait_end_ns, start_ns, wait_end_ns),
                transfer.wait_start,
                transfer.wait_end,
            )
        else:
            self._emit(transfer, end_ns, transfer.wait_start, transfer.wait_end)

    def _emit(self, transfer: Transfer, end_ns: int, wait_start_ns: int, wait_end_ns: int) -> None:
        self.recorder.emit(
            transfer.kind,
            transfer.start_ns,
            end_ns,
            *transfer.place,
            transfer.peer,
            transfer.size_bytes,
            wait_start_ns,
            wait_end_ns,
            step=transfer.step,
        )

    def _timed_on_host(self, name: str, kind: int, original: Function) -> Function:
        def execute(engine: Any, *args: Any, **kwargs: Any) -> Any:
            place = self._next_place(name, engine)
            if not self.recorder.enabled:
                return original(engine, *args, **kwargs)
            start_ns = now_ns()
            result = original(engine, *args, **kwargs)
            microbatch = NONE if kind == GRAD_REDUCE else place.microbatch
            name_id = self.recorder.name_id(name)
            self.recorder.emit(kind, start_ns, now_ns(), place.stage, microbatch, place.chunk, name=name_id)
            return result

        return execute

    def _train_batch(self, original: Function) -> Function:
        def train_batch(engine: Any, *args: Any, **kwargs: Any) -> Any:
            return self.runs.step(lambda: original(engine, *args, **kwargs))

        return train_batch

    def _eval_batch(self, original: Function) -> Function:
        def eval_batch(engine: Any, *args: Any, **kwargs: Any) -> Any:
            return self.runs.evaluation(lambda: original(engine, *args, **kwargs))

        return eval_batch

    def _exec_schedule(self, original: Function) -> Function:
        def exec_schedule(engine: Any, pipe_schedule: Any, *args: Any, **kwargs: Any) -> Any:
            self._counts.clear()
            self.optimizers.forget()
            if self.recorder.enabled:
                self._describe(engine, pipe_schedule)
            return original(engine, pipe_schedule, *args, **kwargs)

        return exec_schedule

    def _without_counting(self, original: Function) -> Function:
        """Wrap a method that sends or receives shapes, which are not part of the message."""

        def pass_shapes(engine: Any, *args: Any, **kwargs: Any) -> Any:
            transfer, self._transfer = self._transfer, None
            try:
                return original(engine, *args, **kwargs)
            finally:
                self._transfer = transfer

        return pass_shapes

    def _moved(self, original: Function) -> Function:
        """Wrap ``p2p.send`` or ``p2p.recv``, which block the host if the backend does (gloo)."""

        def move(tensor: Any, stage: Any, *args: Any, **kwargs: Any) -> Any:
            transfer = self._transfer
            if transfer is None:
                return original(tensor, stage, *args, **kwargs)
            read = self.recorder.timer.begin if transfer.kind in RECEIVES else now_ns
            if transfer.wait_start is None:
                transfer.wait_start = read()
            result = original(tensor, stage, *args, **kwargs)
            transfer.wait_end = read()
            self._add(transfer, tensor, stage)
            return result

        return move

    @never_raises()
    def _add(self, transfer: Transfer, tensor: Any, stage: Any) -> None:
        transfer.size_bytes += tensor.numel() * tensor.element_size()
        transfer.peer = self._p2p._grid.stage_to_global(stage_id=stage)  # noqa: SLF001  # the same lookup as in p2p

    @never_raises(default=Place())
    def _next_place(self, name: str, engine: Any) -> Place:
        """Return the place of the next instruction of a kind. Counts even while recording is off."""
        microbatch = self._counts[name]
        self._counts[name] = microbatch + 1
        return Place(engine.stage_id, microbatch, 0)

    @never_raises()
    def _describe(self, engine: Any, schedule: Any) -> None:
        """Describe a training schedule in the header, once per schedule."""
        schedule_class = type(schedule).__name__
        facts = (schedule_class, engine.micro_batches)
        if schedule_class == "InferenceSchedule" or facts == self._described:
            return
        self._described = facts
        self.recorder.timer.set_tensor_device(str(engine.device))
        self.recorder.describe(**engine_facts(engine, schedule_class))


def engine_facts(engine: Any, schedule_class: str) -> dict[str, object]:
    """Return the header facts about an engine: its schedule, sizes, and the coordinates of this rank."""
    import torch.distributed as dist  # already imported by the training

    coordinates = engine.grid.topology().get_coord(engine.global_rank)._asdict()
    names = {"pp": "pipe", "dp": "data", "tp": "model"}
    return {
        "framework": {
            "name": "deepspeed",
            "version": getattr(sys.modules.get("deepspeed"), "__version__", None),
        },
        "device": str(engine.device),
        "rank": engine.global_rank,
        "world_size": dist.get_world_size(),
        "parallel": {
            **{ours: coordinates[theirs] for ours, theirs in names.items() if theirs in coordinates},
            "pp_size": engine.num_stages,
            "pp_ranks": [engine.grid.stage_to_global(stage_id=stage) for stage in range(engine.num_stages)],
        },
        "schedule": {
            "name": SCHEDULES.get(schedule_class, schedule_class),
            "class": schedule_class,
            "microbatches": engine.micro_batches,
            "stages": engine.num_stages,
            "local_stages": [engine.stage_id],
        },
    }


def _restore(instructions: dict[type, Function], instruction: type, ours: Function) -> None:
    """Restore the original of an instruction, unless other code has replaced ours since."""
    if instructions.get(instruction) is ours:
        instructions[instruction] = getattr(ours, MARK)
