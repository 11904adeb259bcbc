"""What the hooks of several frameworks need alike: where a step begins, the action that is running, what belongs to whom.

Frameworks tell a backward pass which tensors it works on, seldom which micro-batch. But the very object that a
forward pass returned comes back, so its action is found by the object's identity.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.record.format import NONE
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.recorder import Recorder

FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, LOSS, OPTIMIZER = (
    BY_NAME[name].code
    for name in ("forward", "backward", "backward_input", "backward_weight", "loss", "optimizer")
)


class Place(NamedTuple):
    """Where a action belongs: global stage, micro-batch, local chunk; `NONE` for what is not known."""

    stage: int = NONE
    microbatch: int = NONE
    chunk: int = NONE


UNKNOWN = Place()


class Kept:
    """Values found by the identity of the object that they belong to, until they are taken or the run ends.

    An object is referred to weakly, or a recorder would keep activations and gradients in memory. One that cannot be
    (a list, a dict) is held: its number would else be given to another one.
    """

    def __init__(self) -> None:
        self._values: dict[int, tuple[Callable[[], object], Any]] = {}

    def keep(self, owner: object, value: Any) -> None:
        """Remember `value` for an object; nothing is kept for None."""
        if owner is None:
            return
        try:
            refer: Callable[[], object] = weakref.ref(owner)
        except TypeError:
            refer = _Holder(owner)
        self._values[id(owner)] = (refer, value)

    def find(self, owner: object, default: Any = None) -> Any:
        """Return what belongs to an object."""
        refer, value = self._values.get(id(owner), (None, None))
        return value if refer is not None and refer() is owner else default

    def take(self, owner: object, default: Any = None) -> Any:
        """Return what belongs to an object, and let go of both."""
        value = self.find(owner, default)
        self._values.pop(id(owner), None)
        return value

    def clear(self) -> None:
        """Let go of everything."""
        self._values.clear()


class _Holder:
    """Refers to an object as a weak reference does, and holds it."""

    __slots__ = ("_owner",)

    def __init__(self, owner: object) -> None:
        self._owner = owner

    def __call__(self) -> object:
        return self._owner


class Runs:
    """The runs of a schedule in one process: training steps, and evaluations, which belong to no step.

    A framework's entry points call one another, and those of a framework that it is built on (MindSpeed's schedule
    runs inside Megatron's train_step); the outermost one is the run.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.places = Kept()
        self._counts: Counter[tuple[int, int]] = Counter()

    @property
    def inside(self) -> bool:
        """Whether a run is going on in this process."""
        return self.recorder in _running

    def forget(self) -> None:
        """Forget the actions of the last run; a run that is the outermost does so itself when it ends."""
        self._counts.clear()
        self.places.clear()

    def step(self, call: Callable[[], Any]) -> Any:
        """Return what `call` returns, recorded as one training step."""
        if self.inside:
            return call()
        start_ns = self.recorder.begin_step()
        result = self._run(call)
        self.recorder.end_step(start_ns)
        return result

    def evaluation(self, call: Callable[[], Any]) -> Any:
        """Return what `call` returns; its actions are recorded without a step."""
        if self.inside:
            return call()
        step, self.recorder.step = self.recorder.step, NONE
        try:
            return self._run(call)
        finally:
            self.recorder.step = step

    def next_number(self, kind: int, chunk: int) -> int:
        """Return how many actions of this kind this chunk has had in this run: its micro-batch, in a FIFO order."""
        number = self._counts[kind, chunk]
        self._counts[kind, chunk] = number + 1
        return number

    def action(
        self,
        kind: int,
        place: Place,
        call: Callable[[], Any],
        kind_after: Callable[[], int] | None = None,
    ) -> Any:
        """Return what `call` returns, recorded as one action; one that fails is none.

        `kind_after` says the kind where only the action itself decides it, as whether a backward was split.
        """
        recorder = self.recorder
        if not recorder.enabled:
            return call()
        if recorder.mirror is not None:
            call = recorder.mirror.around(kind, place.stage, place.microbatch, call)
        token = recorder.timer.begin()
        result = call()
        recorder.timer.end(token, kind_after() if kind_after else kind, *place)
        return result

    def pair(self, forward: Place, backward: Place, call: Callable[[], Any]) -> Any:
        """Return what `call` returns, recorded as a forward and a backward that overlap."""
        recorder = self.recorder
        if not recorder.enabled:
            return call()
        if recorder.mirror is not None:
            inner = recorder.mirror.around(BACKWARD, backward.stage, backward.microbatch, call)
            call = recorder.mirror.around(FORWARD, forward.stage, forward.microbatch, inner)
        number = recorder.new_pair()
        token = recorder.timer.begin()
        result = call()
        recorder.timer.end(token, FORWARD, *forward, 0, number)
        recorder.timer.end(token, BACKWARD, *backward, 0, number)
        return result

    def _run(self, call: Callable[[], Any]) -> Any:
        _running.add(self.recorder)
        try:
            return call()
        finally:
            _running.discard(self.recorder)
            self.forget()


_running: weakref.WeakSet[Recorder] = weakref.WeakSet()
"""The recorders that are inside a run, whichever framework has begun it."""
