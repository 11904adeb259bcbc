"""Windows of time in which the shortest delays of two clocks show how far apart they are.

Messages and collectives of a pair are separate kinds of evidence: their shortest delays differ. If receivers waited
in both directions, half the difference of the shortest delays is the offset. If they waited in one direction only, the
delays of that direction show how the offset changes, but its size only up to a constant: the shortest delay of the
other direction. The constant is a further unknown of the fit, near its most plausible value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from stagescope.clocks.evidence import COLLECTIVE
from stagescope.clocks.exits import EXIT_NS
from stagescope.clocks.grouped import distinct, grouped

if TYPE_CHECKING:
    from stagescope.clocks.estimate import Fit
    from stagescope.clocks.evidence import Bools, Evidence, Floats, Ints
    from stagescope.clocks.grid import Grid
    from stagescope.clocks.grouped import Grouped
    from stagescope.clocks.knots import Moments

LEAST_WINDOWS = 6
NOISE_NS = 300.0
"""Resolution of timestamps and scheduling noise, added to the spread of each window."""
LOW_QUANTILE = 0.3
"""The typical value of a pair is this quantile of its windows."""
USUAL_LATENCY_NS = 25_000.0
"""The shortest delay of a message in one direction, where no pair of clocks shows it."""
EXIT_SKEW_NS = 30_000.0
"""How far apart two ranks typically leave a collective, if only one of them ever enters last."""
SHORT_TRIP = 0.25
"""What is missing in a round trip that is too short, because the rate is not yet known, counts by this factor."""
BIAS = 0.3
"""The mean excess of the shortest delays of windows is known to about this fraction."""


@dataclass(frozen=True)
class Cells:
    """The pair and window (cell) of each observation, and the mean time of each cell.

    A pair is two clocks and a kind of evidence. `waited` has two rows, one per direction, with one value for each
    pair: whether any receiver waited.
    """

    index: Ints
    one: Ints
    other: Ints
    at_ns: Floats
    pair: Ints
    ahead: Bools
    waited: Bools
    is_collective: Bools

    @cached_property
    def of_ways(self) -> tuple[Grouped, Grouped]:
        """The observations of each direction by their cells."""
        ahead, back = (np.flatnonzero(way) for way in (self.ahead, ~self.ahead))
        return grouped(self.index, ahead), grouped(self.index, back)

    @cached_property
    def of_pairs(self) -> Grouped:
        """The cells of each pair."""
        return grouped(self.pair)

    @cached_property
    def entry(self) -> Ints:
        """The direction of each cell in which receivers waited: 1 if they did in the second only."""
        return np.where(self.waited[0, self.pair], 0, 1)


@dataclass(frozen=True)
class Problem:
    """The observations in cells, and what the fit assumes; `ends` are when messages were sent and received.

    `has_corners`: rates changed by much at some moments. `has_exits`: how far apart ranks always leave is part of the
    errors of the clocks, and not of the constants of pairs.
    """

    evidence: Evidence
    ends: tuple[Moments, Moments]
    cells: Cells
    grid: Grid
    anchored: Bools
    low_quantile: float
    has_corners: bool
    has_exits: bool = False

    @cached_property
    def stays_ns(self) -> Floats:
        """How long the last rank to enter the collectives of each window stayed in them, infinite if unknown.

        All ranks leave at about the same time, so that is also the expected delay from its entry to the exit of others.
        """
        cells, stay_ns = self.cells, self.evidence.stay_ns
        chosen = np.flatnonzero(np.where(cells.ahead, 0, 1) == cells.entry[cells.index])
        return _shortest(cells, grouped(cells.index, chosen), stay_ns)[0]

    @cached_property
    def exits_ns(self) -> tuple[Floats, Floats]:
        """How far apart two clocks leave the collectives of each window: scatter, and what is always the same.

        What is always the same is that of the pair.
        """
        cells, evidence = self.cells, self.evidence
        count = np.bincount(cells.index)
        scatter_ns = np.sqrt(np.bincount(cells.index, evidence.scatter_ns**2)) / count
        squares = np.bincount(cells.index, evidence.constant_ns**2 + evidence.target_constant_ns**2)
        of_pair = np.bincount(cells.pair, squares) / np.bincount(cells.pair, count)
        constant_ns = np.sqrt(of_pair)[cells.pair]
        return scatter_ns, np.where(constant_ns > EXIT_NS, constant_ns, 0.0)


@dataclass(frozen=True)
class Windows:
    """One row per pair and window: the change that the difference of the corrections of its clocks still needs.

    `constant` is the number of the unknown constant that is part of the row, and `constant_ns` are the standard
    deviations of all constants around 0. `of_exits` is whether the row compares exits from collectives, and
    `exit_errors_ns` the standard error of the mean exit of each clock; without it, exits are as certain as clocks.
    """

    one: Ints
    other: Ints
    at_ns: Floats
    change_ns: Floats
    weight: Floats
    constant: Ints
    constant_ns: Floats
    of_exits: Bools = field(default_factory=lambda: np.zeros(0, bool))
    exit_errors_ns: Floats = field(default_factory=lambda: np.zeros(0))


def cells_of(evidence: Evidence, times_ns: Floats, side: Ints, per_window: int) -> Cells:
    """Return the windows of each pair; their number depends on how many observations it has.

    With fixed windows, a pair with few observations would have no short delay in most of them. `side` is the number
    of clock adjustments before each observation: no window spans an adjustment.
    """
    one, other = np.minimum(evidence.source, evidence.target), np.maximum(evidence.source, evidence.target)
    pairs = (one * (int(other.max()) + 1) + other) * 2 + (evidence.channel == COLLECTIVE)
    _, _, pair, counts = distinct(pairs)
    ahead = evidence.source < evidence.target
    waited = np.zeros((2, len(counts)), bool)
    waited[np.where(ahead, 0, 1)[evidence.waited], pair[evidence.waited]] = True
    number = np.maximum(counts // (2 * per_window), np.minimum(LEAST_WINDOWS, counts // 4))
    number = np.clip(number, 1, len(times_ns) - 1)[pair]
    fraction = (evidence.sent_ns - times_ns[0]) / (times_ns[-1] - times_ns[0])
    window = np.clip(np.floor(fraction * number), 0, number - 1).astype(np.int64)
    cell = (pair * len(times_ns) + window) * (int(side.max()) + 1) + side
    _, first, index, _ = distinct(cell)
    at_ns = np.bincount(index, evidence.sent_ns) / np.bincount(index)
    is_collective = (evidence.channel == COLLECTIVE)[first]
    return Cells(index, one[first], other[first], at_ns, pair[first], ahead, waited, is_collective)


def windows_of(problem: Problem, fitted: Fit, *, is_first: bool) -> Windows:
    """Return the residual of each window: from both directions, or from the one in which receivers waited.

    In the first round the fit does not follow the drift yet, so that long delays in one direction are not recognized.
    """
    cells, pair = problem.cells, problem.cells.pair
    delay_ns = _residual_delays(problem, fitted)
    ways = [_shortest(cells, way, delay_ns) for way in cells.of_ways]
    least, noise = np.stack(ways, axis=1)
    trip_ns = least.sum(axis=0)
    usual_ns = _usual(cells, trip_ns, problem.low_quantile)
    change_ns, variance = _from_both_ways(least, noise, usual_ns, has_corners=problem.has_corners)
    waited = cells.waited[:, pair]
    # If neither of two clocks is ever late for a collective, it shows nothing about them.
    usable = np.isfinite(usual_ns) & ~(cells.is_collective & ~waited.any(axis=0))
    # What the constant may be: half of the round trip either way, unless other pairs show the latency of messages.
    # Of observed delays: where receivers do not wait, delays have no shortest one to extrapolate to.
    longest_ns = _usual(cells, (least + noise).sum(axis=0), problem.low_quantile)
    constant_ns = np.where(usable, longest_ns, 0.0) / np.sqrt(12)
    one_way = waited[0] != waited[1]
    if one_way.any():
        latency_ns = _latency(usual_ns[usable & waited.all(axis=0) & ~cells.is_collective])
        if latency_ns:
            constant_ns = np.where(one_way, latency_ns, constant_ns)
        constant_ns = np.where(one_way & cells.is_collective, EXIT_SKEW_NS, constant_ns)
        expected_ns = np.where(cells.is_collective, problem.stays_ns, latency_ns or USUAL_LATENCY_NS)
        found_ns, found_variance = _from_one_way(least, noise, (cells, expected_ns), is_first=is_first)
        change_ns = np.where(one_way, found_ns, change_ns)
        variance = np.where(one_way, found_variance, variance)
        usable = np.where(one_way, np.isfinite(found_ns), usable)
    skew_ns = np.where(cells.is_collective, EXIT_NS, 0.0)
    scatter_ns, apart_ns = problem.exits_ns
    variance = variance + np.maximum(skew_ns, scatter_ns) ** 2
    constant_ns = np.where(waited.all(axis=0), np.hypot(skew_ns, _shared_bias(noise, cells)), constant_ns)
    constant_ns = np.hypot(constant_ns, 0.0 if problem.has_exits else apart_ns)
    number, sizes_ns = _constants(pair, constant_ns)
    current_ns = fitted.constants_ns if len(fitted.constants_ns) else np.zeros(len(sizes_ns))
    with np.errstate(invalid="ignore"):
        change_ns = change_ns - current_ns[number]
    return Windows(
        cells.one[usable],
        cells.other[usable],
        cells.at_ns[usable],
        change_ns[usable],
        1 / variance[usable],
        number[usable],
        sizes_ns,
        cells.is_collective[usable],
    )


def _residual_delays(problem: Problem, fitted: Fit) -> Floats:
    sent, received = problem.ends
    delay_ns = problem.evidence.delay_ns + fitted.at(problem.grid, received)
    return np.asarray(delay_ns - fitted.at(problem.grid, sent))


def _from_both_ways(
    least: Floats, noise: Floats, usual_ns: Floats, *, has_corners: bool
) -> tuple[Floats, Floats]:
    """Return half of the difference of both directions, and its variance.

    A window with observations in one direction uses the typical round trip of its pair. A round trip that is too short
    shows that the rate is not yet known: the shortest delays of both directions are then at opposite ends of the
    window, but half of their difference is right in its middle.
    """
    trip_ns = least.sum(axis=0)
    both = np.isfinite(trip_ns)
    with np.errstate(invalid="ignore"):
        alone = np.where(np.isfinite(least[0]), least[0] - usual_ns / 2, usual_ns / 2 - least[1])
        change_ns = np.where(both, (least[0] - least[1]) / 2, alone)
        excess_ns = np.where(both, (trip_ns - usual_ns) / 2, np.abs(alone) * 2)
        if has_corners:
            excess_ns = np.where(both & (excess_ns < 0), excess_ns * SHORT_TRIP, excess_ns)
        return change_ns, NOISE_NS**2 + excess_ns**2 + (noise**2).sum(axis=0) / 4


def _from_one_way(
    least: Floats, noise: Floats, of: tuple[Cells, Floats], *, is_first: bool
) -> tuple[Floats, Floats]:
    """Return the difference of the delays in one direction from the expected ones, and its variance.

    `of` has the windows and the expected delay of each. Windows without a short delay are longer than the typical ones
    of their pair.
    """
    cells, expected_ns = of
    way = cells.entry
    places = np.arange(len(way))
    with np.errstate(invalid="ignore"):
        longer_ns = least[way, places] - expected_ns
    usual_ns = _usual(cells, longer_ns, LOW_QUANTILE)
    with np.errstate(invalid="ignore"):
        excess_ns = np.zeros(len(way)) if is_first else np.maximum(longer_ns - usual_ns, 0.0)
        change_ns = np.where(way == 0, longer_ns, -longer_ns)
    return change_ns, NOISE_NS**2 + excess_ns**2 + noise[way, places] ** 2


def _latency(usual_ns: Floats) -> float:
    """Return the typical shortest delay of messages in one direction, 0 if no pair shows it."""
    return float(np.median(usual_ns)) / 2 if len(usual_ns) else 0.0


def _shared_bias(noise: Floats, cells: Cells) -> Floats:
    """Return how far half the difference of both directions may be off in all windows of a pair alike.

    How much the shortest of a few delays exceeds the shortest possible one is estimated once for the whole pair.
    """
    return np.asarray(BIAS * _usual(cells, np.sqrt((noise**2).sum(axis=0)) / 2, 0.5))


def _constants(pair: Ints, constant_ns: Floats) -> tuple[Ints, Floats]:
    """Return the number of each window's constant, and the sizes of all constants: one for each pair."""
    sizes_ns = np.zeros(int(pair.max()) + 1)
    np.maximum.at(sizes_ns, pair, np.where(np.isfinite(constant_ns), constant_ns, 0.0))
    return pair, np.maximum(sizes_ns, NOISE_NS / 2)


def _usual(cells: Cells, values: Floats, fraction: float) -> Floats:
    """Return for each window this quantile of the finite values of its pair, infinite if there are none."""
    pairs, is_known = cells.of_pairs, np.isfinite(values)
    known = np.add.reduceat(pairs.in_order(is_known.astype(np.int64)), pairs.first)
    ranked = pairs.ranked(
        pairs.in_order(np.where(is_known, values, np.inf)), (fraction * known).astype(np.int64)
    )
    usual = np.full(int(pairs.number[-1]) + 1, np.inf)
    usual[pairs.number] = ranked
    return np.asarray(usual[cells.pair])


def _shortest(cells: Cells, rows: Grouped, delay_ns: Floats) -> tuple[Floats, Floats]:
    """Return the shortest possible delay of every window, infinite without observations, and its standard error.

    The shortest of n exponentially distributed delays exceeds the shortest possible one by spread / n on average. The
    spread is estimated from the difference between the shortest and the k-th, divided by 1/(n-1) + ... + 1/(n-k+1).
    Without this, unequal spreads of the two directions would accumulate along a chain of machines. Windows in which
    hardly any receiver waited have extreme spreads, so the typical spread of the pair is used.
    """
    least, spread_ns, sizes = (np.full(len(cells.pair), np.inf) for _ in range(3))
    if len(rows.size):
        own_ns, counts = rows.in_order(delay_ns), rows.size
        # k is an eighth of the observations: few enough to stay in the exponential part of the distribution.
        low = np.where(counts > 1, np.maximum(counts // 8, 1), 0)
        harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, counts.max(initial=0) + 1))])
        steps = harmonic[counts - 1] - harmonic[counts - 1 - low]
        least[rows.number], sizes[rows.number] = np.minimum.reduceat(own_ns, rows.first), counts
        above_ns = rows.ranked(own_ns, low) - least[rows.number]
        spread_ns[rows.number[low > 0]] = above_ns[low > 0] / steps[low > 0]
    usual_ns = _usual(cells, spread_ns, LOW_QUANTILE)
    # With one observation in each window, the windows themselves show the spread.
    with np.errstate(invalid="ignore"):
        among_ns = (_usual(cells, least, 0.5) - _usual(cells, least, 0.0)) / math.log(2)
        usual_ns = np.where(np.isfinite(usual_ns), usual_ns, np.where(np.isfinite(among_ns), among_ns, 0.0))
        excess_ns = usual_ns / sizes
    return least - excess_ns, excess_ns
