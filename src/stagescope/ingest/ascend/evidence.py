"""Costs of pairing transfers with messages, and which pairs are certain, from the times of transfers and actions.

A send starts when its action has ended and its stream is free. A receive has ended when its action starts, and explains
the time that its rank waited. The costs are minimized by sequence_alignment.py. Order alone is no evidence where
transfers or actions are missing: a partner found by order is accepted only if its own times confirm it, or if it is
part of a complete run of transfers between two confirmed ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stagescope.ingest.ascend.transfers import SEND

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Indices = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

TOLERANCE_NS = 10_000
"""A mark's task on the device may start slightly before, and end slightly after, the kernels that it covers."""

CLOCK_TOLERANCE_NS = 50_000
"""The same between two ranks, whose times are converted to the wall clock independently."""

WORST_PART = 0.6
"""Maximum cost of one piece of evidence, in action lengths: two against a pair cost more than a missing message."""

GAP_FRACTION = 0.2
"""Unexplained idle time of this share of an action costs as much as a transfer as long as a whole action."""

UNKNOWN = 0.3
"""Cost of missing evidence: neither for a pair nor against it."""


class Observed(NamedTuple):
    """Transfers of one rank to or from one other, in order: row numbers, times, and when their stream became free.

    `unpaired_cost` is the cost of each without a partner, `max_cost` the maximum cost of its pair. A batch may transfer
    nothing in one direction.
    """

    rows: Indices
    start_ns: Floats
    end_ns: Floats
    free_ns: Floats
    unpaired_cost: Floats
    max_cost: Floats
    is_batch: Flags

    def at(self, places: Indices) -> Observed:
        """Return the transfers at some indices, in the shape of the indices."""
        return Observed(
            self.rows[places],
            self.start_ns[places],
            self.end_ns[places],
            self.free_ns[places],
            self.unpaired_cost[places],
            self.max_cost[places],
            self.is_batch[places],
        )


class Expected(NamedTuple):
    """Messages between the same two ranks, in order: row numbers and times, NaN where unknown.

    `is_open` marks places in the order where a message of unknown position may belong.
    """

    rows: Indices
    ready_ns: Floats
    needed_ns: Floats
    free_ns: Floats
    action_ns: Floats
    is_open: Flags

    def at(self, places: Indices) -> Expected:
        """Return the messages at some indices, in the shape of the indices."""
        return Expected(
            self.rows[places],
            self.ready_ns[places],
            self.needed_ns[places],
            self.free_ns[places],
            self.action_ns[places],
            self.is_open[places],
        )


def pair_costs(end: str, observed: Observed, expected: Expected, clock_offset_ns: float | None) -> Floats:
    """Return the cost of pairing each observed transfer with the expected message at the same index.

    `clock_offset_ns` is added to the target's times to obtain the source's, None if unknown.
    """
    return (_send_costs if end == SEND else _receive_costs)(observed, expected, clock_offset_ns)


def _send_costs(observed: Observed, expected: Expected, clock_offset_ns: float | None) -> Floats:
    """Return costs by how late each send started after its action, unless its stream was busy until then."""
    since_ready_ns = observed.start_ns - expected.ready_ns
    # A send on a busy stream starts when the stream is free: then its delay after the action is explained.
    at_once = (observed.start_ns - observed.free_ns < CLOCK_TOLERANCE_NS) & (since_ready_ns > 0)
    costs = np.where(at_once, 0.0, _part(np.abs(since_ready_ns), GAP_FRACTION * expected.action_ns))
    # Impossible pairs are infinite instead of expensive: no sum of other evidence may outweigh causality.
    never = since_ready_ns < -TOLERANCE_NS
    if clock_offset_ns is not None:
        never |= observed.start_ns > expected.needed_ns + clock_offset_ns + CLOCK_TOLERANCE_NS
    return np.where(never, np.inf, costs)


def _receive_costs(observed: Observed, expected: Expected, clock_offset_ns: float | None) -> Floats:
    """Return costs by how much of its action's wait each receive leaves unexplained, and how long the data took."""
    # fmax ignores NaN: an unknown time does not hide the known one.
    waited_ns = expected.needed_ns - np.fmax(expected.free_ns, observed.end_ns)
    costs = _part(np.abs(waited_ns), GAP_FRACTION * expected.action_ns)
    never = observed.end_ns > expected.needed_ns + TOLERANCE_NS
    if clock_offset_ns is not None:
        ready_ns = expected.ready_ns - clock_offset_ns
        never |= observed.end_ns < ready_ns - CLOCK_TOLERANCE_NS
        costs = costs + _part(observed.end_ns - np.fmax(ready_ns, observed.start_ns), expected.action_ns)
    return np.where(never, np.inf, costs)


def _part(time_ns: Floats, action_ns: Floats) -> Floats:
    """Return unexplained time as a cost between 0 and WORST_PART, UNKNOWN where the time is NaN."""
    return np.nan_to_num(np.clip(time_ns / action_ns, 0.0, WORST_PART), nan=UNKNOWN)


def are_trusted(
    end: str, observed: Observed, expected: Expected, partner: Indices, clock_offset_ns: float | None
) -> Flags:
    """Return whether each transfer's partner is evident, or part of a complete run between two evident ones.

    A run is complete if as many transfers were observed as expected, consecutively, and no message of unknown position
    can belong to it. Batches never form a run, because some transfer nothing in one direction.
    """
    evident = (partner >= 0) & _are_evident(end, observed, expected, partner, clock_offset_ns)
    n, m = len(observed.rows), len(expected.rows)
    # The ends of both sequences are anchors as well, so a complete run needs no evident transfer.
    anchors = np.concatenate([[-1], np.flatnonzero(evident), [n]])
    places = np.concatenate([[-1], partner[evident], [m]])
    after = np.searchsorted(anchors, np.arange(n))
    before = np.where(evident, after, after - 1)
    shift = partner - np.arange(n)
    opened = np.concatenate([[0], np.cumsum(expected.is_open)])
    low, high = places[before].clip(0), (places[after] + 1).clip(max=m)
    is_whole = (shift == places[before] - anchors[before]) & (shift == places[after] - anchors[after])
    by_order = is_whole & (opened[high] == opened[low]) & ~observed.is_batch & (partner >= 0)
    return np.asarray(evident | by_order)


def _are_evident(
    end: str, observed: Observed, expected: Expected, partner: Indices, clock_offset_ns: float | None
) -> Flags:
    """Return whether each transfer matches its message, and no other message of the two ranks, by its own times.

    Where several match at the same time, such as those of an overlapped action, all of them have to be present, in
    order.
    """
    if not len(expected.rows):
        return np.zeros(len(observed.rows), bool)
    moments, due = _moments(end, observed, expected, partner, clock_offset_ns)
    at = partner.clip(0)
    fits = np.abs(moments - due[at]) <= CLOCK_TOLERANCE_NS
    rivals, before = _near(moments, due)
    others, before_too = _near(due, moments)
    # argsort of argsort is the rank of every time among all, which keeps the order of simultaneous ones.
    place, place_too = (np.argsort(np.argsort(times, kind="stable")) for times in (moments, due))
    in_order = place - before_too[at] == place_too[at] - before
    return np.asarray(fits & (rivals == others[at]) & in_order)


def fit_any(
    end: str, observed: Observed, expected: Expected, partner: Indices, clock_offset_ns: float | None
) -> Flags:
    """Return whether each transfer matches any message by its own times."""
    if not len(expected.rows):
        return np.zeros(len(observed.rows), bool)
    moments, due = _moments(end, observed, expected, partner, clock_offset_ns)
    return np.asarray(_near(moments, due)[0] > 0)


def _moments(
    end: str, observed: Observed, expected: Expected, partner: Indices, clock_offset_ns: float | None
) -> tuple[Floats, Floats]:
    """Return the time of every transfer that identifies its message, and the time expected for each message.

    A send starts when its action has ended. A receive ends a typical delay after that. Where the clocks are not known
    to agree, it ends when the action that waited for it starts.
    """
    if end == SEND:
        return observed.start_ns, expected.ready_ns
    if clock_offset_ns is None:
        waited = expected.needed_ns - expected.free_ns > CLOCK_TOLERANCE_NS
        return observed.end_ns, np.where(waited, expected.needed_ns, np.nan)
    ready_ns = expected.ready_ns - clock_offset_ns
    late_ns = (observed.end_ns - ready_ns[partner])[partner >= 0]
    usual_ns = np.nan if np.isnan(late_ns).all() else np.nanmedian(late_ns)
    return observed.end_ns, ready_ns + usual_ns


def _near(moments: Floats, among: Floats) -> tuple[Indices, Indices]:
    """Return how many times of a set are within the tolerance of each moment, and how many are before it."""
    known = np.sort(among[~np.isnan(among)])
    first = np.searchsorted(known, moments - CLOCK_TOLERANCE_NS)
    return np.searchsorted(known, moments + CLOCK_TOLERANCE_NS, "right") - first, first
