"""The instructions of DeepSpeed's pipeline engine that compute or load a micro-batch.

An instruction contains its buffer, not its micro-batch. Each kind of instruction processes the micro-batches of a
batch in order (runtime/pipe/schedule.py), in DualPipeV those of each phase, so the micro-batch is the number of
earlier instructions of the same kind and phase. They are counted even while recording is off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.record.calls import never_raises
from stagescope.record.clock import now_ns
from stagescope.record.data_sizes import count_data, count_shapes
from stagescope.record.frameworks.actions_in_progress import ActionsInProgress
from stagescope.record.frameworks.deepspeed_facts import stage_of
from stagescope.record.frameworks.runs import BACKWARD, FORWARD, UNKNOWN, Place
from stagescope.record.hooks import Timed
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.record.calls import Call, Signature
    from stagescope.record.frameworks.runs import Runs

    Action = tuple[int, int, int, int]
    Arguments = tuple[Any, ...]
    Keywords = dict[str, Any]
    Numbers = tuple[int, int, int]  # those of a Place

KINDS = {"ForwardPass": FORWARD, "BackwardPass": BACKWARD}
LOAD = "LoadMicroBatch"
OTHER = BY_NAME["other"].code


class Actions(ActionsInProgress):
    """The actions in progress, and the numbers of the instructions of a batch.

    `is_known` states that all instructions of the engine are observed: only then they are recorded.
    """

    def __init__(self, runs: Runs) -> None:
        super().__init__(runs.recorder)
        self.is_known = True
        self._runs = runs
        self._numbers: dict[str, dict[int, int]] = {}
        self._shapes: dict[int, Sequence[int]] = {}
        self._kind: object = None

    def begin_batch(self) -> None:
        """Begin to number the instructions from 0 again."""
        for numbers in self._numbers.values():
            numbers.clear()
        self._shapes = {}
        self.forget()

    def end_batch(self) -> None:
        """Count the data that were loaded."""
        shapes, self._shapes = self._shapes, {}
        if shapes:
            count_shapes(self.recorder, shapes, self._kind)

    def numbers(self, name: str) -> dict[int, int]:
        """Return how many instructions of a kind there were in this batch, by phase."""
        return self._numbers.setdefault(name, {})

    def passes(self, name: str, signature: Signature) -> Timed:
        """Return what sees the instruction of a forward or a backward."""
        recorder, runs, numbers, kind = self.recorder, self._runs, self.numbers(name), KINDS[name]
        phase_of = signature.parameter("phase")

        def identify(args: Arguments, kwargs: Keywords) -> Action | None:
            phase = int(phase_of.of(args, kwargs, 0)) if len(args) + len(kwargs) > LEAST else 0
            number = numbers.get(phase, 0)
            numbers[phase] = number + 1
            if not recorder.enabled or not self.is_known:
                return None
            if recorder.alone is not None and recorder.alone is not runs:
                return None
            try:
                return kind, args[0].stage_id if phase == 0 else stage_of(args[0], phase), number, phase
            except AttributeError:
                return (kind, *self.place_of(args[0], phase, number))

        return Timed(self, identify, always=True)

    def next_place(self, name: str, call: Call) -> Place:
        """Return the place of the next instruction of a kind and phase."""
        phase, numbers = int(call.get("phase", 0)), self.numbers(name)
        number = numbers.get(phase, 0)
        numbers[phase] = number + 1
        return Place(*self.place_of(call.owner, phase, number))

    def place_of(self, engine: Any, phase: int, number: int) -> Numbers:
        """Return the place of an instruction: its stage, micro-batch and phase."""
        try:
            return engine.stage_id if phase == 0 else stage_of(engine, phase), number, phase
        except AttributeError as error:
            self.recorder.warn(f"cannot record the stages of DeepSpeed's engine: {error!r}")
            return UNKNOWN

    @never_raises()
    def count(self, engine: Any, buffer: int, microbatch: int) -> None:
        """Keep the shape of the data that the first stage has loaded, or count data of an unusual form now."""
        loaded = getattr(engine, "pipe_buffers", {}).get("inputs", ())
        if self.recorder.counters.is_given or buffer >= len(loaded):
            return
        data = loaded[buffer]
        first = data[0] if type(data) is tuple and data else data
        shape = getattr(first, "shape", None)
        if shape is None:
            count_data(self.recorder, data, 0, microbatch)
            return
        self._shapes[microbatch], self._kind = shape, first.dtype


LEAST = 2
"""Arguments of an instruction without a phase: the engine and the buffer."""


class Load:
    """Watches the instruction that loads a micro-batch."""

    def __init__(self, actions: Actions, signature: Signature) -> None:
        self._actions = actions
        self._recorder = actions.recorder
        self._numbers = actions.numbers(LOAD)
        self._phase = signature.parameter("phase")
        self._buffer = signature.parameter("buffer_id")

    def begin(self, args: Arguments, kwargs: Keywords) -> tuple[Any, int, int, int, int] | None:
        """Return the engine, the buffer, micro-batch and phase, and when the loading began."""
        phase = int(self._phase.of(args, kwargs, 0)) if len(args) + len(kwargs) > LEAST else 0
        number = self._numbers.get(phase, 0)
        self._numbers[phase] = number + 1
        if not self._recorder.enabled or not self._actions.is_known:
            return None
        buffer = kwargs["buffer_id"] if "buffer_id" in kwargs else self._buffer.of(args, kwargs, 0)
        return args[0], buffer, number, phase, now_ns()

    def end(self, state: tuple[Any, int, int, int, int], result: Any) -> None:
        """Record the loading, and count the data."""
        del result
        end_ns, recorder = now_ns(), self._recorder
        engine, buffer, number, phase, start_ns = state
        stage, microbatch, chunk = self._actions.place_of(engine, phase, number)
        name = recorder.name_ids.get(LOAD) or recorder.name_id(LOAD)
        recorder.emit_action(OTHER, start_ns, end_ns, stage, microbatch, chunk, name)
        if stage == 0:
            self._actions.count(engine, buffer, number)

    def abandon(self, state: Any) -> None:
        """Forget a loading that failed."""
