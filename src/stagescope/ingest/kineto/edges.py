"""Estimate where an action begins and ends, between its annotation and its operators.

An annotation is wider than its action, because the schedule and the profiler run code around it; the operators are
narrower, because Python runs before the first and after the last. The edge is between the two. If they are close, it is
placed halfway, because both sides do similar amounts of work there. The farther apart they are, the smaller the
fraction that is cut off: the model is then working long before its first operator, as the autograd engine does, or the
process was descheduled. The distance bounds the error of each edge.

The fractions were measured against the recorder on CPU runs of all schedules of torch 2.13.0.
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
"""An action starts half of the distance before its first operator, up to this; or a fifth of it, up to twice this."""
MOST_OFF_END_NS = 100_000
"""Half of the distance after the last operator is cut off, up to this."""
MOST_OFF_BEFORE_SEND_NS = 200_000
"""Before a send, three fifths are cut off, up to this: preparing a send is not part of the action."""
CLOSED_NS = 10_000
"""Upper bound of what a backward does after its closing operator, unless the process is descheduled."""
NEVER = np.iinfo(np.int64).max


class Edges(NamedTuple):
    """Start and end of actions, and the larger of the two errors."""

    start_ns: Times
    end_ns: Times
    error_ns: Times


class Operators:
    """The operators of one process as sorted arrays: those that compute, and those that mark an event."""

    def __init__(self, operators: pl.DataFrame) -> None:
        ordered = operators.sort("start_ns", "end_ns", descending=[False, True])
        what, start_ns, end_ns = (ordered[name].to_numpy() for name in ("what", "start_ns", "end_ns"))
        computes = ~np.isin(what, (SEND, RECEIVE, *HANDLINGS))
        self.start_ns: Times = start_ns[computes]
        self.end_ns: Times = end_ns[computes]
        # Operators nest, so the last one to begin need not be the last one to end.
        self.latest_ns: Times = np.maximum.accumulate(self.end_ns) if len(self.end_ns) else self.end_ns
        self.backward_ns: Times = start_ns[what == BACKWARD]
        self.closing_ns: Times = end_ns[what == CLOSING]
        self.split_end_ns: Times = np.sort(end_ns[what == SPLITTING])
        self.send_ns: Times = start_ns[what == SEND]
        # searchsorted needs sorted ends; the operators are sorted by their starts.
        self.work_end_ns: Times = np.sort(end_ns[~np.isin(what, (SEND, RECEIVE))])
        self.message_end_ns: Times = np.sort(end_ns[np.isin(what, (SEND, RECEIVE))])
        self.receive_end_ns: Times = np.sort(end_ns[what == RECEIVE])
        self.loss_ns, self.loss_end_ns = _outermost(start_ns[what == LOSS], end_ns[what == LOSS])

    def first_start(self, since_ns: Times, until_ns: Times) -> Times:
        """Return when the first operator of each interval begins; the interval's end if there is none."""
        return np.minimum(following(self.start_ns, since_ns), until_ns)

    def last_end(self, since_ns: Times, until_ns: Times) -> Times:
        """Return when the last operator that begins in each interval ends.

        The result is the interval's start if there is no such operator, or if it ends after the interval.
        """
        if len(self.start_ns) == 0:
            return since_ns
        before = np.searchsorted(self.start_ns, until_ns) - 1
        latest = np.where(before >= 0, self.latest_ns[before], since_ns)
        return np.where((latest > since_ns) & (latest <= until_ns), latest, since_ns)

    def loss_end(self, since_ns: Times, until_ns: Times) -> Times:
        """Return when the last loss that begins in each interval ends; NEVER if there is none."""
        index = np.searchsorted(self.loss_ns, until_ns)
        begins_ns = np.insert(self.loss_ns, 0, -(2**62))[index]
        return np.where(begins_ns >= since_ns, np.insert(self.loss_end_ns, 0, -(2**62))[index], NEVER)

    def loss_start(self, since_ns: Times, until_ns: Times) -> Times:
        """Return when the last loss of each interval begins; NEVER if there is none."""
        loss_ns = preceding(self.loss_ns, until_ns)
        return np.where(loss_ns >= since_ns, loss_ns, NEVER)


def following(moments: Times, since_ns: Times) -> Times:
    """Return for each time the first of the sorted `moments` at or after it; NEVER if there is none."""
    return np.append(moments, NEVER)[np.searchsorted(moments, since_ns)]


def preceding(moments: Times, until_ns: Times) -> Times:
    """Return for each time the last of the sorted `moments` up to it; -2^62 if there is none."""
    return np.insert(moments, 0, -(2**62))[np.searchsorted(moments, until_ns, side="right")]


def find_edges(
    operators: Operators,
    outer_start_ns: Times,
    outer_end_ns: Times,
    *,
    is_backward: Flags,
    ends_at_send: Flags | None = None,
) -> Edges:
    """Return the edges of one action per interval.

    `is_backward` flags whole backwards (input and weights). `ends_at_send` flags intervals that end where a send was
    issued: preparing it is not part of the action.
    """
    first_ns = operators.first_start(outer_start_ns, outer_end_ns)
    last_ns = operators.last_end(outer_start_ns, outer_end_ns)
    # Without operators in the interval, the whole of it may be before the action: its start is estimated from that.
    known = (last_ns > outer_start_ns) & (first_ns < outer_end_ns)
    whole_ns = np.maximum(outer_end_ns - outer_start_ns, 0)
    before_ns = np.where(known, first_ns - outer_start_ns, whole_ns)
    after_ns = np.where(known, outer_end_ns - last_ns, 0)
    start_shift_ns = _start_shift(before_ns)
    end_shift_ns = np.minimum(after_ns // 2, MOST_OFF_END_NS)
    if ends_at_send is not None:
        before_send_ns = np.minimum(after_ns * 3 // 5, MOST_OFF_BEFORE_SEND_NS)
        end_shift_ns = np.where(ends_at_send, before_send_ns, end_shift_ns)
    # A backward of the last stage ends by detaching its outputs in place, which leaves little time unaccounted for.
    closed = is_backward & np.isin(last_ns, operators.closing_ns)
    end_shift_ns = np.where(closed, np.maximum(after_ns - CLOSED_NS, end_shift_ns), end_shift_ns)
    end_error_ns = np.maximum(after_ns - end_shift_ns, end_shift_ns)
    error_ns = np.maximum(before_ns - start_shift_ns, end_error_ns)
    # An action without operators may be anywhere in its annotation.
    error_ns = np.where(known, error_ns, whole_ns)
    return Edges(outer_start_ns + start_shift_ns, outer_end_ns - end_shift_ns, error_ns)


def _start_shift(before_ns: Times) -> Times:
    """Return how long after the beginning of its interval an action starts, from the time before its first operator."""
    half_ns = np.minimum(before_ns // 2, HALF_OF_START_NS)
    return np.maximum(half_ns, np.minimum(before_ns // 5, 2 * HALF_OF_START_NS))


def _outermost(start_ns: Times, end_ns: Times) -> tuple[Times, Times]:
    """Return the sorted intervals that are not nested in another one."""
    if len(start_ns) == 0:
        return start_ns, end_ns
    before = np.append(-(2**62), np.maximum.accumulate(end_ns)[:-1])
    outer = start_ns >= before
    return start_ns[outer], end_ns[outer]
