"""Reads the action names that torch's runtime schedules pass to ``record_function("PP:<action>")``.

Grammar of an action, torch 2.9 to 2.15 ``_Action.__str__``: ``1F0``, ``6I3``, ``6W3``, ``1B2``, ``1SEND_F0``,
``4UNSHARD``, ``0REDUCE_GRAD``, ``(1F6;6B2)OVERLAP_F_B``; from 2.15 on ``1WAIT_SEND_F0`` and ``0WAIT_REDUCE_GRAD``,
whose waits are observed where they take place.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.record import compiled
from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.frameworks.collectives import GRAD_REDUCE
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from stagescope.record.frameworks.torch_pipelining import Instrumentation
    from stagescope.record.hooks import Guard

PREFIX = "PP:"
OPENED = "_stagescope_opened"
"""Slot of an open range: its action, the receives and the reductions before it, when it began, and the range around it
if it computes an action.
"""

MOST_UNSEEN = 1 << 16

REDUCE_GRAD = "REDUCE_GRAD"
_ACTION = re.compile(r"(\d+)(REDUCE_GRAD|[FBIW])(\d*)$")
_HOUSEKEEPING = re.compile(r"(\d+)(UNSHARD|RESHARD)$")
_KIND_OF_LETTER = {
    "F": BY_NAME["forward"].code,
    "B": BY_NAME["backward"].code,
    "I": BY_NAME["backward_input"].code,
    "W": BY_NAME["backward_weight"].code,
    REDUCE_GRAD: GRAD_REDUCE,
}
_OTHER = BY_NAME["other"].code


class Action(NamedTuple):
    """A parsed range name: its actions as (kind, stage, micro-batch), or a housekeeping action and its stage.

    `reduces` states that it reduces the gradients of the stage.
    """

    parts: tuple[tuple[int, int, int], ...]
    housekeeping: str
    stage: int
    reduces: bool = False


@functools.lru_cache(maxsize=1 << 16)
def parse_action(text: str) -> Action:
    """Return the parsed range name; an unknown one has neither actions nor housekeeping.

    >>> parse_action("PP:(1F6;6B2)OVERLAP_F_B").parts
    ((1, 1, 6), (2, 6, 2))
    """
    if not text.startswith(PREFIX):
        return Action((), "", NONE)
    body = text.removeprefix(PREFIX)
    if housekeeping := _HOUSEKEEPING.fullmatch(body):
        return Action((), housekeeping[2], int(housekeeping[1]))
    inner = body[1:].split(")")[0].split(";") if body.startswith("(") else [body]
    found = [_ACTION.fullmatch(part) for part in inner]
    parts = tuple(
        (_KIND_OF_LETTER[part[2]], int(part[1]), int(part[3]) if part[3] else NONE) for part in found if part
    )
    return Action(parts, "", NONE, reduces=bool(parts) and parts[0][0] == GRAD_REDUCE)


OUTSIDE = (False, NONE, None)
"""What `Emitter.enter_range` returns outside of other ranges."""


class ActionRanges:
    """Observes the ranges that the schedules enter for their actions.

    They show which actions overlap, and actions that a custom function performs without the stage's methods. `unseen`
    are the names of ranges that show nothing: those of single actions that are certainly performed by these methods.
    `brief` has the actions of ranges of which only the end is observed: those of housekeeping. `pairs` are the names
    of ranges of several actions that are certainly performed by these methods, whose objects a wrapper in C can make.
    """

    def __init__(self, instrumentation: Instrumentation) -> None:
        self.recorder = instrumentation.recorder
        self._instrumentation = instrumentation
        self._messages = instrumentation.messages
        self._collectives = instrumentation.collectives
        self.customized: frozenset[str] | None = None
        self.unseen: set[str] = set()
        self.brief: dict[str, Action] = {}
        self.pairs: set[str] = set()
        self.on_customized: Callable[[bool], object] = bool
        """Called with `are_certain` where that may have changed."""

    @property
    def are_certain(self) -> bool:
        """Whether the methods of stages certainly perform all actions."""
        return self.customized is not None and not self.customized

    def customize(self, functions: frozenset[str] | None) -> None:
        """Note the actions that the training performs with functions of its own, None if that is unknown."""
        if functions != self.customized:
            self.customized = functions
            self.unseen.clear()
            self.pairs.clear()
            self.on_customized(self.are_certain)

    def entered(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """See a range that has been entered, the first of the arguments."""
        del kwargs, result
        opened = args[0]
        action = parse_action(opened.name)
        parts = action.parts
        recorder, outer = self.recorder, None
        if action.housekeeping:
            begun = now_ns()
            if len(self.brief) < MOST_UNSEEN:
                self.brief[opened.name] = action
        elif parts and not action.reduces:
            begun = recorder.timer.begin()
            outer = recorder.enter_range(self._instrumentation.passes.seen, is_pair=len(parts) > 1)
            if len(parts) == 1 and self._is_certain():
                self.unseen.add(opened.name)
        elif parts:
            begun = recorder.timer.begin()
            self._collectives.reductions += 1
        else:
            if len(self.unseen) < MOST_UNSEEN:
                self.unseen.add(opened.name)
            return
        setattr(opened, OPENED, (action, self._messages.receives, self._collectives.reduced, begun, outer))

    def left(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """See a range that is about to end; the arguments are the range and the type of the exception that ends it."""
        del kwargs
        opened, error = args[:2]
        facts = getattr(opened, OPENED, None)
        if facts is None:
            return
        setattr(opened, OPENED, None)
        recorder, (action, receives, reduced, begun, outer) = self.recorder, facts
        if action.reduces:
            self._collectives.reductions -= 1
        try:
            if not recorder.enabled or error is not None:
                return
            if action.housekeeping:
                name = recorder.name_ids.get(action.housekeeping) or recorder.name_id(action.housekeeping)
                recorder.emit_action(_OTHER, begun, now_ns(), action.stage, NONE, NONE, name)
            elif outer is not None or self._reduces_itself(reduced):
                has_received = self._messages.receives > receives
                begun = self._messages.last_receive if has_received else begun
                if not self._record_unseen(action, begun) and len(action.parts) > 1 and self._is_certain():
                    self.pairs.add(opened.name)
        finally:
            recorder.computed = None
            if outer is not None:
                recorder.leave_range(outer)

    def _is_certain(self) -> bool:
        """Return whether the methods of stages perform all actions, and there is place for one more name."""
        return self.are_certain and len(self.unseen) + len(self.pairs) < MOST_UNSEEN

    def leave_all(self) -> None:
        """Leave the ranges in progress: none is outside of the runs of a schedule."""
        recorder = self.recorder
        if recorder.is_in_range or recorder.pair != NONE:
            recorder.leave_range(OUTSIDE)

    def _reduces_itself(self, reduced: int) -> bool:
        """Return whether a function of the training has reduced gradients, without any collective since `reduced`."""
        return self._collectives.reduced == reduced and REDUCE_GRAD in (self.customized or ())

    def _record_unseen(self, action: Action, begun: Any) -> bool:
        """Record the actions of a range that bypassed the stage's methods, starting at the end of their last receive.

        Returns whether there were any.
        During an evaluation torch enters ranges of backwards too, without computing anything. A gradient reduction is
        recorded by its collectives; its range only if a custom function performs it without any.
        """
        passes = self._instrumentation.passes
        missing = [part for part in action.parts if not passes.is_recorded(*part)]
        for kind, stage, microbatch in missing:
            if kind == _KIND_OF_LETTER["F"] or not self._instrumentation.evaluates:
                passes.record(begun, kind, stage, microbatch)
        return bool(missing)


class RangeEnd:
    """Watches the method that ends a range, whose beginning has been seen."""

    def __init__(self, ranges: ActionRanges) -> None:
        self.begin = ranges.left

    def end(self, state: Any, result: Any) -> None:
        """See nothing."""

    def abandon(self, state: Any) -> None:
        """Forget nothing."""


def range_class(
    original: type, module: str, ranges: ActionRanges | None = None, guard: Guard | None = None
) -> type:
    """Return a subclass of torch's ``record_function`` for the schedules in `module`, whose methods can be observed.

    A range whose name is in `unseen` of `ranges` is one of torch's own class: it costs no call more than without
    recording. A wrapper in C makes those in `pairs` so, too, until the guard is off. One whose name is in `brief`
    begins where it is made, so only its end has to be observed.

    Those of torch's own class are left alone: the training may compile them with torch.jit. In a pickle the class is
    the ``record_function`` of the module, recorded or not.
    """
    name = original.__name__
    methods = {method: getattr(original, method) for method in ("__enter__", "__exit__")}
    facts = {"__doc__": original.__doc__, "__module__": module, "__qualname__": "record_function"}
    made = type(name, (original,), {**facts, "__slots__": (OPENED,), **methods})
    ended = type(name, (made,), {**facts, "__slots__": (), "__enter__": methods["__enter__"]})
    unseen: Collection[str] = () if ranges is None else ranges.unseen  # which are filled later
    brief: Mapping[str, Action] = {} if ranges is None else ranges.brief

    def make(cls: type, text: object = None, *args: Any, **kwargs: Any) -> Any:
        if cls is made and text.__class__ is str:
            if text in unseen:
                return original(text, *args, **kwargs) if args or kwargs else original(text)
            if text in brief:
                one: Any = object.__new__(ended)
                setattr(one, OPENED, (brief[text], 0, 0, now_ns(), None))
                return one
        return object.__new__(cls)

    maker: Any = make
    if ranges is not None and guard is not None:
        maker = compiled.range_maker(make, made, original, ranges, guard)
    maker.__wrapped__ = vars(original).get("__init__")  # for the signature of the class
    made.__new__ = staticmethod(maker)  # type: ignore[method-assign]
    return made


NOTHING: frozenset[str] = frozenset()


def customized_actions(functions: Collection[Any] | None) -> frozenset[str] | None:
    """Return the names of the actions that the training performs with functions of its own (torch 2.10).

    `functions` has the types of these actions. None for schedules of other versions, which do not state them.
    """
    if functions is None:
        return None
    return frozenset(kind.name for kind in functions) if functions else NOTHING
