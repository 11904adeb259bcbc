"""The best guess inside the interval: smooth corrections that make both ways of every pair equally long.

In each window of time the shortest possible delay of each direction is estimated; half their difference is how far
the two clocks are apart, if the path takes equally long both ways (Cristian 1989, NTP). All pairs are fitted at once
by weighted least squares, with corrections that are straight between knots and bend as a random walk of the rate
would. A few rounds, because the shortest delay of a window is only found once the drift within it has been taken
out. The steadier the rates prove to be, the longer the windows, and the more exact their shortest delays. An
asymmetric path shifts the result by half of its asymmetry: nothing in the messages can tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.sparse import coo_array, csc_array  # type: ignore[import-untyped]
from scipy.sparse.linalg import LinearOperator, cg, splu  # type: ignore[import-untyped]

from stagescope.clocks.conflicts import tight

if TYPE_CHECKING:
    from stagescope.clocks.evidence import Bools, Evidence, Floats, Ints
    from stagescope.clocks.grid import Grid

ROUNDS = 4
PER_WINDOW = 8
MOST_WINDOWS = 64
LEAST_WINDOWS = 6
MOST_UNKNOWN = 12_000
MOST_DIRECT = 3_000
NOISE_NS = 300.0
LARGEST_RATE = 100e-6
RIDGE = 1e-11
"""Of the largest term: so much does every correction resist, so that two that nothing tells apart can be solved for."""
LOW_QUANTILE = 0.3
"""What is usual for a pair is what three in ten of its windows undercut."""
ROUND_TRIP_QUANTILE = 0.1
"""The round trip of a pair, where nothing is false: most windows of some have no short delay in one direction."""
MISFIT = 0.5
"""Steadier rates fit if the windows miss by no more than this, squared, in terms of what chance explains."""


class _RateNoise(NamedTuple):
    """How fast rates may stray, `ppm` in a second and ten times that in 100, and how many messages a window needs."""

    ppm: float
    per_window: int

    @property
    def walk(self) -> float:
        """The strength of the random walk of the rate, per square root of a nanosecond."""
        return self.ppm * 1e-6 / math.sqrt(1e9)


MOST_VARIABLE = _RateNoise(2.0, PER_WINDOW)
STEADIER = (
    _RateNoise(0.02, 10 * PER_WINDOW),
    _RateNoise(0.1, 5 * PER_WINDOW),
    _RateNoise(0.5, 2 * PER_WINDOW),
)
"""In the order in which they are tried."""


@dataclass(frozen=True)
class Fit:
    """Corrections at `times_ns`, straight between them, and the jump of each clock step."""

    times_ns: Floats
    smooth_ns: Floats
    jumps_ns: Floats

    def at(self, grid: Grid, clock: Ints, at_ns: Floats) -> Floats:
        """Return the correction of each clock at a moment, in coarse time."""
        place, fraction = _place(self.times_ns, at_ns)
        value = self.smooth_ns[place, clock] * (1 - fraction) + self.smooth_ns[place + 1, clock] * fraction
        for adjustment, jump in zip(grid.adjustments, self.jumps_ns, strict=True):
            value = value + np.where(
                (clock == adjustment.clock) & (at_ns >= (adjustment.from_ns + adjustment.to_ns) / 2),
                jump,
                0.0,
            )
        return np.asarray(value)


def fit(evidence: Evidence, grid: Grid, anchored: Bools, *, trusted: bool) -> Fit:
    """Return the fitted corrections; those of `anchored` clocks are 0. `trusted`: nothing is thought to be false."""
    clocks = len(grid.budget)
    evidence = evidence.where(tight(evidence, clocks))
    times_ns = _times(evidence, grid)
    result = Fit(
        times_ns,
        np.zeros((len(times_ns), clocks)),
        -np.array([adjustment.size_ns for adjustment in grid.adjustments]),
    )
    before = grid.segment_at(evidence.source, evidence.sent_ns)
    after = grid.segment_at(evidence.target, evidence.received_ns)
    usable = (before >= 0) & (after >= 0)
    evidence, side = evidence.where(usable), (before + after)[usable]
    if not len(evidence):
        return result
    low_quantile = ROUND_TRIP_QUANTILE if trusted else LOW_QUANTILE
    short = _cells(evidence, times_ns, side, MOST_VARIABLE.per_window)
    result = _refined(result, _Problem(evidence, short, grid, anchored, low_quantile), MOST_VARIABLE)
    for steadier in STEADIER:
        cells = _cells(evidence, times_ns, side, steadier.per_window)
        problem = _Problem(evidence, cells, grid, anchored, low_quantile)
        steady = _refined(result, problem, steadier)
        if _misfit(_windows(problem, steady)) <= MISFIT:
            return steady
    return result


def _refined(result: Fit, problem: _Problem, rate_noise: _RateNoise) -> Fit:
    """Return the fit after some rounds of finding the shortest delays and solving for them."""
    smoothness = _smoothness(result.times_ns, result.smooth_ns.shape[1], rate_noise.walk)
    for _ in range(ROUNDS):
        windows = _windows(problem, result)
        result = _solve(windows, problem.grid, result, problem.anchored, smoothness)
    return result


def _misfit(windows: _Windows) -> float:
    """Return how far the windows are from what they ask for, squared, in terms of what they may be."""
    return float(np.mean(windows.change_ns**2 * windows.weight)) if len(windows.one) else 0.0


def _times(evidence: Evidence, grid: Grid) -> Floats:
    clocks = len(grid.budget)
    pairs, counts = np.unique(evidence.source * clocks + evidence.target, return_counts=True)
    each = float(np.quantile(counts, 0.9)) if len(pairs) else 0.0
    most = max(2, min(MOST_WINDOWS, MOST_UNKNOWN // clocks))
    return np.linspace(grid.knots_ns[0], grid.knots_ns[-1], int(np.clip(each / PER_WINDOW + 1, 2, most)))


def _place(times_ns: Floats, at_ns: Floats) -> tuple[Ints, Floats]:
    gap_ns = times_ns[1] - times_ns[0]
    place = np.clip((at_ns - times_ns[0]) // gap_ns, 0, len(times_ns) - 2).astype(np.int64)
    # Beyond the outermost knots the correction stays as it is there: a line would run away.
    return place, np.clip((at_ns - times_ns[place]) / gap_ns, 0.0, 1.0)


@dataclass(frozen=True)
class _Windows:
    """One row per pair of clocks and window: by how much the corrections of one and other should differ more."""

    one: Ints
    other: Ints
    at_ns: Floats
    change_ns: Floats
    weight: Floats


@dataclass(frozen=True)
class _Cells:
    """Which pair of clocks and window each observation lies in, and the middle of each window."""

    index: Ints
    one: Ints
    other: Ints
    at_ns: Floats
    pair: Ints
    ahead: Bools


@dataclass(frozen=True)
class _Problem:
    evidence: Evidence
    cells: _Cells
    grid: Grid
    anchored: Bools
    low_quantile: float


def _cells(evidence: Evidence, times_ns: Floats, side: Ints, per_window: int) -> _Cells:
    """Return the windows: as many for each pair as its observations fill, so that rare ones are not all bad.

    `side` tells how many clock steps came before each observation: no window has both sides of one.
    """
    one, other = np.minimum(evidence.source, evidence.target), np.maximum(evidence.source, evidence.target)
    pairs = one * (int(other.max()) + 1) + other
    _, pair, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    number = np.maximum(counts // (2 * per_window), np.minimum(LEAST_WINDOWS, counts // 4))
    number = np.clip(number, 1, len(times_ns) - 1)[pair]
    fraction = (evidence.sent_ns - times_ns[0]) / (times_ns[-1] - times_ns[0])
    window = np.clip(np.floor(fraction * number), 0, number - 1).astype(np.int64)
    cell = (pair * len(times_ns) + window) * (int(side.max()) + 1) + side
    _, first, index = np.unique(cell, return_index=True, return_inverse=True)
    at_ns = np.bincount(index, evidence.sent_ns) / np.bincount(index)
    return _Cells(index, one[first], other[first], at_ns, pair[first], evidence.source < evidence.target)


def _windows(problem: _Problem, fitted: Fit) -> _Windows:
    """Return what each window says: the middle of both directions, or one of them against the pair's round trip."""
    evidence, cells, grid = problem.evidence, problem.cells, problem.grid
    delay_ns = evidence.delay_ns + fitted.at(grid, evidence.target, evidence.received_ns)
    delay_ns = delay_ns - fitted.at(grid, evidence.source, evidence.sent_ns)
    ways = [_shortest(cells.index[way], delay_ns[way], cells.pair) for way in (cells.ahead, ~cells.ahead)]
    least, noise = np.stack(ways, axis=1)
    trip_ns = least.sum(axis=0)
    usual_ns = _usual(cells.pair, trip_ns, problem.low_quantile)
    both = np.isfinite(trip_ns)
    with np.errstate(invalid="ignore"):
        alone = np.where(np.isfinite(least[0]), least[0] - usual_ns / 2, usual_ns / 2 - least[1])
        change_ns = np.where(both, (least[0] - least[1]) / 2, alone)
        excess_ns = np.where(both, (trip_ns - usual_ns) / 2, np.abs(alone) * 2)
    usable = np.isfinite(usual_ns)
    variance = NOISE_NS**2 + excess_ns**2 + (noise**2).sum(axis=0) / 4
    return _Windows(
        cells.one[usable],
        cells.other[usable],
        cells.at_ns[usable],
        change_ns[usable],
        1 / variance[usable],
    )


def _usual(pair: Ints, values: Floats, fraction: float) -> Floats:
    """Return for each window what this fraction of its pair's windows undercut, infinite where no value is finite."""
    usual = np.full(int(pair.max()) + 1, np.inf)
    known = np.flatnonzero(np.isfinite(values))
    order = known[np.lexsort((values[known], pair[known]))]
    found, first, counts = np.unique(pair[order], return_index=True, return_counts=True)
    usual[found] = values[order[first + (fraction * counts).astype(np.int64)]]
    return np.asarray(usual[pair])


def _shortest(index: Ints, delay_ns: Floats, pair: Ints) -> tuple[Floats, Floats]:
    """Return the shortest possible delay of every window, infinite where it has none, and how exact it is.

    The shortest of n delays is longer than the shortest possible one, on average by their spread over n if they are
    exponential; and the spread is what lies between the shortest and the k-th, over 1/(n-1) + ... + 1/(n-k+1).
    Unequal spreads of the two directions would else add up along a chain of machines. Windows in which hardly any
    receiver waited have wild spreads: the pair's usual one counts.
    """
    least, spread_ns, sizes = (np.full(len(pair), np.inf) for _ in range(3))
    order = np.lexsort((delay_ns, index))
    index, delay_ns = index[order], delay_ns[order]
    found, first, counts = np.unique(index, return_index=True, return_counts=True)
    low = np.where(counts > 1, np.maximum(counts // 8, 1), 0)
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, counts.max(initial=0) + 1))])
    steps = harmonic[counts - 1] - harmonic[counts - 1 - low]
    least[found], sizes[found] = delay_ns[first], counts
    spread_ns[found[low > 0]] = ((delay_ns[first + low] - delay_ns[first])[low > 0]) / steps[low > 0]
    usual_ns = _usual(pair, spread_ns, LOW_QUANTILE)
    excess_ns = np.where(np.isfinite(usual_ns), usual_ns, 0.0) / sizes
    return least - excess_ns, excess_ns


def _smoothness(times_ns: Floats, clocks: int, walk: float) -> coo_array:
    """Return the rows that ask for straight lines, and, much more weakly, for flat ones."""
    count, gap_ns = len(times_ns), times_ns[1] - times_ns[0]
    knots = np.arange(count * clocks).reshape(count, clocks)
    bend = 1 / (walk * gap_ns * np.sqrt(gap_ns))
    flat = 1 / (LARGEST_RATE * gap_ns)
    bends = [(knots[:-2], bend), (knots[1:-1], -2 * bend), (knots[2:], bend)]
    flats = [(knots[:-1], -flat), (knots[1:], flat)]
    entries = []
    offset = 0
    for terms in (bends, flats):
        size = terms[0][0].size
        entries += [
            (offset + np.arange(size), column.reshape(-1), np.full(size, value)) for column, value in terms
        ]
        offset += size
    row, column, value = (np.concatenate(part) for part in zip(*entries, strict=True))
    return coo_array((value, (row, column)), shape=(offset, knots.size)).tocsr()


def _solve(windows: _Windows, grid: Grid, fitted: Fit, anchored: Bools, smoothness: coo_array) -> Fit:
    count, clocks = fitted.smooth_ns.shape
    design = _design(windows, grid, fitted.times_ns, clocks)
    smooth = smoothness.tocoo()
    smooth = coo_array(
        (smooth.data, (smooth.row, smooth.col)), shape=(smooth.shape[0], design.shape[1])
    ).tocsr()
    weighted = design.multiply(windows.weight[:, None]).tocsr()
    current = np.concatenate([fitted.smooth_ns.reshape(-1), fitted.jumps_ns])
    normal = design.T @ weighted + smooth.T @ smooth
    right = weighted.T @ windows.change_ns - smooth.T @ (smooth @ current)
    free = np.flatnonzero(np.concatenate([np.tile(~anchored, count), np.ones(len(grid.adjustments), bool)]))
    normal = normal.tocsc()[free][:, free]
    # What nothing was label about stays where it is; of what only a sum was label about, each takes its part.
    ridge_size = RIDGE * max(float(normal.diagonal().max(initial=0.0)), 1e-8)
    ridge = coo_array((np.full(len(free), ridge_size), (np.arange(len(free)),) * 2)).tocsc()
    change = np.zeros(len(current))
    if len(free):
        change[free] = _solved((normal + ridge).tocsc(), right[free], free % clocks)
    new = current + change
    return Fit(fitted.times_ns, new[: count * clocks].reshape(count, clocks), new[count * clocks :])


def _solved(normal: csc_array, right: Floats, clock: Ints) -> Floats:
    """Return the solution: direct where that is cheap, else by conjugate gradients with each clock's own part solved.

    A random graph of 1,000 machines fills the factors of a direct solution: 4 s each time, and 0.1 s this way.
    """
    if len(right) < MOST_DIRECT:
        return np.asarray(splu(normal).solve(right))
    entries = normal.tocoo()
    own = clock[entries.row] == clock[entries.col]
    alone = coo_array((entries.data[own], (entries.row[own], entries.col[own])), shape=normal.shape)
    factors = splu(alone.tocsc())
    return np.asarray(
        cg(normal, right, rtol=1e-7, maxiter=2_000, M=LinearOperator(normal.shape, factors.solve))[0]
    )


def _design(windows: _Windows, grid: Grid, times_ns: Floats, clocks: int) -> coo_array:
    """Return the matrix from all corrections to what each window asks for: correction of one less that of other."""
    place, fraction = _place(times_ns, windows.at_ns)
    row = np.arange(len(place))
    entries = []
    for clock, sign in ((windows.one, 1.0), (windows.other, -1.0)):
        entries += [
            (row, place * clocks + clock, sign * (1 - fraction)),
            (row, (place + 1) * clocks + clock, sign * fraction),
        ]
        for number, adjustment in enumerate(grid.adjustments):
            own = (clock == adjustment.clock) & (windows.at_ns >= (adjustment.from_ns + adjustment.to_ns) / 2)
            column = np.full(int(own.sum()), len(times_ns) * clocks + number)
            entries.append((row[own], column, np.full(len(column), sign)))
    rows, columns, values = (np.concatenate(part) for part in zip(*entries, strict=True))
    shape = (len(place), len(times_ns) * clocks + len(grid.adjustments))
    return coo_array((values, (rows, columns)), shape=shape).tocsr()
