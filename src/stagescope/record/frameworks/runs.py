"""The parts shared by the hooks of several frameworks: steps, actions, and values found by object identity.

Frameworks pass a backward the tensors it works on, but rarely the micro-batch. The object that a forward returned is
passed back unchanged, however, so the action is found by the identity of that object.
"""

from __future__ import annotations

import weakref
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.record.format import NONE
from stagescope.record.frameworks.host_activities import EVALUATION, activities_of
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, KeysView

    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, Any]

FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, LOSS, OPTIMIZER = (
    BY_NAME[name].code
    for name in ("forward", "backward", "backward_input", "backward_weight", "loss", "optimizer")
)
ACTIONS = (FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)


class Place(NamedTuple):
    """The place of an action: global stage, micro-batch, local chunk; `NONE` where unknown."""

    stage: int = NONE
    microbatch: int = NONE
    chunk: int = NONE


UNKNOWN = Place()


class IdentityMap:
    """Values found by the identity of an object, until they are taken or the run ends.

    `values` has a reference and a value by the id of each object, for callers that cannot afford another call.

    Objects are referenced weakly; otherwise the recorder would keep activations and gradients in memory. Objects
    without weak references (a list, a dict) are held, because their id could be reused by another object.
    """

    def __init__(self) -> None:
        self.values: dict[int, tuple[Callable[[], object], Any]] = {}

    def keep(self, owner: object, value: Any) -> None:
        """Store `value` for an object; does nothing for None."""
        if owner is None:
            return
        try:
            refer: Callable[[], object] = weakref.ref(owner)
        except TypeError:
            refer = _StrongReference(owner)
        self.values[id(owner)] = (refer, value)

    @property
    def ids(self) -> KeysView[int]:
        """The ids of the objects, as a view: an object whose id is missing certainly has no value."""
        return self.values.keys()

    def find(self, owner: object, default: Any = None) -> Any:
        """Return the value of an object."""
        refer, value = self.values.get(id(owner), (None, None))
        return value if refer is not None and refer() is owner else default

    def take(self, owner: object, default: Any = None) -> Any:
        """Return the value of an object, and remove both."""
        refer, value = self.values.pop(id(owner), (None, None))
        return value if refer is not None and refer() is owner else default

    def discard(self, is_over: Callable[[Any], bool]) -> None:
        """Remove the values for which `is_over` returns True; it receives None for an object that is gone."""
        values = self.values
        for key, (refer, value) in list(values.items()):
            if is_over(None if refer() is None else value):
                del values[key]

    def clear(self) -> None:
        """Remove everything."""
        self.values.clear()


class _StrongReference:
    """Has the interface of a weak reference, but holds the object."""

    __slots__ = ("_owner",)

    def __init__(self, owner: object) -> None:
        self._owner = owner

    def __call__(self) -> object:
        return self._owner


class Run(NamedTuple):
    """A run in progress: when its step began and whether that is recorded, or the activity that an evaluation is.

    `step` is the number of the step before an evaluation.
    """

    start_ns: int | None
    enabled: bool = False
    step: int = NONE
    activity: Observation | None = None


INNER, MARKED = Run(None), Run(None)
"""A run inside another one, and one inside a step that the training marks itself."""


class Runs:
    """The runs of a schedule in one process: training steps, and evaluations, which belong to no step.

    Entry points of a framework call one another, and those of the framework it is built on (MindSpeed's schedule runs
    inside Megatron's train_step). The outermost call is the run.

    The methods named `observe_...` are observers (see hooks.py), used with ``yield from``: they return the result of
    the observed call. `framework` is the name in messages.
    """

    def __init__(self, recorder: Recorder, framework: str = "") -> None:
        self.recorder = recorder
        self.framework = framework
        self.places = IdentityMap()
        self._placed = self.places.ids
        self._counts: Counter[tuple[int, int]] = Counter()

    @property
    def has_places(self) -> bool:
        """Whether there is anything to `forget`."""
        return bool(self._counts or self._placed)

    @property
    def inside(self) -> bool:
        """Whether this process is inside a run."""
        return self.recorder.is_in_run

    def forget(self) -> None:
        """Discard the actions of the last run. The outermost run does this itself when it ends."""
        self._counts.clear()
        self.places.clear()

    def begin(self, *, evaluates: bool = False) -> Run:
        """Begin a training step, or an evaluation: its actions belong to no step, and it is an activity between two.

        To be followed by `end` or `fail` with what this returns.
        """
        recorder = self.recorder
        if recorder.is_in_run:
            return INNER
        if evaluates:
            activity = activities_of(recorder).observe(EVALUATION)
            next(activity)
            run = Run(None, enabled=False, step=recorder.step, activity=activity)
            recorder.step = NONE
        elif recorder.is_in_marked_step:
            run = MARKED
        else:
            start_ns = recorder.begin_step()
            recorder.has_actions = False
            run = Run(start_ns, recorder.enabled)
        recorder.is_in_run = True
        return run

    def end(self, run: Run) -> None:
        """End what `begin` has begun. A step without any action is reported."""
        if run.start_ns is None:
            self.fail(run)
            return
        recorder = self.recorder
        recorder.is_in_run = False
        if self._counts or self._placed:
            self.forget()
        recorder.end_step(run.start_ns)
        if not recorder.has_actions and run.enabled and recorder.enabled:
            recorder.coverage.step_was_empty(self.framework, recorder.step)

    def fail(self, run: Run) -> None:
        """Leave what `begin` has begun, without recording a step."""
        if run is INNER:
            return
        self.recorder.is_in_run = False
        self.forget()
        if run.activity is not None:
            self.recorder.step = run.step
            run.activity.close()  # records the activity

    def observe_step(self) -> Observation:
        """Record the observed call as one training step. A step without any action is reported."""
        return self._observe(evaluates=False)

    def observe_evaluation(self) -> Observation:
        """Observe a run whose actions are recorded without a step, and which is an activity between two steps."""
        return self._observe(evaluates=True)

    def _observe(self, *, evaluates: bool) -> Observation:
        run = self.begin(evaluates=evaluates)
        is_done = False
        try:
            result = yield
            is_done = True
        finally:
            if not is_done:
                self.fail(run)
        self.end(run)
        return result

    def observe_alone(self) -> Observation:
        """Observe a schedule during which only actions of these Runs are recorded.

        MindSpeed, FlagScale and Primus call functions of Megatron that Megatron's hooks observe. In their schedules
        their own hooks know the stage of an action; Megatron's do not.
        """
        before, self.recorder.alone = self.recorder.alone, self
        try:
            return (yield)
        finally:
            self.recorder.alone = before

    @property
    def is_muted(self) -> bool:
        """Whether the schedule of another framework is running alone."""
        alone = self.recorder.alone
        return alone is not None and alone is not self

    def observe_action(
        self, kind: int, place: Place, kind_after: Callable[[], int] | None = None
    ) -> Observation:
        """Record the observed call as one action unless it raises.

        `kind_after` returns the kind if only the action itself determines it, such as whether a backward was split.
        """
        recorder = self.recorder
        if not recorder.enabled or self.is_muted:
            return (yield)
        recorder.has_actions |= kind in ACTIONS
        mirror = recorder.mirror
        if mirror is not None:
            mirror.open(kind, place.stage, place.microbatch)
        begin_action(recorder, kind, place)
        try:
            token = recorder.timer.begin()
            result = yield
            end_action(recorder, token, kind_after() if kind_after else kind, place)
        finally:
            leave_action(recorder)
            if mirror is not None:
                mirror.close()
        return result

    def observe_pair(self, forward: Place, backward: Place, kind_of_backward: int = BACKWARD) -> Observation:
        """Record the observed call as a forward and a backward that overlap."""
        recorder = self.recorder
        if not recorder.enabled or self.is_muted:
            return (yield)
        recorder.has_actions = True
        mirror, opened = recorder.mirror, 0
        try:
            for kind, place in ((FORWARD, forward), (kind_of_backward, backward)) if mirror else ():
                mirror.open(kind, place.stage, place.microbatch)  # type: ignore[union-attr]  # the loop has no turns
                opened += 1
            number = recorder.new_pair()
            begin_action(recorder, kind_of_backward, backward)
            token = recorder.timer.begin()
            result = yield
            recorder.timer.end(token, FORWARD, *forward, 0, number)
            end_action(recorder, token, kind_of_backward, backward, number)
        finally:
            leave_action(recorder)
            for _ in range(opened):
                mirror.close()  # type: ignore[union-attr]  # opened only with a mirror
        return result

    def next_number(self, kind: int, chunk: int) -> int:
        """Return the number of earlier actions of this kind and chunk in this run: the micro-batch, in FIFO order."""
        number = self._counts[kind, chunk]
        self._counts[kind, chunk] = number + 1
        return number


class RunWatch:
    """Watches a function that is one run: a training step, or an evaluation if it `evaluates`."""

    def __init__(self, runs: Runs, *, evaluates: bool = False) -> None:
        self._runs = runs
        self._evaluates = evaluates

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run:
        """Begin the run."""
        del args, kwargs
        return self._runs.begin(evaluates=self._evaluates)

    def end(self, state: Run, result: Any) -> None:
        """Record the end of the call."""
        del result
        self._runs.end(state)

    def abandon(self, state: Run | None) -> None:
        """Leave a run that has failed."""
        if state is not None:
            self._runs.fail(state)


def begin_action(recorder: Recorder, kind: int, place: Place) -> None:
    """Note the action in progress, for the collectives that it contains."""
    recorder.action = kind, *place


def leave_action(recorder: Recorder) -> None:
    """Note that no action is in progress."""
    recorder.action = recorder.computed = None


def end_action(
    recorder: Recorder, token: Any, kind: int, place: tuple[int, int, int], pair: int = NONE
) -> None:
    """Record the action from `token` until now, or until it began to wait for a gradient reduction at its end.

    `place` is a `Place`, or a plain tuple of the same numbers.
    """
    if recorder.computed is None:
        stage, microbatch, chunk = place
        recorder.timer.end(token, kind, stage, microbatch, chunk, 0, pair)
        return
    computed, recorder.computed = recorder.computed, None
    step = recorder.step

    def emit(start_ns: int, end_ns: int) -> None:
        recorder.emit(kind, start_ns, max(start_ns, end_ns), *place, pair=pair, step=step)

    recorder.timer.resolve(emit, token, computed)


@contextmanager
def stepping(recorder: Recorder) -> Iterator[None]:
    """Treat runs of schedules in the ``with`` block as parts of one step, which the caller records."""
    before, recorder.is_in_marked_step = recorder.is_in_marked_step, True
    try:
        yield
    finally:
        recorder.is_in_marked_step = before


def within(outer: Observation, inner: Observation) -> Observation:
    """Observe a call with `inner`, which begins after `outer` and ends before it."""
    next(outer)
    try:
        result = yield from inner
        with suppress(StopIteration):
            outer.send(result)
    finally:
        outer.close()
    return result
