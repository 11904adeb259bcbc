"""What the times of a transfer and of the actions around it say for and against a message: costs, and what is evident.

A send starts when its action has ended and its stream is free; a receive has ended when its action starts, and
accounts for the time that its rank waited. Costs put two sequences side by side (alignment.py). Order alone is no
evidence where operations or actions were lost, so that a partner found there has to be evident by its own times, or
to stand in a run that nothing is missing from.
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
"""A mark's task on the device may begin a little before, and end a little after, the kernels that it covers."""

CLOCK_TOLERANCE_NS = 50_000
"""The same between two ranks, whose times are converted to the wall clock each by itself."""

WORST_PART = 0.6
"""What one piece of evidence costs at most, in action lengths: two against a pair are worse than a lost message."""

GAP_FRACTION = 0.2
"""A gap of this share of a action, for which there is no reason, weighs as much as a transfer that takes a whole action."""

UNKNOWN = 0.3
"""Cost of evidence that is not there: neither for a pair nor against it."""


class Observed(NamedTuple):
    """The transfers of one rank to or from one other, in order: row numbers, times, and when their stream was free.

    `extra` and `most` are what each costs without a partner, and at most with one; a batch may do nothing one way.
    """

    rows: Indices
    start_ns: Floats
    end_ns: Floats
    free_ns: Floats
    extra: Floats
    most: Floats
    is_batch: Flags

    def at(self, places: Indices) -> Observed:
        """Return the transfers at some places, in their shape."""
        return Observed(
            self.rows[places],
            self.start_ns[places],
            self.end_ns[places],
            self.free_ns[places],
            self.extra[places],
            self.most[places],
            self.is_batch[places],
        )


class Expected(NamedTuple):
    """The messages between the same two, in order: row numbers, and times, nan where one is not known.

    `is_open` says where one more message may stand whose place in the order is not known.
    """

    rows: Indices
    ready_ns: Floats
    needed_ns: Floats
    free_ns: Floats
    action_ns: Floats
    is_open: Flags

    def at(self, places: Indices) -> Expected:
        """Return the messages at some places, in their shape."""
        return Expected(
            self.rows[places],
            self.ready_ns[places],
            self.needed_ns[places],
            self.free_ns[places],
            self.action_ns[places],
            self.is_open[places],
        )


def pair_costs(end: str, observed: Observed, expected: Expected, apart_ns: float | None) -> Floats:
    """Return what it costs to take each observed transfer for that end of the expected message beside it.

    `apart_ns` is what to add to the target's times to have the source's, None where that is not known.
    """
    return (_send_costs if end == SEND else _receive_costs)(observed, expected, apart_ns)


def _send_costs(observed: Observed, expected: Expected, apart_ns: float | None) -> Floats:
    """Return how late each send started after its action, unless its stream was busy until then."""
    since_ready_ns = observed.start_ns - expected.ready_ns
    at_once = (observed.start_ns - observed.free_ns < CLOCK_TOLERANCE_NS) & (since_ready_ns > 0)
    costs = np.where(at_once, 0.0, _part(np.abs(since_ready_ns), GAP_FRACTION * expected.action_ns))
    never = since_ready_ns < -TOLERANCE_NS
    if apart_ns is not None:
        never |= observed.start_ns > expected.needed_ns + apart_ns + CLOCK_TOLERANCE_NS
    return np.where(never, np.inf, costs)


def _receive_costs(observed: Observed, expected: Expected, apart_ns: float | None) -> Floats:
    """Return what of the wait of each receive's action it leaves open, and how long the data took."""
    waited_ns = expected.needed_ns - np.fmax(expected.free_ns, observed.end_ns)
    costs = _part(np.abs(waited_ns), GAP_FRACTION * expected.action_ns)
    never = observed.end_ns > expected.needed_ns + TOLERANCE_NS
    if apart_ns is not None:
        ready_ns = expected.ready_ns - apart_ns
        never |= observed.end_ns < ready_ns - CLOCK_TOLERANCE_NS
        costs = costs + _part(observed.end_ns - np.fmax(ready_ns, observed.start_ns), expected.action_ns)
    return np.where(never, np.inf, costs)


def _part(time_ns: Floats, action_ns: Floats) -> Floats:
    """Return a time that nothing explains as a cost; an unknown one is neither for nor against."""
    return np.nan_to_num(np.clip(time_ns / action_ns, 0.0, WORST_PART), nan=UNKNOWN)


def are_trusted(
    end: str, observed: Observed, expected: Expected, partner: Indices, apart_ns: float | None
) -> Flags:
    """Return whether each transfer's partner is evident, or stands in a whole run between two that are.

    A run is whole where as many were observed as expected, one after the other, and no message without a place may
    stand among them. Batches of which some do nothing one way make no run.
    """
    evident = (partner >= 0) & _are_evident(end, observed, expected, partner, apart_ns)
    n, m = len(observed.rows), len(expected.rows)
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
    end: str, observed: Observed, expected: Expected, partner: Indices, apart_ns: float | None
) -> Flags:
    """Return whether each transfer fits its message by its own times, and no other message of the two ranks.

    Of several that fit at once, such as those of an overlapped action, all have to be there, in their order.
    """
    if not len(expected.rows):
        return np.zeros(len(observed.rows), bool)
    moments, due = _moments(end, observed, expected, partner, apart_ns)
    at = partner.clip(0)
    fits = np.abs(moments - due[at]) <= CLOCK_TOLERANCE_NS
    rivals, before = _near(moments, due)
    others, before_too = _near(due, moments)
    place, place_too = (np.argsort(np.argsort(times, kind="stable")) for times in (moments, due))
    in_order = place - before_too[at] == place_too[at] - before
    return np.asarray(fits & (rivals == others[at]) & in_order)


def fit_any(
    end: str, observed: Observed, expected: Expected, partner: Indices, apart_ns: float | None
) -> Flags:
    """Return whether each transfer fits some message by its own times."""
    if not len(expected.rows):
        return np.zeros(len(observed.rows), bool)
    moments, due = _moments(end, observed, expected, partner, apart_ns)
    return np.asarray(_near(moments, due)[0] > 0)


def _moments(
    end: str, observed: Observed, expected: Expected, partner: Indices, apart_ns: float | None
) -> tuple[Floats, Floats]:
    """Return the one time of every transfer that tells its message, and when each message would have it.

    A send begins when its action has ended. A receive has arrived as long after that as the others did; where the
    clocks are not known to agree, it ends when the action that waited for it starts.
    """
    if end == SEND:
        return observed.start_ns, expected.ready_ns
    if apart_ns is None:
        waited = expected.needed_ns - expected.free_ns > CLOCK_TOLERANCE_NS
        return observed.end_ns, np.where(waited, expected.needed_ns, np.nan)
    ready_ns = expected.ready_ns - apart_ns
    late_ns = (observed.end_ns - ready_ns[partner])[partner >= 0]
    usual_ns = np.nan if np.isnan(late_ns).all() else np.nanmedian(late_ns)
    return observed.end_ns, ready_ns + usual_ns


def _near(moments: Floats, among: Floats) -> tuple[Indices, Indices]:
    """Return how many of a set of times are near each moment, and how many are before those."""
    known = np.sort(among[~np.isnan(among)])
    first = np.searchsorted(known, moments - CLOCK_TOLERANCE_NS)
    return np.searchsorted(known, moments + CLOCK_TOLERANCE_NS, "right") - first, first
