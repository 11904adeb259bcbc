"""From observations to corrections with bounds: the simplest explanation without contradictions.

First, observations that others contradict are dropped and clock adjustments are found. If there were outliers, a
fraction of the remaining observations is assumed to be unnoticed outliers. Where contradictions remain, that fraction
is raised; where no fraction resolves them, the pairs of clocks with contradictory observations are excluded and the
rest is solved without them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_array  # type: ignore[import-untyped]
from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]

from stagescope.clocks.adjustments import AttributedAdjustment, attribute_adjustments, pair_shifts
from stagescope.clocks.bounds import Bounds, bound
from stagescope.clocks.conflicts import (
    CONFIRMING,
    exclusion_ns,
    find_conflicts,
    find_outliers,
    unproven_outliers,
)
from stagescope.clocks.estimate import fit
from stagescope.clocks.excursions import excursions
from stagescope.clocks.grid import TOLERANCE_NS, Grid, grid_of, knots_for
from stagescope.clocks.grouped import distinct
from stagescope.clocks.knots import moments_of
from stagescope.clocks.limits import constraints_of, contradicting_pairs, limit_slope, limits_of
from stagescope.clocks.rate_changes import rate_changes
from stagescope.clocks.reference_bounds import reference_limits
from stagescope.clocks.uncertainty import deviation_of_references
from stagescope.execution.memory import return_memory

if TYPE_CHECKING:
    from stagescope.clocks.conflicts import Conflicts
    from stagescope.clocks.evidence import Bools, Evidence, Floats, Ints
    from stagescope.clocks.grid import Adjustment
    from stagescope.clocks.rates import Corner

AROUND_NS = 100_000_000.0
"""Where exactly lines end next to a clock that was set is known to about this."""
OUTLIER_FRACTIONS = (0.04, 0.12)
"""Fractions of unnoticed outliers to try if the one estimated from the noticed outliers leaves contradictions."""

FEW_OUTLIERS, MOST_OUTLIERS_FRACTION = 4, 0.25
"""More outliers than this, and than this fraction, among a pair's observations in one direction are not chance: the
pair is inconsistent."""

UNNOTICED_PER_NOTICED = 4.0
"""For each noticed outlier with a small error, this many more are assumed to be too small to be noticed."""


@dataclass(frozen=True)
class Contradiction:
    """Two clocks whose observations contradict each other by `conflict_ns`, with any fraction of outliers.

    `rows` are the tightest observations of both directions.
    """

    one: int
    other: int
    conflict_ns: float
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Solution:
    """Corrections `x_ns` at every knot of every clock in coarse time, their bounds, and what was found on the way.

    `rejected` maps the rows of outliers to the least error of their timestamps. `withheld` are clocks that keep their
    timestamps because no consistent solution exists. `standard_error_ns` are those of the estimate, nan where unknown.
    `unexplained_ns` is how far it may be off beyond that, where rates changed abruptly, and `corners` are the moments
    at which they did so without an explanation.
    """

    grid: Grid
    reference: Ints
    bounds: Bounds
    x_ns: Floats
    outlier_fraction: float
    attributed: tuple[AttributedAdjustment, ...]
    rejected: dict[int, float]
    contradictions: tuple[Contradiction, ...] = ()
    withheld: frozenset[int] = field(default_factory=frozenset)
    standard_error_ns: Floats | None = None
    unexplained_ns: Floats | None = None
    corners: tuple[Corner, ...] = ()


@dataclass(frozen=True)
class Screened:
    """The observations without outliers (`kept`), and what explains the others.

    `grid` has the clock adjustments, and `outlier_fraction` is the assumed fraction of unnoticed outliers in `kept`.
    """

    kept: Evidence
    grid: Grid
    attributed: tuple[AttributedAdjustment, ...]
    rejected: dict[int, float]
    outlier_fraction: float


def solve(
    evidence: Evidence,
    clocks: int,
    max_ppm: float,
    changes: tuple[tuple[Adjustment, ...], tuple[Corner, ...]] = ((), ()),
) -> Solution:
    """Return the correction of every clock relative to its group's reference, with bounds that hold if max_ppm does.

    A group consists of clocks that observations bound on both sides. Observations between groups are not used here, nor
    are those in the zones around changes of the rate of a clock, which were removed from the timestamps: the first of
    the `changes`. The others are corners that nothing explains, and matter to the estimate alone.
    """
    zones, corners = changes
    contradictions: list[Contradiction] = []
    while True:
        reference = references(evidence, clocks)
        inside = evidence.where(reference[evidence.source] == reference[evidence.target])
        budget = np.where(reference == np.arange(clocks), 0.0, max_ppm * 1e-6)
        grid = grid_of(knots_for(inside, clocks, zones), budget, zones)
        inside = inside.where(
            (grid.segment_at(inside.source, inside.sent_ns) >= 0)
            & (grid.segment_at(inside.target, inside.received_ns) >= 0)
        )
        screened = screen(inside, grid, reference)
        # A pair whose observations are mostly outliers is excluded before the bounds are computed: it would spoil
        # them.
        worst = pairs_with_many_outliers(inside, screened.rejected)
        for outlier_fraction in (
            screened.outlier_fraction,
            *(s for s in OUTLIER_FRACTIONS if s > screened.outlier_fraction),
        ):
            if worst:
                break
            found = _bounds(screened, reference, outlier_fraction)
            if found is not None:
                found = _without_disputed(found, reference, contradictions)
                return_memory()
                return _solution(
                    replace(screened, outlier_fraction=outlier_fraction),
                    reference,
                    found,
                    (tuple(contradictions), corners),
                )
        if not worst:
            plain_limits = limits_of(constraints_of(inside, grid, 0.0), grid)
            worst = sorted(contradicting_pairs(plain_limits), key=lambda pair: -pair[2])[:1]
        if not worst:
            return _without_correction(grid, reference, tuple(contradictions), inside)
        contradictions += [
            Contradiction(*pair, _tightest_observations(inside, pair[0], pair[1])) for pair in worst
        ]
        keys = [key for one, other, _ in worst for key in (one * clocks + other, other * clocks + one)]
        evidence = evidence.where(~np.isin(evidence.source * clocks + evidence.target, keys))


def _bounds(screened: Screened, reference: Ints, outlier_fraction: float) -> Bounds | None:
    """Return the bounds of all clocks if a fraction of the observations are outliers, None if they contradict."""
    limits = limits_of(constraints_of(screened.kept, screened.grid, outlier_fraction), screened.grid)
    around = reference_limits(limits, screened.kept, screened.grid, outlier_fraction)
    found = bound(limits, screened.grid, reference, around)
    return None if contradicting_pairs(limits) or found.contradictory.any() else found


def _without_disputed(found: Bounds, reference: Ints, contradictions: list[Contradiction]) -> Bounds:
    """Return the bounds without those of clocks whose only comparisons were contradictory.

    Such a clock may be the wrong one of its pair.
    """
    alone = np.bincount(reference, minlength=len(reference))[reference] == 1
    attributed = [clock for each in contradictions for clock in (each.one, each.other)]
    disputed = alone & np.isin(np.arange(len(reference)), attributed)
    return Bounds(np.where(disputed, -np.inf, found.lower_ns), np.where(disputed, np.inf, found.upper_ns))


def pairs_with_many_outliers(evidence: Evidence, rejected: dict[int, float]) -> list[tuple[int, int, float]]:
    """Return the pairs of clocks with more outliers than chance explains, and the largest conflict of each."""
    if not rejected:
        return []
    clocks = int(max(evidence.source.max(), evidence.target.max())) + 1
    way = evidence.source * clocks + evidence.target
    ways, _, _, counts = distinct(way)
    is_outlier = np.isin(evidence.row, list(rejected))
    outlier_counts = np.bincount(np.searchsorted(ways, way[is_outlier]), minlength=len(ways))
    found: dict[tuple[int, int], float] = {}
    for index in np.flatnonzero(
        outlier_counts > np.maximum(FEW_OUTLIERS, MOST_OUTLIERS_FRACTION * counts)
    ).tolist():
        conflict_ns = max(rejected[row] for row in evidence.row[is_outlier & (way == ways[index])].tolist())
        source, target = divmod(int(ways[index]), clocks)
        pair = (min(source, target), max(source, target))
        found[pair] = max(conflict_ns, found.get(pair, 0.0))
    return [(one, other, conflict_ns) for (one, other), conflict_ns in found.items()]


def references(evidence: Evidence, clocks: int) -> Ints:
    """Return for each clock the reference of its group: the first of the clocks that are bounded on both sides.

    That is the case for clocks in the same strongly connected component of the graph of observations.
    """
    places = distinct(evidence.source * clocks + evidence.target).keys
    links = coo_array((np.ones(len(places)), (places // clocks, places % clocks)), shape=(clocks, clocks))
    group = connected_components(links.tocsr(), directed=True, connection="strong")[1]
    _, first, back = np.unique(group, return_index=True, return_inverse=True)
    return np.asarray(first[back], np.int64)


def screen(evidence: Evidence, plain: Grid, reference: Ints) -> Screened:
    """Return the observations without outliers, and the adjustments that explain the remaining conflicts."""
    conflicts = find_conflicts(evidence, plain.budget)
    if not len(conflicts):
        return Screened(evidence, plain, (), {}, 0.0)
    is_outlier = find_outliers(conflicts, len(evidence))
    least = CONFIRMING + 1 if is_outlier.any() else CONFIRMING
    is_outlier &= ~unproven_outliers(evidence, conflicts, is_outlier, len(plain.budget))
    by_pair, ambiguous = pair_shifts(
        evidence.where(~is_outlier), _renumbered(conflicts, ~is_outlier), plain.budget, least
    )
    places = np.flatnonzero(~is_outlier)[ambiguous.places]
    conflict_ns = exclusion_ns(conflicts, len(evidence))
    is_outlier[places] = True
    kept = evidence.where(~is_outlier)
    attributed = attribute_adjustments(by_pair, kept, plain.budget, np.unique(reference))
    attributed, zones = _without_overlap(attributed, plain.adjustments)
    adjustments = tuple(adjustment for each in attributed for adjustment in each.adjustments)
    unbounded = ambiguous.unbounded + excursions(evidence, conflicts, is_outlier, len(plain.budget))
    grid = grid_of(plain.knots_ns, plain.budget, adjustments + zones, unbounded)
    rejected = dict(zip(evidence.row[is_outlier].tolist(), conflict_ns[is_outlier].tolist(), strict=True))
    return Screened(
        kept, grid, tuple(attributed), rejected, _unnoticed_fraction(kept, grid, conflict_ns[is_outlier])
    )


def _without_overlap(
    attributed: list[AttributedAdjustment], zones: tuple[Adjustment, ...]
) -> tuple[list[AttributedAdjustment], tuple[Adjustment, ...]]:
    """Return the adjustments and the zones, with each zone that overlaps an adjustment of its clock joined to that."""

    def overlaps(adjustment: Adjustment, zone: Adjustment) -> bool:
        is_apart = zone.from_ns > adjustment.to_ns or zone.to_ns < adjustment.from_ns
        return zone.clock == adjustment.clock and not is_apart

    def joined(adjustment: Adjustment) -> Adjustment:
        own = [adjustment, *(zone for zone in zones if overlaps(adjustment, zone))]
        from_ns, to_ns = min(each.from_ns for each in own), max(each.to_ns for each in own)
        return replace(adjustment, from_ns=from_ns, to_ns=to_ns, widen_ns=sum(each.widen_ns for each in own))

    every = [adjustment for each in attributed for adjustment in each.adjustments]
    apart = tuple(zone for zone in zones if not any(overlaps(each, zone) for each in every))
    return [AttributedAdjustment(tuple(map(joined, each.adjustments))) for each in attributed], apart


def _renumbered(conflicts: Conflicts, kept: Bools) -> Conflicts:
    left = conflicts.without(~kept)
    number = np.cumsum(kept) - 1
    return replace(left, early=number[left.early], late=number[left.late])


def _unnoticed_fraction(kept: Evidence, grid: Grid, conflict_ns: Floats) -> float:
    """Return the fraction of observations that may be outliers too small to be noticed.

    An outlier is not noticed if its error is below the margin between the two directions of its pair. About as many
    are expected there as have errors of up to twice the margin, and those were noticed.
    """
    if not len(conflict_ns):
        return 0.0
    limits = limits_of(constraints_of(kept, grid, 0.0), grid)
    margin_ns = limits.tightest_ns + np.where(limits.back >= 0, limits.tightest_ns[:, limits.back], np.inf)
    usual_ns = np.median(margin_ns[np.isfinite(margin_ns)]) if np.isfinite(margin_ns).any() else 0.0
    small_count = int(np.sum(conflict_ns < usual_ns))
    return float(min(OUTLIER_FRACTIONS[-1], UNNOTICED_PER_NOTICED * (small_count + 1) / max(1, len(kept))))


def _solution(
    screened: Screened,
    reference: Ints,
    found: Bounds,
    also: tuple[tuple[Contradiction, ...], tuple[Corner, ...]],
) -> Solution:
    """Return the solution: the estimate at every knot, moved into its bounds where it is outside."""
    grid = screened.grid
    count, clocks = found.upper_ns.shape
    anchored = reference == np.arange(clocks)
    # Observations in an unbounded stretch are probably correct, which is good enough for an estimate.
    contradictions, corners = also
    if screened.rejected:
        corners = tuple(rate_changes(screened.kept, len(reference)).corners)
    corners = tuple(each for each in corners if not _is_explained(each, screened.attributed))
    fitted = fit(screened.kept, grid.seen, anchored, corners, trusted=not screened.outlier_fraction)
    clock = np.tile(np.arange(clocks), count)
    knots = moments_of(fitted.times_ns, clocks, clock, np.repeat(grid.knots_ns, clocks))
    x_ns = fitted.at(grid, knots).reshape(count, clocks)
    inside_ns = _feasible(x_ns, found, grid)
    standard_error_ns = fitted.standard_error_ns(grid)
    unexplained_ns = np.abs(inside_ns - x_ns)
    slewed = np.unique([each.clock for each in grid.adjustments if each.is_rate])
    if corners or len(slewed):
        unexplained_ns += deviation_of_references(fitted, standard_error_ns, grid, reference, slewed)
    jumps = dict(zip(grid.adjustments, np.abs(fitted.jumps_ns).tolist(), strict=True))
    attributed = tuple(
        AttributedAdjustment(tuple(sorted(each.adjustments, key=lambda adjustment: -jumps[adjustment])))
        for each in screened.attributed
    )
    return Solution(
        grid=grid,
        reference=reference,
        bounds=found,
        x_ns=inside_ns,
        outlier_fraction=screened.outlier_fraction,
        attributed=attributed,
        rejected=screened.rejected,
        contradictions=contradictions,
        standard_error_ns=standard_error_ns,
        unexplained_ns=unexplained_ns,
        corners=corners,
    )


def _is_explained(corner: Corner, attributed: tuple[AttributedAdjustment, ...]) -> bool:
    """Return whether one of the two clocks was set about then."""
    every = (adjustment for each in attributed for adjustment in each.adjustments)
    return any(
        each.clock in (corner.one, corner.other)
        and each.from_ns - abs(each.size_ns) - AROUND_NS <= corner.to_ns
        and each.to_ns + abs(each.size_ns) + AROUND_NS >= corner.from_ns
        for each in every
    )


def _feasible(x_ns: Floats, found: Bounds, grid: Grid) -> Floats:
    """Return corrections within their bounds that change no faster than clocks drift, except at adjustments.

    An undetected outlier can bend the estimate, or narrow the bounds for a while, by more than that.
    """
    along_ns = np.where(grid.seen.continuous(), grid.budget * grid.gap_ns, np.inf)
    inside_ns = np.clip(x_ns, found.lower_ns, found.upper_ns)
    too_fast = (np.abs(np.diff(inside_ns, axis=0)) > along_ns + TOLERANCE_NS).any(axis=0)
    lowest_ns, highest_ns = -limit_slope(-found.lower_ns, along_ns), limit_slope(found.upper_ns, along_ns)
    smooth_ns = np.clip(
        (limit_slope(x_ns, along_ns) - limit_slope(-x_ns, along_ns)) / 2, lowest_ns, highest_ns
    )
    # Where the bounds themselves change faster, halfway between them is the smoothest choice.
    crossed = lowest_ns > highest_ns
    middle_ns = np.where(crossed, lowest_ns, 0.0) / 2 + np.where(crossed, highest_ns, 0.0) / 2
    return np.where(too_fast, np.where(crossed, middle_ns, smooth_ns), inside_ns)


def _tightest_observations(evidence: Evidence, one: int, other: int) -> tuple[int, ...]:
    """Return the observation of each direction with the shortest apparent delay."""
    rows = []
    for source, target in ((one, other), (other, one)):
        own = np.flatnonzero((evidence.source == source) & (evidence.target == target))
        if len(own):
            rows.append(int(evidence.row[own[np.argmin(evidence.delay_ns[own])]]))
    return tuple(rows)


def _without_correction(
    grid: Grid, reference: Ints, contradictions: tuple[Contradiction, ...], evidence: Evidence
) -> Solution:
    """Return the solution that corrects no clock: the contradictions involve cycles of several machines."""
    start = np.broadcast_to(reference == np.arange(len(reference)), grid.segment.shape)
    used = np.unique(np.concatenate([evidence.source, evidence.target]))
    return Solution(
        grid=grid,
        reference=reference,
        bounds=Bounds(np.where(start, 0.0, -np.inf), np.where(start, 0.0, np.inf)),
        x_ns=np.zeros(grid.segment.shape),
        outlier_fraction=0.0,
        attributed=(),
        rejected={},
        contradictions=contradictions,
        withheld=frozenset(used.tolist()),
    )
