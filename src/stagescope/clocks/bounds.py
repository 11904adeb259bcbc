"""The guaranteed bounds: shortest paths between machines through the limits of the observations.

At each knot separately, the constraints `x[one] - x[other] <= limit` give an interval for each clock: the shortest
path from the reference (difference constraints, as in Cormen et al., Introduction to Algorithms). No estimate enters,
so the bounds hold wherever the limits do. Stopping the search early gives longer paths, which are wider bounds but
never wrong ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stagescope.clocks.grid import TOLERANCE_NS
from stagescope.clocks.limits import extrapolate
from stagescope.clocks.reference_bounds import unnoticed_adjustments

if TYPE_CHECKING:
    from stagescope.clocks.evidence import Bools, Floats, Ints
    from stagescope.clocks.grid import Adjustment, Grid
    from stagescope.clocks.limits import Limits
    from stagescope.clocks.reference_bounds import ReferenceLimits


@dataclass(frozen=True)
class Bounds:
    """The bounds of x, `lower_ns` and `upper_ns`, at each knot of each clock; infinite where there is no limit."""

    lower_ns: Floats
    upper_ns: Floats

    @property
    def contradictory(self) -> Bools:
        """Clocks for which the limits leave no possible offset at some knot."""
        return np.asarray((self.lower_ns > self.upper_ns + TOLERANCE_NS).any(axis=0))


def bound(limits: Limits, grid: Grid, reference: Ints, reference_limits: ReferenceLimits) -> Bounds:
    """Return the bounds of x at every knot, where x of each group's `reference` is 0 in its first segment.

    `reference_limits` give how far a reference may have been set without being noticed.
    """
    start = (reference == np.arange(len(reference))) & (grid.segment >= 0)
    # Limits that hold despite unnoticed adjustments; the tightest ones would not be a guarantee.
    limit_ns = limits.safe_ns
    upper_ns = _shortest(limits.one, limits.other, limit_ns, start)
    lower_ns = -_shortest(limits.other, limits.one, limit_ns, start)
    for clock in sorted({adjustment.clock for adjustment in grid.adjustments} & set(reference.tolist())):
        _bridge_adjustments_of_reference(lower_ns, upper_ns, grid, np.flatnonzero(reference == clock), clock)
    back_ns, ahead_ns = unnoticed_adjustments(reference_limits, grid, reference, upper_ns - lower_ns)
    along_ns = np.where(grid.continuous(), grid.budget * grid.gap_ns, np.inf)
    lower_ns, upper_ns = (
        -extrapolate(ahead_ns - lower_ns, along_ns),
        extrapolate(upper_ns + back_ns, along_ns),
    )
    for adjustment in grid.adjustments:
        if adjustment.may_be_reference:
            _widen_after_ambiguous(
                lower_ns, upper_ns, grid, np.flatnonzero(reference == reference[adjustment.clock]), adjustment
            )
    for adjustment in grid.unbounded:
        if adjustment.clock in reference and adjustment.ahead_ns[0] <= adjustment.ahead_ns[1]:
            _widen_for_unbounded_start(
                lower_ns, upper_ns, grid, np.flatnonzero(reference == adjustment.clock), adjustment
            )
    return Bounds(lower_ns, upper_ns)


def _widen_for_unbounded_start(
    lower_ns: Floats, upper_ns: Floats, grid: Grid, group: Ints, adjustment: Adjustment
) -> None:
    """Widen the bounds of a group in place: its reference may have been set in an unbounded stretch at the beginning.

    All clocks of the group are then off by as much as the observed offset of the other clock changed.
    """
    after = np.flatnonzero((grid.knots_ns >= adjustment.to_ns) & (grid.segment[:, adjustment.other] >= 0))
    least_ns, most_ns = -np.inf, np.inf
    if len(after):
        least_ns = float(-upper_ns[after[0], adjustment.other]) - adjustment.ahead_ns[1]
        most_ns = float(-lower_ns[after[0], adjustment.other]) - adjustment.ahead_ns[0]
    lower_ns[:, group] += min(0.0, least_ns)
    upper_ns[:, group] += max(0.0, most_ns)


def _shortest(to: Ints, via: Ints, limit_ns: Floats, start: Bools) -> Floats:
    """Return the shortest paths from the start, at every knot separately (Bellman-Ford, all knots in one array)."""
    distance_ns = np.where(start, 0.0, np.inf)
    by_target = np.argsort(to, kind="stable")
    targets, first = np.unique(to[by_target], return_index=True)
    via, limit_ns = via[by_target], limit_ns[:, by_target]
    if not len(targets):
        return distance_ns
    # As many rounds as there are clocks suffice without negative cycles; contradictory limits would never
    # converge.
    for _ in range(start.shape[1] + 1):
        reached = np.minimum.reduceat(distance_ns[:, via] + limit_ns, first, axis=1)
        shorter = np.minimum(distance_ns[:, targets], reached)
        if np.array_equal(shorter, distance_ns[:, targets]):
            break
        distance_ns[:, targets] = shorter
    return distance_ns


def _bridge_adjustments_of_reference(
    lower_ns: Floats, upper_ns: Floats, grid: Grid, group: Ints, clock: int
) -> None:
    """Continue the bounds of a group across the adjustments of its reference, in place.

    The clocks that were not set at the same time kept running, so the size of the adjustment is the apparent change
    of their offsets.
    """
    segment, others = grid.segment[:, clock], group[group != clock]
    for number in range(1, int(segment.max()) + 1):
        knots = np.flatnonzero(segment == number)
        earlier = np.flatnonzero(segment == number - 1)
        if not len(knots) or not len(earlier):
            lower_ns[np.ix_(knots, group)], upper_ns[np.ix_(knots, group)] = -np.inf, np.inf
            continue
        last, first = earlier[-1], knots[0]
        steady = others[
            (grid.segment[last, others] == grid.segment[first, others]) & (grid.segment[last, others] >= 0)
        ]
        drift_ns = grid.budget[steady] * (grid.knots_ns[first] - grid.knots_ns[last])
        low = lower_ns[last, steady] - upper_ns[first, steady] - drift_ns
        high = upper_ns[last, steady] - lower_ns[first, steady] + drift_ns
        lower_ns[np.ix_(knots, group)] += low.max(initial=-np.inf)
        upper_ns[np.ix_(knots, group)] += high.min(initial=np.inf)


def _widen_after_ambiguous(
    lower_ns: Floats, upper_ns: Floats, grid: Grid, group: Ints, adjustment: Adjustment
) -> None:
    """Widen the bounds of a group in place after an adjustment that may have been the reference's.

    It would then have the opposite sign, and all clocks of the group are off by its apparent size. If the reference
    was set back, it showed the same times twice, so the widening begins earlier by that size.
    """
    whole = grid.segment[:, adjustment.clock] >= 0
    before = np.flatnonzero(whole & (grid.knots_ns <= adjustment.from_ns))
    after = np.flatnonzero(whole & (grid.knots_ns >= adjustment.to_ns))
    least_ns, most_ns = -np.inf, np.inf
    if len(before) and len(after):
        last, first = before[-1], after[0]
        drift_ns = float(grid.budget[adjustment.clock] * (grid.knots_ns[first] - grid.knots_ns[last]))
        least_ns = float(lower_ns[last, adjustment.clock] - upper_ns[first, adjustment.clock]) - drift_ns
        most_ns = float(upper_ns[last, adjustment.clock] - lower_ns[first, adjustment.clock]) + drift_ns
    back_ns = max(0.0, most_ns)
    later = np.ix_(grid.knots_ns > adjustment.from_ns, group)
    lower_ns[later] += min(0.0, least_ns)
    upper_ns[later] += back_ns
    shown_again = (grid.knots_ns > adjustment.from_ns - back_ns) & (grid.knots_ns <= adjustment.from_ns)
    upper_ns[shown_again, group[0]] += back_ns
