"""Reads the action names that torch's runtime schedules pass to ``record_function("PP:<action>")``.

Grammar of an action, torch 2.13.0 ``_Action.__str__``: ``1F0``, ``6I3``, ``6W3``, ``1B2``, ``1SEND_F0``,
``4UNSHARD``, ``0REDUCE_GRAD``, ``(1F6;6B2)OVERLAP_F_B``.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from stagescope.record.frameworks.torch_pipelining import Instrumentation

PREFIX = "PP:"
_ACTION = re.compile(r"(\d+)(REDUCE_GRAD|[FBIW])(\d*)$")
_HOUSEKEEPING = re.compile(r"(\d+)(UNSHARD|RESHARD)$")
_KIND_OF_LETTER = {
    "F": BY_NAME["forward"].code,
    "B": BY_NAME["backward"].code,
    "I": BY_NAME["backward_input"].code,
    "W": BY_NAME["backward_weight"].code,
    "REDUCE_GRAD": BY_NAME["grad_reduce"].code,
}
_OTHER = BY_NAME["other"].code


class Action(NamedTuple):
    """A parsed range name: its actions as (kind, stage, micro-batch), or a housekeeping action and its stage."""

    parts: tuple[tuple[int, int, int], ...]
    housekeeping: str
    stage: int


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
    return Action(parts, "", NONE)


def make_action_range(original: Any, instrumentation: Instrumentation) -> type:
    """Return a subclass of torch's ``record_function`` that also records actions."""
    recorder = instrumentation.recorder

    class ActionRange(original):  # type: ignore[misc]  # the base class is only known once torch is imported
        """Marks an action for torch's profiler as before, and records what no other hook has recorded."""

        def __enter__(self) -> Any:
            self._action = parse_action(self.name)
            if len(self._action.parts) > 1:
                recorder.pair = recorder.new_pair()
            entered = super().__enter__()
            self._receives = instrumentation.messages.receives
            self._token = recorder.timer.begin() if self._action.parts else None
            self._start_ns = now_ns() if self._action.housekeeping else NONE
            return entered

        def __exit__(self, *error: object) -> Any:
            if recorder.enabled and error[0] is None:
                self._record()
            recorder.pair = NONE
            return super().__exit__(*error)

        def _record(self) -> None:
            if self._action.housekeeping:
                name = recorder.name_id(self._action.housekeeping)
                recorder.emit(_OTHER, self._start_ns, now_ns(), self._action.stage, name=name)
            elif instrumentation.messages.receives > self._receives:
                _record_unseen(instrumentation, self._action, instrumentation.messages.last_receive)
            else:
                _record_unseen(instrumentation, self._action, self._token)

    return ActionRange


def _record_unseen(instrumentation: Instrumentation, action: Action, begun: Any) -> None:
    """Record the actions of a range that bypassed the stage's methods, starting at the end of their last receive.

    During an evaluation torch enters ranges of backwards too, without computing anything.
    """
    for kind, stage, microbatch in action.parts:
        is_done = kind == _KIND_OF_LETTER["F"] or not instrumentation.evaluates
        if is_done and (kind, stage, microbatch) not in instrumentation.seen:
            instrumentation.end_action(begun, kind, stage, microbatch)
