"""Where a action begins and ends, between the annotation around it and the operators in it.

An annotation is wider than the action in it by what the schedule and the profiler do around the action; the first and
the last operator are narrower by what Python does before and after. The action's edge lies between the two: half way
where little is between, because the stretches have much the same to do there. The longer the stretch the less of it
is taken off, because then the model works for long before its first operator, as the autograd engine does, or the
process had to wait for a processor. How far an edge can be off is known for every action.

The shares are those that were measured beside the recorder on CPU runs of all schedules of torch 2.13.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stagescope.ingest.kineto.operator_classes import (
    BACKWARD,
    CLOSING,
    HANDLINGS,
    LOSS,
    RECEIVE,
    SEND,
    SPLITTING,
)

if TYPE_CHECKING:
    import numpy.typing as npt
    import polars as pl

    Times = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

HALF_OF_START_NS = 50_000
"""Half of what is before the first operator is taken off, up to this, or a fifth of it, up to twice this."""
MOST_OFF_END_NS = 100_000
"""Half of what is behind the last operator is taken off, up to this."""
MOST_OFF_BEFORE_SEND_NS = 200_000
"""Before a send it is three fifths, up to this: its preparation is no part of the action."""
CLOSED_NS = 10_000
"""What a backward does at most behind an operator that closes it, if the system lets it run."""
NEVER = np.iinfo(np.int64).max


class Edges(NamedTuple):
    """Start and end of actions, and how far the worse of the two can be off."""

    start_ns: Times
    end_ns: Times
    error_ns: Times


class Operators:
    """The operators of one process, searchable by time: those that compute, and the marks among them."""

    def __init__(self, operators: pl.DataFrame) -> None:
        ordered = operators.sort("start_ns", "end_ns", descending=[False, True])
        what, start_ns, end_ns = (ordered[name].to_numpy() for name in ("what", "start_ns", "end_ns"))
        computes = ~np.isin(what, (SEND, RECEIVE, *HANDLINGS))
        self.start_ns: Times = start_ns[computes]
        self.end_ns: Times = end_ns[computes]
        self.latest_ns: Times = np.maximum.accumulate(self.end_ns) if len(self.end_ns) else self.end_ns
        self.backward_ns: Times = start_ns[what == BACKWARD]
        self.closing_ns: Times = end_ns[what == CLOSING]
        self.split_end_ns: Times = np.sort(end_ns[what == SPLITTING])
        self.send_ns: Times = start_ns[what == SEND]
        self.work_end_ns: Times = np.sort(end_ns[~np.isin(what, (SEND, RECEIVE))])
        self.message_end_ns: Times = np.sort(end_ns[np.isin(what, (SEND, RECEIVE))])
        self.receive_end_ns: Times = np.sort(end_ns[what == RECEIVE])
        self.loss_ns, self.loss_end_ns = _outermost(start_ns[what == LOSS], end_ns[what == LOSS])

    def first_start(self, since_ns: Times, until_ns: Times) -> Times:
        """Return when the first operator of each stretch begins; its end where there is none."""
        return np.minimum(following(self.start_ns, since_ns), until_ns)

    def last_end(self, since_ns: Times, until_ns: Times) -> Times:
        """Return when the last operator that begins in each stretch ends; its start where none does, or too late."""
        if len(self.start_ns) == 0:
            return since_ns
        before = np.searchsorted(self.start_ns, until_ns) - 1
        latest = np.where(before >= 0, self.latest_ns[before], since_ns)
        return np.where((latest > since_ns) & (latest <= until_ns), latest, since_ns)

    def loss_end(self, since_ns: Times, until_ns: Times) -> Times:
        """Return when the last loss that begins in each stretch ends; NEVER where there is none."""
        index = np.searchsorted(self.loss_ns, until_ns)
        begins_ns = np.insert(self.loss_ns, 0, -(2**62))[index]
        return np.where(begins_ns >= since_ns, np.insert(self.loss_end_ns, 0, -(2**62))[index], NEVER)

    def loss_start(self, since_ns: Times, until_ns: Times) -> Times:
        """Return when the last loss of each stretch begins; NEVER where there is none."""
        loss_ns = preceding(self.loss_ns, until_ns)
        return np.where(loss_ns >= since_ns, loss_ns, NEVER)


def following(moments: Times, since_ns: Times) -> Times:
    """Return for each time the first of the sorted `moments` at or after it; NEVER where there is none."""
    return np.append(moments, NEVER)[np.searchsorted(moments, since_ns)]


def preceding(moments: Times, until_ns: Times) -> Times:
    """Return for each time the last of the sorted `moments` up to it; a time long ago where there is none."""
    return np.insert(moments, 0, -(2**62))[np.searchsorted(moments, until_ns, side="right")]


def find_edges(
    operators: Operators,
    outer_start_ns: Times,
    outer_end_ns: Times,
    *,
    is_backward: Flags,
    sends_behind: Flags | None = None,
) -> Edges:
    """Return the edges of actions that lie in these stretches.

    `is_backward` tells which are whole backwards, for input and weights. `sends_behind` tells which stretches end
    where a send was issued: what prepares it is no part of the action.
    """
    first_ns = operators.first_start(outer_start_ns, outer_end_ns)
    last_ns = operators.last_end(outer_start_ns, outer_end_ns)
    known = (last_ns > outer_start_ns) & (first_ns < outer_end_ns)
    whole_ns = np.maximum(outer_end_ns - outer_start_ns, 0)
    before_ns = np.where(known, first_ns - outer_start_ns, whole_ns)
    after_ns = np.where(known, outer_end_ns - last_ns, 0)
    start_shift_ns = _start_shift(before_ns)
    end_shift_ns = np.minimum(after_ns // 2, MOST_OFF_END_NS)
    if sends_behind is not None:
        before_send_ns = np.minimum(after_ns * 3 // 5, MOST_OFF_BEFORE_SEND_NS)
        end_shift_ns = np.where(sends_behind, before_send_ns, end_shift_ns)
    closed = is_backward & np.isin(last_ns, operators.closing_ns)
    end_shift_ns = np.where(closed, np.maximum(after_ns - CLOSED_NS, end_shift_ns), end_shift_ns)
    end_error_ns = np.maximum(after_ns - end_shift_ns, end_shift_ns)
    error_ns = np.maximum(before_ns - start_shift_ns, end_error_ns)
    # A action without an operator is somewhere in its annotation.
    error_ns = np.where(known, error_ns, whole_ns)
    return Edges(outer_start_ns + start_shift_ns, outer_end_ns - end_shift_ns, error_ns)


def _start_shift(before_ns: Times) -> Times:
    """Return how far behind the beginning of a stretch its action starts, by what lies before its first operator."""
    half_ns = np.minimum(before_ns // 2, HALF_OF_START_NS)
    return np.maximum(half_ns, np.minimum(before_ns // 5, 2 * HALF_OF_START_NS))


def _outermost(start_ns: Times, end_ns: Times) -> tuple[Times, Times]:
    """Return those of some sorted intervals that lie in no other of them."""
    if len(start_ns) == 0:
        return start_ns, end_ns
    before = np.append(-(2**62), np.maximum.accumulate(end_ns)[:-1])
    outer = start_ns >= before
    return start_ns[outer], end_ns[outer]
