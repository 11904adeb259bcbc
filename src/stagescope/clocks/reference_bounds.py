"""How far a reference clock may have been set without being noticed.

All other clocks are measured against the reference, so an unnoticed adjustment of it is missing in every correction.
It cannot be larger than the margin that all pairs leave between the observations before and after it.
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
    """The limits of all pairs with a reference, from which the largest unnoticed adjustment follows.

    The `sure` limits hold wherever it was. The `enclosing` limits extend to the outermost observations of each pair.
    They hold only for a pair with correct observations in both directions on either side of it, and which pair that
    is is unknown.
    """

    sure: Limits
    enclosing: Limits


def reference_limits(
    limits: Limits, evidence: Evidence, grid: Grid, outlier_fraction: float
) -> ReferenceLimits:
    """Return the limits if this fraction of the observations are unnoticed outliers.

    `limits` are those of the solution. Observations in stretches without bounds count too: if the one clock was set
    there, the other was not.
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
    """Return how far the reference of each clock may have been set by each knot without any of its pairs showing it.

    The first array is for adjustments backward, the second for adjustments forward. At each moment the pair with the
    smallest margin decides; up to each knot, the moment with the largest margin decides. Near an end of the run,
    where no pair certainly has observations on both sides, the pair with the largest margin decides.

    A clock that is set back shows the preceding times again, so timestamps after the adjustment begin before it.
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
            # Near the ends, where no pair brackets an adjustment, the usual margin of the tightest pair is
            # assumed.
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
    """Return the largest adjustment that each of these pairs leaves between every two neighboring knots.

    Before it x[one] - x[other] <= past, after it x[other] - x[one] <= future; the whole slack may be one adjustment.
    """
    return np.asarray(
        limits.past_ns[:-1, own] + limits.along_ns[:, own] + limits.future_ns[1:, limits.back[own]]
    )


def _known_both_ways(limits: Limits, columns: Ints) -> Bools:
    """Return which pairs have limits in both directions at some knot."""
    tightest_ns = limits.tightest_ns
    sums_ns = tightest_ns[:, columns] + tightest_ns[:, limits.back[columns]]
    return np.asarray(sums_ns.min(axis=0, initial=np.inf) < np.inf)


def _largest_per_gap(least_ns: Floats, most_ns: Floats, margin_ns: float) -> tuple[Floats, float]:
    """Return the largest adjustment in each interval between two knots, and the largest before all of them.

    After the last interval that is certainly bounded on both sides, it is the value there plus the usual margin, and
    at least what an enclosing pair leaves.
    """
    known = np.flatnonzero(np.isfinite(least_ns))
    # Infinite where an adjustment was found: there the limits do not continue, and no second one is assumed.
    filled_ns = np.maximum(np.where(np.isfinite(least_ns), least_ns, most_ns), margin_ns)
    if not len(known):
        return np.maximum(filled_ns, 2 * margin_ns), 2 * margin_ns
    after = slice(known[-1] + 1, None)
    filled_ns[after] = np.maximum(filled_ns[after], filled_ns[known[-1]] + margin_ns)
    return filled_ns, margin_ns


def _largest_until(in_gaps_ns: Floats, first_ns: float, shown_again_ns: Floats | None) -> Floats:
    """Return for each knot the largest adjustment in any interval before it; `first_ns` before all intervals.

    `shown_again_ns` are the times of the knots if the adjustment was backward: it then counts from the first time
    that the clock showed twice.
    """
    count = len(in_gaps_ns) + 1
    since = np.arange(1, count)
    if shown_again_ns is not None:
        since = np.minimum(since, np.searchsorted(shown_again_ns, shown_again_ns[:-1] - in_gaps_ns))
    margin_ns = np.full(count, first_ns)
    np.maximum.at(margin_ns, since, in_gaps_ns)
    return np.asarray(np.maximum.accumulate(margin_ns))
