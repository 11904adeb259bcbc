"""The best estimate within the bounds: smooth corrections that make both directions of every pair equally long.

In each window of time, the shortest possible delay of each direction is estimated. Half their difference is the
offset of the two clocks, if the path takes equally long both ways (Cristian 1989; NTP). All pairs are fitted at once
by weighted least squares. Corrections are linear between knots, and their rate follows a random walk. The fit is
repeated a few times, because the shortest delay of a window is known only after the drift within it has been removed.
The steadier the rates prove to be, the longer the windows and the more exact their shortest delays. An asymmetric
path shifts the result by half of its asymmetry, which messages alone cannot reveal.
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
"""Messages per direction that a window needs to contain a short delay."""
MOST_WINDOWS = 64
LEAST_WINDOWS = 6
MOST_UNKNOWN = 12_000
"""Knots times clocks of the fit, which bounds memory and time of the solver."""
MOST_DIRECT = 3_000
"""Unknowns up to which a direct sparse factorization is faster than conjugate gradients."""
NOISE_NS = 300.0
"""Resolution of timestamps and scheduling noise, added to the spread of each window."""
LARGEST_RATE = 100e-6
"""The typical drift: weak regularization towards constant corrections where nothing was observed."""
RIDGE = 1e-11
"""Regularization relative to the largest diagonal term, so that two corrections that the observations cannot separate
still have a unique solution."""
LOW_QUANTILE = 0.3
"""The typical value of a pair is this quantile of its windows."""
ROUND_TRIP_QUANTILE = 0.1
"""The typical round trip of a pair in a run without outliers; lower, because most windows of some pairs have no short
delay in one direction."""
MISFIT = 0.5
"""Steadier rates are accepted if the mean squared residual of the windows, in units of their variance, is no larger."""


class _RateNoise(NamedTuple):
    """How fast rates may vary, and how many messages a window needs.

    `ppm` is the typical change within a second; within 100 s it is ten times that.
    """

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
"""Steadier rates in the order in which they are tried; the first that fits is used."""


@dataclass(frozen=True)
class Fit:
    """Corrections at `times_ns`, linear in between, and the size of the break at each clock adjustment."""

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
    """Return the fitted corrections; those of `anchored` clocks are 0. `trusted`: no outliers were found."""
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
    """Return the fit after several rounds of finding the shortest delays and solving for the corrections."""
    smoothness = _smoothness(result.times_ns, result.smooth_ns.shape[1], rate_noise.walk)
    for _ in range(ROUNDS):
        windows = _windows(problem, result)
        result = _solve(windows, problem.grid, result, problem.anchored, smoothness)
    return result


def _misfit(windows: _Windows) -> float:
    """Return the mean squared residual of the windows in units of their variance."""
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
    # Beyond the outermost knots the correction is constant: a linear extrapolation would diverge.
    return place, np.clip((at_ns - times_ns[place]) / gap_ns, 0.0, 1.0)


@dataclass(frozen=True)
class _Windows:
    """One row per pair of clocks and window: the change that the difference of their corrections still needs."""

    one: Ints
    other: Ints
    at_ns: Floats
    change_ns: Floats
    weight: Floats


@dataclass(frozen=True)
class _Cells:
    """The pair and window (cell) of each observation, and the mean time of each cell."""

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
    """Return the windows of each pair; their number depends on how many observations it has.

    With fixed windows, a pair with few observations would have no short delay in most of them. `side` is the number
    of clock adjustments before each observation: no window spans an adjustment.
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
    """Return the residual of each window: from both directions, or from one and the pair's typical round trip."""
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
    """Return for each window this quantile of the finite values of its pair, infinite if there are none."""
    usual = np.full(int(pair.max()) + 1, np.inf)
    known = np.flatnonzero(np.isfinite(values))
    order = known[np.lexsort((values[known], pair[known]))]
    found, first, counts = np.unique(pair[order], return_index=True, return_counts=True)
    usual[found] = values[order[first + (fraction * counts).astype(np.int64)]]
    return np.asarray(usual[pair])


def _shortest(index: Ints, delay_ns: Floats, pair: Ints) -> tuple[Floats, Floats]:
    """Return the shortest possible delay of every window, infinite without observations, and its standard error.

    The shortest of n exponentially distributed delays exceeds the shortest possible one by spread / n on average. The
    spread is estimated from the difference between the shortest and the k-th, divided by 1/(n-1) + ... + 1/(n-k+1).
    Without this, unequal spreads of the two directions would accumulate along a chain of machines. Windows in which
    hardly any receiver waited have extreme spreads, so the typical spread of the pair is used.
    """
    least, spread_ns, sizes = (np.full(len(pair), np.inf) for _ in range(3))
    order = np.lexsort((delay_ns, index))
    index, delay_ns = index[order], delay_ns[order]
    found, first, counts = np.unique(index, return_index=True, return_counts=True)
    # k is an eighth of the observations: few enough to stay in the exponential part of the distribution.
    low = np.where(counts > 1, np.maximum(counts // 8, 1), 0)
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, counts.max(initial=0) + 1))])
    steps = harmonic[counts - 1] - harmonic[counts - 1 - low]
    least[found], sizes[found] = delay_ns[first], counts
    spread_ns[found[low > 0]] = ((delay_ns[first + low] - delay_ns[first])[low > 0]) / steps[low > 0]
    usual_ns = _usual(pair, spread_ns, LOW_QUANTILE)
    excess_ns = np.where(np.isfinite(usual_ns), usual_ns, 0.0) / sizes
    return least - excess_ns, excess_ns


def _smoothness(times_ns: Floats, clocks: int, walk: float) -> coo_array:
    """Return the regularization rows: second differences (linear corrections) and, much weaker, first differences."""
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
    # Corrections without observations keep their value; if only a sum is known, it is divided evenly.
    ridge_size = RIDGE * max(float(normal.diagonal().max(initial=0.0)), 1e-8)
    ridge = coo_array((np.full(len(free), ridge_size), (np.arange(len(free)),) * 2)).tocsc()
    change = np.zeros(len(current))
    if len(free):
        change[free] = _solved((normal + ridge).tocsc(), right[free], free % clocks)
    new = current + change
    return Fit(fitted.times_ns, new[: count * clocks].reshape(count, clocks), new[count * clocks :])


def _solved(normal: csc_array, right: Floats, clock: Ints) -> Floats:
    """Return the solution: direct if small, otherwise by conjugate gradients.

    They are preconditioned with each clock's own block. On a random graph of 1,000 machines the factors of a direct
    solution fill in: 4 s per solution, and 0.1 s this way.
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
    """Return the matrix from all corrections to the difference of corrections in each window."""
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
