"""By how much a reference may have been set without being noticed: the room between what was observed before and after.

All other clocks are measured against the reference, so what it was set by is missing in the corrections of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stagescope.clocks.limits import facts_of, limits_of

if TYPE_CHECKING:
    from stagescope.clocks.evidence import Bools, Evidence, Floats, Ints
    from stagescope.clocks.frame import Frame
    from stagescope.clocks.limits import Limits


@dataclass(frozen=True)
class Rooms:
    """What leaves room for a step of a reference: the limits of all its pairs.

    The `sure` ones hold wherever it was. The `enclosing` ones reach to the outermost observations of each pair, and
    hold for the one that has right ones of both directions on either side of it; nobody knows which pair that is.
    """

    sure: Limits
    enclosing: Limits


def rooms_of(limits: Limits, evidence: Evidence, frame: Frame, share: float) -> Rooms:
    """Return the rooms, if this share of the observations is false without being noticed; `limits` are what they say.

    In a stretch that is not bounded they count as well: that one clock may have been set there leaves the other.
    """
    seen = frame.seen
    sure = limits_of(facts_of(evidence, seen, share), seen) if frame.blind else limits
    if not share:
        return Rooms(sure, sure)
    return Rooms(sure, limits_of(facts_of(evidence, seen, share, to_the_end=True), seen))


def unnoticed(rooms: Rooms, frame: Frame, reference: Ints, width_ns: Floats) -> tuple[Floats, Floats]:
    """Return how far the reference of each clock may have been set by each knot, without any of its pairs telling.

    Back, and ahead. What a pair knew before a moment and what it knew after it leave room for a step: in whichever
    pair that is least, at whichever moment until then that is most. What was set ahead has to be taken off.
    Near an end, where no pair surely knew something on both sides, it is whichever pair leaves most.

    A clock that is set back shows the times before that again: what comes after the step has stamps of before it.
    """
    limits = rooms.sure
    found = []
    for ahead in (False, True):
        room_ns = np.zeros((len(limits.past_ns), len(reference)))
        for clock in np.unique(reference).tolist():
            others = np.flatnonzero((reference == clock) & (np.arange(len(reference)) != clock))
            if not len(others):
                continue
            own = _columns(limits, clock, ahead=ahead)
            usual_ns = float(limits.room_ns[own].min(initial=np.inf, where=_both_ways(limits, own)))
            if not np.isfinite(usual_ns):
                usual_ns = float(width_ns[:, others].max(axis=0).min())
            least_ns = _across(limits, own).min(axis=1, initial=np.inf)
            most_ns = _across(rooms.enclosing, _columns(rooms.enclosing, clock, ahead=ahead))
            most_ns = most_ns.max(axis=1, initial=0.0, where=np.isfinite(most_ns))
            until_ns = _until(*_filled(least_ns, most_ns, usual_ns), None if ahead else frame.knots_ns)
            room_ns[:, reference == clock] = until_ns[:, None]
        found.append(room_ns)
    return found[0], found[1]


def _columns(limits: Limits, clock: int, *, ahead: bool) -> Ints:
    return np.flatnonzero(((limits.one if ahead else limits.other) == clock) & (limits.back >= 0))


def _across(limits: Limits, own: Ints) -> Floats:
    """Return what a step in each gap between two knots may have been at most, by each of these pairs.

    Before: x[one] - x[other] <= past; after: x[other] - x[one] <= future. All of both may be one's step.
    """
    return np.asarray(
        limits.past_ns[:-1, own] + limits.along_ns[:, own] + limits.future_ns[1:, limits.back[own]]
    )


def _both_ways(limits: Limits, columns: Ints) -> Bools:
    """Return of which pairs both directions are known at some knot."""
    tightest_ns = limits.tightest_ns
    sums_ns = tightest_ns[:, columns] + tightest_ns[:, limits.back[columns]]
    return np.asarray(sums_ns.min(axis=0, initial=np.inf) < np.inf)


def _filled(least_ns: Floats, most_ns: Floats, room_ns: float) -> tuple[Floats, float]:
    """Return the most of what a step in each gap between two knots may have been, and one before all of them.

    After the last gap of which both sides surely tell, it is what that one says, and the usual room, and no less than
    what a pair that encloses the step leaves.
    """
    known = np.flatnonzero(np.isfinite(least_ns))
    # Where a clock step was found, no other is asked for.
    filled_ns = np.maximum(np.where(np.isfinite(least_ns), least_ns, most_ns), room_ns)
    if not len(known):
        return np.maximum(filled_ns, 2 * room_ns), 2 * room_ns
    after = slice(known[-1] + 1, None)
    filled_ns[after] = np.maximum(filled_ns[after], filled_ns[known[-1]] + room_ns)
    return filled_ns, room_ns


def _until(in_gaps_ns: Floats, first_ns: float, shown_again_ns: Floats | None) -> Floats:
    """Return the most of what a step may have been for each knot: in a gap before it, `first_ns` before all of them.

    `shown_again_ns` are the times of the knots, if the step was back: then it counts from what its gap shows again.
    """
    count = len(in_gaps_ns) + 1
    since = np.arange(1, count)
    if shown_again_ns is not None:
        since = np.minimum(since, np.searchsorted(shown_again_ns, shown_again_ns[:-1] - in_gaps_ns))
    room_ns = np.full(count, first_ns)
    np.maximum.at(room_ns, since, in_gaps_ns)
    return np.asarray(np.maximum.accumulate(room_ns))
