"""The parts shared by the hooks of several frameworks: steps, actions, and values found by object identity.

Frameworks pass a backward the tensors it works on, but rarely the micro-batch. The object that a forward returned is
passed back unchanged, however, so the action is found by the identity of that object.
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
    """The place of an action: global stage, micro-batch, local chunk; `NONE` where unknown."""

    stage: int = NONE
    microbatch: int = NONE
    chunk: int = NONE


UNKNOWN = Place()


class IdentityMap:
    """Values found by the identity of an object, until they are taken or the run ends.

    Objects are referenced weakly; otherwise the recorder would keep activations and gradients in memory. Objects
    without weak references (a list, a dict) are held, because their id could be reused by another object.
    """

    def __init__(self) -> None:
        self._values: dict[int, tuple[Callable[[], object], Any]] = {}

    def keep(self, owner: object, value: Any) -> None:
        """Store `value` for an object; does nothing for None."""
        if owner is None:
            return
        try:
            refer: Callable[[], object] = weakref.ref(owner)
        except TypeError:
            refer = _StrongReference(owner)
        self._values[id(owner)] = (refer, value)

    def find(self, owner: object, default: Any = None) -> Any:
        """Return the value of an object."""
        refer, value = self._values.get(id(owner), (None, None))
        return value if refer is not None and refer() is owner else default

    def take(self, owner: object, default: Any = None) -> Any:
        """Return the value of an object, and remove both."""
        value = self.find(owner, default)
        self._values.pop(id(owner), None)
        return value

    def clear(self) -> None:
        """Remove everything."""
        self._values.clear()


class _StrongReference:
    """Has the interface of a weak reference, but holds the object."""

    __slots__ = ("_owner",)

    def __init__(self, owner: object) -> None:
        self._owner = owner

    def __call__(self) -> object:
        return self._owner


class Runs:
    """The runs of a schedule in one process: training steps, and evaluations, which belong to no step.

    Entry points of a framework call one another, and those of the framework it is built on (MindSpeed's schedule runs
    inside Megatron's train_step). The outermost call is the run.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.places = IdentityMap()
        self._counts: Counter[tuple[int, int]] = Counter()

    @property
    def inside(self) -> bool:
        """Whether this process is inside a run."""
        return self.recorder in _running

    def forget(self) -> None:
        """Discard the actions of the last run. The outermost run does this itself when it ends."""
        self._counts.clear()
        self.places.clear()

    def step(self, call: Callable[[], Any]) -> Any:
        """Return the result of `call`, recorded as one training step."""
        if self.inside:
            return call()
        start_ns = self.recorder.begin_step()
        result = self._run(call)
        self.recorder.end_step(start_ns)
        return result

    def evaluation(self, call: Callable[[], Any]) -> Any:
        """Return the result of `call`; its actions are recorded without a step."""
        if self.inside:
            return call()
        step, self.recorder.step = self.recorder.step, NONE
        try:
            return self._run(call)
        finally:
            self.recorder.step = step

    def next_number(self, kind: int, chunk: int) -> int:
        """Return the number of earlier actions of this kind and chunk in this run: the micro-batch, in FIFO order."""
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
        """Return the result of `call`, recorded as one action unless it raises.

        `kind_after` returns the kind if only the action itself determines it, such as whether a backward was split.
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
        """Return the result of `call`, recorded as a forward and a backward that overlap."""
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
"""The recorders that are inside a run, whichever framework started it."""
