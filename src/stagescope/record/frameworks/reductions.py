"""Calls whose collectives reduce the gradients of a stage, and reductions of all buckets of a backward."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.record.format import NONE
from stagescope.record.frameworks.collectives import ASYNCHRONOUS, GRAD_REDUCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.frameworks.collectives import Collectives, Issued
    from stagescope.record.frameworks.groups import Group
    from stagescope.record.recorder import Recorder

    Action = tuple[int, int, int, int]


ALL_REDUCE = f"all_reduce{ASYNCHRONOUS}"
"""The operation that C++ issues inside a backward."""


class Reduction:
    """Watches a function whose collectives reduce the gradients of a stage.

    `place` returns the stage and the chunk of a call.
    """

    def __init__(
        self, collectives: Collectives, place: Callable[[tuple[Any, ...], dict[str, Any]], tuple[int, int]]
    ) -> None:
        self._collectives = collectives
        self._recorder = collectives.recorder
        self._place = place

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Action | None, bool]:
        """Record the collectives of the call one by one, as reductions."""
        recorder = self._recorder
        stage, chunk = self._place(args, kwargs)
        before = recorder.action, recorder.is_one_by_one
        recorder.action, recorder.is_one_by_one = (GRAD_REDUCE, stage, NONE, chunk), True
        self._collectives.reductions += 1
        return before

    def end(self, state: tuple[Action | None, bool], result: Any) -> None:
        """Continue as before the call."""
        del result
        recorder = self._recorder
        before, recorder.is_one_by_one = state
        recorder.end_reduction(before)
        self._collectives.reductions -= 1

    def abandon(self, state: tuple[Action | None, bool] | None) -> None:
        """Continue as before a call that failed."""
        if state is not None:
            self.end(state, None)


class Buckets(NamedTuple):
    """The reduction of all buckets of one backward, from when the first one is full to the end of the wait.

    The wait is between two moments of the timer, from when everything was `computed` to the `end`. `place` is where it
    was issued, see `place_of`.
    """

    size_bytes: int
    place: tuple[int, int, int, int]
    start_ns: int
    end_ns: int
    computed: Any
    end: Any


def record_buckets(collectives: Collectives, group: Group, buckets: Buckets) -> None:
    """Record a reduction that C++ issues inside a backward, which ends, as an action, where the wait begins."""
    recorder = collectives.recorder
    size_bytes, place, start_ns, end_ns, computed, end = buckets
    name, sequence = recorder.name_id(group.name(ALL_REDUCE)), group.number()
    issued: Issued = (GRAD_REDUCE, name, sequence, size_bytes, place, start_ns, end_ns)
    recorder.timer.resolve(partial(collectives.emit, issued), computed, end)


def place_of(recorder: Recorder) -> tuple[int, int, int, int]:
    """Return the step, stage and chunk of the action in progress, and that a reduction of buckets has no root."""
    return recorder.step, recorder.stage, recorder.chunk, NONE
