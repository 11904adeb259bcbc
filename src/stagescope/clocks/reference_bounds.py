"""By how much a reference may have been set without being noticed: the room between what was observed before and after.

All other clocks are measured against the reference, so what it was set by is missing in the corrections of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stagescope.clocks.limits import constraints_of, limits_of

if TYPE_CHECKING:
    from stagescope.clocks.evidence import Bools, Evidence, Floats, Ints
    from stagescope.clocks.grid import Grid
    from stagescope.clocks.limits import Limits


@dataclass(frozen=True)
class ReferenceLimits:
    """What leaves room for a step of a reference: the limits of all its pairs.

    The `sure` ones hold wherever it was. The `enclosing` ones reach to the outermost observations of each pair, and
    hold for the one that has right ones of both directions on either side of it; nobody knows which pair that is.
    """

    sure: Limits
    enclosing: Limits


def reference_limits(
    limits: Limits, evidence: Evidence, grid: Grid, outlier_fraction: float
) -> ReferenceLimits:
    """Return the reference_limits, if this outlier_fraction of the observations is false without being noticed; `limits` are what they say.

    In a stretch that is not bounded they count as well: that one clock may have been set there leaves the other.
    """
    seen = grid.seen
    sure = limits_of(constraints_of(evidence, seen, outlier_fraction), seen) if grid.unbounded else limits
    if not outlier_fraction:
        return ReferenceLimits(sure, sure)
    return ReferenceLimits(
        sure, limits_of(constraints_of(evidence, seen, outlier_fraction, to_the_ends=True), seen)
    )


def unnoticed_adjustments(
    reference_limits: ReferenceLimits, grid: Grid, reference: Ints, width_ns: Floats
) -> tuple[Floats, Floats]:
    """Return how far the reference of each clock may have been set by each knot, without any of its pairs telling.

    Back, and ahead. What a pair knew before a moment and what it knew after it leave room for a step: in whichever
    pair that is least, at whichever moment until then that is most. What was set ahead has to be taken off.
    Near an end, where no pair surely knew something on both sides, it is whichever pair leaves most.

    A clock that is set back shows the times before that again: what comes after the step has timestamps of before it.
    """
    limits = reference_limits.sure
    found = []
    for ahead in (False, True):
        margin_ns = np.zeros((len(limits.past_ns), len(reference)))
        for clock in np.unique(reference).tolist():
            others = np.flatnonzero((reference == clock) & (np.arange(len(reference)) != clock))
            if not len(others):
                continue
            own = _columns(limits, clock, ahead=ahead)
            usual_ns = float(limits.margin_ns[own].min(initial=np.inf, where=_known_both_ways(limits, own)))
            if not np.isfinite(usual_ns):
                usual_ns = float(width_ns[:, others].max(axis=0).min())
            least_ns = _margins_between_knots(limits, own).min(axis=1, initial=np.inf)
            most_ns = _margins_between_knots(
                reference_limits.enclosing, _columns(reference_limits.enclosing, clock, ahead=ahead)
            )
            most_ns = most_ns.max(axis=1, initial=0.0, where=np.isfinite(most_ns))
            until_ns = _largest_until(
                *_largest_per_gap(least_ns, most_ns, usual_ns), None if ahead else grid.knots_ns
            )
            margin_ns[:, reference == clock] = until_ns[:, None]
        found.append(margin_ns)
    return found[0], found[1]


def _columns(limits: Limits, clock: int, *, ahead: bool) -> Ints:
    return np.flatnonzero(((limits.one if ahead else limits.other) == clock) & (limits.back >= 0))


def _margins_between_knots(limits: Limits, own: Ints) -> Floats:
    """Return what a step in each gap between two knots may have been at most, by each of these pairs.

    Before: x[one] - x[other] <= past; after: x[other] - x[one] <= future. All of both may be one's step.
    """
    return np.asarray(
        limits.past_ns[:-1, own] + limits.along_ns[:, own] + limits.future_ns[1:, limits.back[own]]
    )


def _known_both_ways(limits: Limits, columns: Ints) -> Bools:
    """Return of which pairs both directions are known at some knot."""
    tightest_ns = limits.tightest_ns
    sums_ns = tightest_ns[:, columns] + tightest_ns[:, limits.back[columns]]
    return np.asarray(sums_ns.min(axis=0, initial=np.inf) < np.inf)


def _largest_per_gap(least_ns: Floats, most_ns: Floats, margin_ns: float) -> tuple[Floats, float]:
    """Return the most of what a step in each gap between two knots may have been, and one before all of them.

    After the last gap of which both sides surely tell, it is what that one says, and the usual room, and no less than
    what a pair that encloses the step leaves.
    """
    known = np.flatnonzero(np.isfinite(least_ns))
    # Where a clock step was found, no other is asked for.
    filled_ns = np.maximum(np.where(np.isfinite(least_ns), least_ns, most_ns), margin_ns)
    if not len(known):
        return np.maximum(filled_ns, 2 * margin_ns), 2 * margin_ns
    after = slice(known[-1] + 1, None)
    filled_ns[after] = np.maximum(filled_ns[after], filled_ns[known[-1]] + margin_ns)
    return filled_ns, margin_ns


def _largest_until(in_gaps_ns: Floats, first_ns: float, shown_again_ns: Floats | None) -> Floats:
    """Return the most of what a step may have been for each knot: in a gap before it, `first_ns` before all of them.

    `shown_again_ns` are the times of the knots, if the step was back: then it counts from what its gap shows again.
    """
    count = len(in_gaps_ns) + 1
    since = np.arange(1, count)
    if shown_again_ns is not None:
        since = np.minimum(since, np.searchsorted(shown_again_ns, shown_again_ns[:-1] - in_gaps_ns))
    margin_ns = np.full(count, first_ns)
    np.maximum.at(margin_ns, since, in_gaps_ns)
    return np.asarray(np.maximum.accumulate(margin_ns))
