"""How far two clocks can be apart at each knot: limits from the observations before it, and from those after it.

Both are kept, because a clock may have been set by too little to contradict anything. What was observed before then
holds up to that moment, and what was observed after holds from there on. The wider of the two always holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from stagescope.clocks.conflicts import tight
from stagescope.clocks.grid import TOLERANCE_NS
from stagescope.clocks.grouped import distinct

if TYPE_CHECKING:
    from stagescope.clocks.evidence import Bools, Evidence, Floats, Ints
    from stagescope.clocks.grid import Grid

CHANCE = 1e-7
"""The accepted probability that a block of observations holds more outliers than are allowed for."""
BLOCKS = (16, 64)
"""Sizes of blocks of consecutive observations that are judged together: short blocks allow for less drift, long ones
for a smaller fraction of outliers."""

INLIER_RANK = 3
"""If the outermost observations of a pair have this many long delays, not all of them are outliers: a clock was set."""


@dataclass(frozen=True)
class Constraints:
    """Constraints `x[source] - x[target] <= limit_ns` at `at_ns`.

    They come from observations between `from_ns` and `to_ns`. `before` and `after` are the segments of source and
    target; a constraint holds within these only.
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
    """Return the constraints of the observations if this fraction of them are unnoticed outliers.

    Observations inside of an adjustment give none. With `to_the_ends`, correct observations of each pair are assumed
    to enclose every adjustment, even one among its outermost observations.
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
    """Return the largest plausible number of outliers among `count` observations.

    The outliers are independent with probability `outlier_fraction` (binomial distribution); more of them than the
    result have a probability below `CHANCE`.

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
    """Return one constraint per block of consecutive observations of a pair, and one per end of the pair."""
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
    """Return the constraint of each block at its middle: the tightest after skipping possible outliers."""
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
    """Return how many observations are needed so that the one of rank `INLIER_RANK` is no tighter than a correct one.

    >>> fewest_with_inlier(0.01), fewest_with_inlier(0.05)
    (7, 9)
    """
    return next(
        count
        for count in range(INLIER_RANK, 1_000)
        if count - most_outliers(count, outlier_fraction) >= INLIER_RANK
    )


def _reversed_in_time(constraints: Constraints) -> Constraints:
    """Return the constraints with time running backward, so that the last observations become the first."""
    return replace(
        constraints, from_ns=-constraints.to_ns, to_ns=-constraints.from_ns, at_ns=-constraints.at_ns
    )


def _outermost(
    constraints: Constraints, row: Ints, grid: Grid, few: int, *, to_the_ends: bool
) -> Constraints:
    """Return the joint constraint of the first few observations of each pair.

    It is valid even if a clock was set among them. The limit of a block may come from the other side of an adjustment
    inside it, and before the first block there is nothing else. The observation of rank `INLIER_RANK` among the
    longest counts, because an outlier may be long or short. The constraint holds from that many observations on; with
    `to_the_ends`, from the first one, and pairs with fewer observations contribute their longest, of which at least
    one is assumed to be correct.
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
    """The upper limit of `x[one] - x[other]` per knot (rows) and directed pair of clocks (columns).

    It is infinite where unknown. `back` is the column of the opposite direction, -1 without observations. `along_ns`
    is by how much a limit widens from each knot to the next.
    """

    one: Ints
    other: Ints
    back: Ints
    past_ns: Floats
    future_ns: Floats
    along_ns: Floats

    @property
    def tightest_ns(self) -> Floats:
        """The limits if no clock was set except where the grid has an adjustment."""
        return np.minimum(self.past_ns, self.future_ns)

    @property
    def margin_ns(self) -> Floats:
        """The usual margin of each pair between the limits of its directions; 0 if only one is known."""
        tightest_ns = self.tightest_ns
        both_ns = np.where(self.back >= 0, tightest_ns + tightest_ns[:, self.back], np.inf)
        known = np.isfinite(self.past_ns + self.future_ns)
        known &= known[:, self.back]
        # Pairs without a knot between observations of both directions use the closest value they have.
        usual_ns = _median(both_ns, known)
        usual_ns = np.minimum(usual_ns, np.where(known.any(axis=0), np.inf, both_ns.min(axis=0)))
        return np.where(np.isfinite(usual_ns), np.maximum(usual_ns, 0.0), 0.0)

    @property
    def safe_ns(self) -> Floats:
        """The limits that hold even if a clock was set by too little to contradict any observation.

        Before the first observation and after the last, only that one observation is certainly on the same side of an
        adjustment. There, the limits at the nearest knot with both sides are extrapolated, and the margin of the pair
        is added.
        """
        widest_ns = np.maximum(self.past_ns, self.future_ns)
        extrapolated_ns = extrapolate(widest_ns, self.along_ns)
        beyond_ns = np.where(np.isfinite(extrapolated_ns), extrapolated_ns, self.tightest_ns)
        return np.where(np.isfinite(widest_ns), widest_ns, beyond_ns + self.margin_ns)


def extrapolate(limits_ns: Floats, along_ns: Floats) -> Floats:
    """Return the limits with missing ones extrapolated from both sides; the wider of the two counts."""
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
    """Return the largest values not above these that differ by at most `along_ns` between knots."""
    lowest_ns = values_ns.copy()
    for knot in range(1, len(lowest_ns)):
        np.minimum(lowest_ns[knot], lowest_ns[knot - 1] + along_ns[knot - 1], out=lowest_ns[knot])
    for knot in range(len(lowest_ns) - 2, -1, -1):
        np.minimum(lowest_ns[knot], lowest_ns[knot + 1] + along_ns[knot], out=lowest_ns[knot])
    return np.asarray(lowest_ns)


def _median(values: Floats, known: Bools) -> Floats:
    """Return the median of the known values of each column, infinite where there are none."""
    ordered = np.sort(np.where(known, values, np.inf), axis=0)
    middle = np.maximum(known.sum(axis=0) - 1, 0) // 2
    return np.asarray(ordered[middle, np.arange(values.shape[1])])


def limits_of(constraints: Constraints, grid: Grid) -> Limits:
    """Return the limits at every knot; constraints move along the knots by the drift budgets of their clocks."""
    clocks, knots = len(grid.budget), len(grid.knots_ns)
    key = constraints.source * clocks + constraints.target
    pairs, _, column, _ = distinct(key)
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
    """Return the tightest constraint per knot and pair, each moved to the next knot of its own segments."""
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
    """Return the pairs of clocks whose own limits contradict each other, and by how many nanoseconds."""
    tightest_ns = limits.tightest_ns
    found = []
    for index in np.flatnonzero((limits.one < limits.other) & (limits.back >= 0)):
        margin_ns = float((tightest_ns[:, index] + tightest_ns[:, limits.back[index]]).min())
        if margin_ns < -TOLERANCE_NS:
            found.append((int(limits.one[index]), int(limits.other[index]), -margin_ns))
    return found
