"""The instructions of DeepSpeed's pipeline engine that compute or load a micro-batch.

An instruction contains its buffer, not its micro-batch. Each kind of instruction processes the micro-batches of a
batch in order (runtime/pipe/schedule.py), in DualPipeV those of each phase, so the micro-batch is the number of
earlier instructions of the same kind and phase. They are counted even while recording is off. Wrappers in C take the
usual calls; see native/deepspeed.c.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.record.calls import never_raises
from stagescope.record.clock import now_ns
from stagescope.record.data_sizes import count_data, count_shapes
from stagescope.record.frameworks.actions_in_progress import ActionsInProgress
from stagescope.record.frameworks.deepspeed_facts import stage_of
from stagescope.record.frameworks.runs import BACKWARD, FORWARD, UNKNOWN
from stagescope.record.hooks import Timed
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.record.calls import Signature
    from stagescope.record.compiled import Moves
    from stagescope.record.frameworks.runs import Runs

    Action = tuple[int, int, int, int]
    Arguments = tuple[Any, ...]
    Keywords = dict[str, Any]
    Numbers = tuple[int, int, int]  # those of a Place

KINDS = {"ForwardPass": FORWARD, "BackwardPass": BACKWARD}
LOAD = "LoadMicroBatch"
OTHER = BY_NAME["other"].code
MOST_STAGES = 2**15
LEAST = 2
"""Arguments of an instruction without a phase: the engine and the buffer."""


class Actions(ActionsInProgress):
    """The actions in progress, and the numbers of the instructions of a batch.

    `is_known` states that all instructions of the engine are observed: only then they are recorded. The `moves`, which
    wrappers in C read, state it too. `shapes` has that of the first tensor of each micro-batch that was loaded.
    """

    def __init__(self, runs: Runs, moves: Moves | None = None) -> None:
        super().__init__(runs.recorder)
        self.is_known = True
        self.moves = moves
        self.shapes: dict[int, Sequence[int]] = {}
        self._runs = runs
        self._numbers: dict[str, dict[int, int]] = {}
        self._kind: object = None

    def begin_batch(self, engine: Any, *, is_known: bool) -> None:
        """Begin to number the instructions from 0 again."""
        self.is_known = is_known
        if self.moves is not None:
            self.moves.is_known = is_known
            self._show_stages(self.moves, engine)
        for numbers in self._numbers.values():
            numbers.clear()
        self.shapes.clear()
        self.forget()

    def end_batch(self) -> None:
        """Count the data that were loaded, unless the training counts them."""
        if self.moves is not None:
            self.moves.engine = None
        if self.shapes:
            if not self.recorder.counters.is_given:
                count_shapes(self.recorder, self.shapes.copy(), self._kind)
            self.shapes.clear()

    @staticmethod
    def _show_stages(moves: Moves, engine: Any) -> None:
        """Let the wrappers in C know the stages of the engine, unless they are unusual."""
        moves.engine = None
        try:
            stage, stages = engine.stage_id, engine.num_stages
        except (AttributeError, LookupError):
            return
        if type(stage) is type(stages) is int and 0 <= stage < stages < MOST_STAGES:
            moves.stage, moves.mirror = stage, 2 * stages - 1 - stage  # as in stage_of
            moves.engine = engine

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

        usual = None if self.moves is None else ("pass", (self.moves, numbers, runs), (kind, phase_of.place))
        return Timed(self, identify, always=True, usual=usual)

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
        if buffer >= len(loaded):
            return
        data = loaded[buffer]
        first = data[0] if type(data) is tuple and data else data
        shape = getattr(first, "shape", None)
        if shape is None:
            count_data(self.recorder, data, 0, microbatch)
            return
        if not self.shapes:  # all have the same type
            self._kind = first.dtype
        self.shapes[microbatch] = shape


class Load:
    """Watches the instruction that loads a micro-batch."""

    def __init__(self, actions: Actions, signature: Signature) -> None:
        self._actions = actions
        self.recorder = recorder = actions.recorder
        self._numbers = actions.numbers(LOAD)
        self._phase = signature.parameter("phase")
        self._buffer = signature.parameter("buffer_id")
        if actions.moves is not None and self._buffer.place == 1:
            refs = (actions.moves, self._numbers, recorder.name_ids, LOAD, actions.shapes)
            self.usual = ("load", refs, (OTHER,))

    def begin(self, args: Arguments, kwargs: Keywords) -> tuple[Any, int, int, int, int] | None:
        """Return the engine, the buffer, micro-batch and phase, and when the loading began."""
        phase = int(self._phase.of(args, kwargs, 0)) if len(args) + len(kwargs) > LEAST else 0
        number = self._numbers.get(phase, 0)
        self._numbers[phase] = number + 1
        if not self.recorder.enabled or not self._actions.is_known:
            return None
        buffer = kwargs["buffer_id"] if "buffer_id" in kwargs else self._buffer.of(args, kwargs, 0)
        return args[0], buffer, number, phase, now_ns()

    def end(self, state: tuple[Any, int, int, int, int], result: Any) -> None:
        """Record the loading, and count the data."""
        del result
        end_ns, recorder = now_ns(), self.recorder
        engine, buffer, number, phase, start_ns = state
        stage, microbatch, chunk = self._actions.place_of(engine, phase, number)
        name = recorder.name_ids.get(LOAD) or recorder.name_id(LOAD)
        recorder.emit_action(OTHER, start_ns, end_ns, stage, microbatch, chunk, name)
        if stage == 0:
            self.count(engine, buffer, number)

    def count(self, engine: Any, buffer: int, number: int) -> None:
        """Count the data of a micro-batch."""
        self._actions.count(engine, buffer, number)

    def abandon(self, state: Any) -> None:
        """Forget a loading that failed."""
