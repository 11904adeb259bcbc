"""How far two clocks can be apart at each knot, by what was observed before it, and by what was observed after it.

Both are kept, because a clock may have been set by so little that nothing proves it: then what was observed before
holds until that moment, and what was observed after holds from there on. The wider of the two always holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from stagescope.clocks.conflicts import tight
from stagescope.clocks.grid import TOLERANCE_NS

if TYPE_CHECKING:
    from stagescope.clocks.evidence import Bools, Evidence, Floats, Ints
    from stagescope.clocks.grid import Grid

CHANCE = 1e-7
BLOCKS = (16, 64)
"""Observations in a row that are judged together: short blocks allow for less drift, long ones for fewer falsities."""

INLIER_RANK = 3
"""So many of the outermost observations of a pair are not all long because they are false: a clock was set."""


@dataclass(frozen=True)
class Constraints:
    """`x[source] - x[target] <= limit_ns` at `at_ns`, by what was observed from `from_ns` to `to_ns`; in one segment.

    `row` tells which clocks and segments: its source and target are `source` and `target`.
    """

    source: Ints
    target: Ints
    from_ns: Floats
    to_ns: Floats
    at_ns: Floats
    limit_ns: Floats
    before: Ints
    after: Ints


def constraints_of(
    evidence: Evidence, grid: Grid, outlier_fraction: float, *, to_the_ends: bool = False
) -> Constraints:
    """Return what the observations say if this outlier_fraction of them is false without being noticed; none inside of steps.

    `to_the_ends`: of each pair as if right observations of it enclosed every step, be it among its outermost ones.
    """
    before = grid.segment_at(evidence.source, evidence.sent_ns)
    after = grid.segment_at(evidence.target, evidence.received_ns)
    usable = (before >= 0) & (after >= 0) & tight(evidence, len(grid.budget))
    chosen = evidence.where(usable)
    ends = np.stack([chosen.sent_ns, chosen.received_ns])
    drift_ns = grid.budget[chosen.target] * np.abs(ends[1] - ends[0])
    constraints = Constraints(
        chosen.source,
        chosen.target,
        ends.min(axis=0),
        ends.max(axis=0),
        chosen.sent_ns,
        chosen.delay_ns + drift_ns,
        before[usable],
        after[usable],
    )
    return (
        _robust(constraints, grid, outlier_fraction, to_the_ends=to_the_ends)
        if outlier_fraction
        else constraints
    )


@cache
def most_outliers(count: int, outlier_fraction: float) -> int:
    """Return the most false ones of `count`, each false by chance `outlier_fraction`; more are less likely than `CHANCE`.

    >>> most_outliers(16, 0.0), most_outliers(64, 0.05)
    (0, 15)
    """
    below = 0.0
    for number in range(count + 1):
        below += (
            math.comb(count, number) * outlier_fraction**number * (1 - outlier_fraction) ** (count - number)
        )
        if 1 - below <= CHANCE:
            return number
    return count


def _robust(
    constraints: Constraints, grid: Grid, outlier_fraction: float, *, to_the_ends: bool
) -> Constraints:
    """Return one fact per block of those of one pair of clocks in a row, if it is large enough, and one per end."""
    steps = len(grid.adjustments) + 1
    row = constraints.source * len(grid.budget) + constraints.target
    row = (row * steps + constraints.before) * steps + constraints.after
    order = np.lexsort((constraints.at_ns, row))
    constraints, row = _where(constraints, order), row[order]
    parts = [
        _blocks(constraints, row, grid, (size, shift), outlier_fraction)
        for size in BLOCKS
        for shift in (0, size // 2)
    ]
    few = fewest_with_inlier(outlier_fraction)
    parts += [_outermost(constraints, row, grid, few, to_the_ends=to_the_ends)]
    backwards = _reversed_in_time(_where(constraints, np.arange(len(row))[::-1]))
    parts += [_reversed_in_time(_outermost(backwards, row[::-1], grid, few, to_the_ends=to_the_ends))]
    names = Constraints.__dataclass_fields__
    return Constraints(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _where(constraints: Constraints, chosen: Ints) -> Constraints:
    return Constraints(
        **{name: getattr(constraints, name)[chosen] for name in Constraints.__dataclass_fields__}
    )


def _blocks(
    constraints: Constraints, row: Ints, grid: Grid, adjustment: tuple[int, int], outlier_fraction: float
) -> Constraints:
    """Return for each block, as of its middle, the tightest limit but as many as may be false."""
    size, shift = adjustment
    place = np.arange(len(row)) - np.searchsorted(row, row)
    block = np.unique(np.stack([row, (place + shift) // size]), axis=1, return_inverse=True)[1].reshape(-1)
    counts = np.bincount(block)
    first = np.cumsum(counts) - counts
    at_ns = constraints.at_ns[first + counts // 2]
    budget = grid.budget[constraints.source] + grid.budget[constraints.target]
    limit_ns = constraints.limit_ns + budget * np.abs(constraints.at_ns - at_ns[block])
    skipped = np.array([most_outliers(int(count), outlier_fraction) for count in counts], np.int64)
    usable = skipped < counts
    chosen = np.lexsort((limit_ns, block))[(first + skipped)[usable]]
    from_ns, to_ns = (
        np.minimum.reduceat(constraints.from_ns, first) if len(first) else constraints.from_ns,
        np.maximum.reduceat(constraints.to_ns, first) if len(first) else constraints.to_ns,
    )
    return Constraints(
        constraints.source[chosen],
        constraints.target[chosen],
        from_ns[usable],
        to_ns[usable],
        at_ns[usable],
        limit_ns[chosen],
        constraints.before[chosen],
        constraints.after[chosen],
    )


def fewest_with_inlier(outlier_fraction: float) -> int:
    """Return of how many observations the `INLIER_RANK`-th longest is no tighter than the tightest one that is right.

    >>> fewest_with_inlier(0.01), fewest_with_inlier(0.05)
    (7, 9)
    """
    return next(
        count
        for count in range(INLIER_RANK, 1_000)
        if count - most_outliers(count, outlier_fraction) >= INLIER_RANK
    )


def _reversed_in_time(constraints: Constraints) -> Constraints:
    """Return the constraints as of a time that goes backwards."""
    return replace(
        constraints, from_ns=-constraints.to_ns, to_ns=-constraints.from_ns, at_ns=-constraints.at_ns
    )


def _outermost(
    constraints: Constraints, row: Ints, grid: Grid, few: int, *, to_the_ends: bool
) -> Constraints:
    """Return what the first few observations of each pair say together, even if a clock was set among them.

    A block's limit may be of the other side of a step inside of it, and before the first block nothing else tells. Of
    the few, the `INLIER_RANK`-th longest counts: a false one may be long as well as short. It holds from that many
    on, or `to_the_ends`; then of fewer observations too, of which one is right: the longest counts.
    """
    first = np.flatnonzero(np.concatenate([[True], row[1:] != row[:-1]]))[: len(row)]
    counts = np.diff(np.append(first, len(row)))
    if not to_the_ends:
        first, counts = first[counts >= few], counts[counts >= few]
    places = first[:, None] + np.minimum(np.arange(few), counts[:, None] - 1)
    budget = (grid.budget[constraints.source] + grid.budget[constraints.target])[places]
    limit_ns = constraints.limit_ns[places] + budget * np.abs(
        constraints.at_ns[places] - constraints.at_ns[first][:, None]
    )
    longest = np.where(counts >= few, few - INLIER_RANK, few - 1)
    known = places[:, : 1 if to_the_ends else INLIER_RANK]
    return replace(
        _where(constraints, first),
        from_ns=constraints.from_ns[places].min(axis=1),
        to_ns=constraints.to_ns[known].max(axis=1),
        limit_ns=np.sort(limit_ns, axis=1)[np.arange(len(first)), longest],
    )


@dataclass(frozen=True)
class Limits:
    """Per directed pair of clocks (columns) and knot (rows): `x[one] - x[other]` is at most this, infinite if unknown.

    `back` is the column of the other direction, -1 where nothing was observed. `along_ns` is how much wider a limit
    gets from each knot to the next.
    """

    one: Ints
    other: Ints
    back: Ints
    past_ns: Floats
    future_ns: Floats
    along_ns: Floats

    @property
    def tightest_ns(self) -> Floats:
        """The limits if no clock was ever set but where the grid says so."""
        return np.minimum(self.past_ns, self.future_ns)

    @property
    def margin_ns(self) -> Floats:
        """The usual room of each pair between the limits of its two directions; 0 where there is only one of them."""
        tightest_ns = self.tightest_ns
        both_ns = np.where(self.back >= 0, tightest_ns + tightest_ns[:, self.back], np.inf)
        known = np.isfinite(self.past_ns + self.future_ns)
        known &= known[:, self.back]
        # Where no knot lies between observations of both directions, the nearest to it will do.
        usual_ns = _median(both_ns, known)
        usual_ns = np.minimum(usual_ns, np.where(known.any(axis=0), np.inf, both_ns.min(axis=0)))
        return np.where(np.isfinite(usual_ns), np.maximum(usual_ns, 0.0), 0.0)

    @property
    def safe_ns(self) -> Floats:
        """The limits that hold although a clock may have been set by what nothing contradicts.

        Before the first observation and after the last one, only that one is sure to be of the same side of a step:
        what both sides say at the nearest knot is extrapolate there, and the room between the two directions is added.
        """
        widest_ns = np.maximum(self.past_ns, self.future_ns)
        extrapolated_ns = extrapolate(widest_ns, self.along_ns)
        beyond_ns = np.where(np.isfinite(extrapolated_ns), extrapolated_ns, self.tightest_ns)
        return np.where(np.isfinite(widest_ns), widest_ns, beyond_ns + self.margin_ns)


def extrapolate(limits_ns: Floats, along_ns: Floats) -> Floats:
    """Return the limits with those that are missing extrapolate over from both sides: the wider of what they say."""
    missing = ~np.isfinite(limits_ns)
    if not missing.any():
        return limits_ns
    past_ns, future_ns = limits_ns.copy(), limits_ns.copy()
    for knot in range(1, len(limits_ns)):
        past_ns[knot] = np.where(missing[knot], past_ns[knot - 1] + along_ns[knot - 1], past_ns[knot])
    for knot in range(len(limits_ns) - 2, -1, -1):
        future_ns[knot] = np.where(missing[knot], future_ns[knot + 1] + along_ns[knot], future_ns[knot])
    widest_ns = np.maximum(past_ns, future_ns)
    return np.asarray(np.where(np.isfinite(widest_ns), widest_ns, np.minimum(past_ns, future_ns)))


def limit_slope(values_ns: Floats, along_ns: Floats) -> Floats:
    """Return the largest values below these of which none is more than `along_ns` above that of the knot beside it."""
    lowest_ns = values_ns.copy()
    for knot in range(1, len(lowest_ns)):
        np.minimum(lowest_ns[knot], lowest_ns[knot - 1] + along_ns[knot - 1], out=lowest_ns[knot])
    for knot in range(len(lowest_ns) - 2, -1, -1):
        np.minimum(lowest_ns[knot], lowest_ns[knot + 1] + along_ns[knot], out=lowest_ns[knot])
    return np.asarray(lowest_ns)


def _median(values: Floats, known: Bools) -> Floats:
    """Return the median of the known values of each column, infinite where there is none."""
    ordered = np.sort(np.where(known, values, np.inf), axis=0)
    middle = np.maximum(known.sum(axis=0) - 1, 0) // 2
    return np.asarray(ordered[middle, np.arange(values.shape[1])])


def limits_of(constraints: Constraints, grid: Grid) -> Limits:
    """Return the limits at every knot; each fact is extrapolate along the knots by the budgets of its clocks."""
    clocks, knots = len(grid.budget), len(grid.knots_ns)
    key = constraints.source * clocks + constraints.target
    pairs, column = np.unique(key, return_inverse=True)
    one, other = pairs // clocks, pairs % clocks
    place = np.searchsorted(pairs, other * clocks + one)
    place = np.minimum(place, max(0, len(pairs) - 1))
    back = np.where(pairs[place] == other * clocks + one, place, -1) if len(pairs) else place
    along_ns = np.where(
        grid.continuous()[:, one] & grid.continuous()[:, other],
        (grid.budget[one] + grid.budget[other]) * grid.gap_ns,
        np.inf,
    )
    after = np.ceil((constraints.to_ns - grid.knots_ns[0]) / grid.gap_ns)
    past_ns = _at_knots(constraints, grid, np.maximum(after, 0).astype(np.int64), column)
    before = np.floor((constraints.from_ns - grid.knots_ns[0]) / grid.gap_ns)
    future_ns = _at_knots(constraints, grid, np.minimum(before, knots - 1).astype(np.int64), column)
    for knot in range(1, knots):
        np.minimum(past_ns[knot], past_ns[knot - 1] + along_ns[knot - 1], out=past_ns[knot])
    for knot in range(knots - 2, -1, -1):
        np.minimum(future_ns[knot], future_ns[knot + 1] + along_ns[knot], out=future_ns[knot])
    return Limits(one, other, back, past_ns, future_ns, along_ns)


def _at_knots(constraints: Constraints, grid: Grid, knot: Ints, column: Ints) -> Floats:
    """Return the tightest fact per knot and pair, each extrapolate to the knot next to it, if that is of its segments.
    """
    limits_ns = np.full((len(grid.knots_ns), int(column.max(initial=-1)) + 1), np.inf)
    inside = np.flatnonzero((knot >= 0) & (knot < len(grid.knots_ns)))
    knot, column = knot[inside], column[inside]
    source, target = constraints.source[inside], constraints.target[inside]
    same = (grid.segment[knot, source] == constraints.before[inside]) & (
        grid.segment[knot, target] == constraints.after[inside]
    )
    budget = grid.budget[source] + grid.budget[target]
    extrapolated_ns = constraints.limit_ns[inside] + budget * np.abs(
        constraints.at_ns[inside] - grid.knots_ns[knot]
    )
    np.minimum.at(limits_ns, (knot[same], column[same]), extrapolated_ns[same])
    return limits_ns


def contradicting_pairs(limits: Limits) -> list[tuple[int, int, float]]:
    """Return the pairs of clocks whose own limits exclude each other, and by how many nanoseconds."""
    tightest_ns = limits.tightest_ns
    found = []
    for index in np.flatnonzero((limits.one < limits.other) & (limits.back >= 0)):
        margin_ns = float((tightest_ns[:, index] + tightest_ns[:, limits.back[index]]).min())
        if margin_ns < -TOLERANCE_NS:
            found.append((int(limits.one[index]), int(limits.other[index]), -margin_ns))
    return found
