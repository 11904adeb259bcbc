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
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.sparse import coo_array, csc_array  # type: ignore[import-untyped]

from stagescope.clocks.conflicts import tight
from stagescope.clocks.exits import compared_by_exits, exit_errors
from stagescope.clocks.grouped import distinct
from stagescope.clocks.knots import moments_of, place_between
from stagescope.clocks.normal_equations import Method, solution
from stagescope.clocks.uncertainty import birge_ratios, offset_errors, shape_errors
from stagescope.clocks.windows import LOW_QUANTILE, Problem, Windows, cells_of, windows_of
from stagescope.execution.memory import return_memory

if TYPE_CHECKING:
    from stagescope.clocks.evidence import Bools, Evidence, Floats, Ints
    from stagescope.clocks.grid import Grid
    from stagescope.clocks.knots import Moments
    from stagescope.clocks.rates import Corner

ROUNDS = 4
FIRST_ROUNDS = 2
"""Of the most variable rates, before steadier ones are tried: the other rounds follow if none of these fits."""
PER_WINDOW = 8
"""Messages per direction that a window needs to contain a short delay."""
MOST_WINDOWS = 64
MOST_UNKNOWN = 12_000
"""Knots times clocks of the fit, which bounds memory and time of the solver."""
LARGEST_RATE = 100e-6
"""The typical drift: weak regularization towards constant corrections where nothing was observed."""
RIDGE = 1e-14
"""Regularization relative to the largest diagonal term, so that two corrections that the observations cannot separate
still have a unique solution."""
ROUND_TRIP_QUANTILE = 0.1
"""The typical round trip of a pair in a run without outliers; lower, because most windows of some pairs have no short
delay in one direction."""
ABRUPT = 500e-6
"""What a rate may change by at a moment at which the delays of a pair change their course abruptly."""
FINER, NEAR = 4, 2
"""How many times as many knots the fit has then, and how many of them on either side of the moment are part of it."""
CONVERGED = 1e-10
"""Residual, relative to the right side of the first round, below which later rounds need not solve their systems: what
that changes is less than the rounding of corrections to 1 ns, also with 2,500 clocks, whose systems converge slowly."""
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
    """Corrections at `times_ns`, linear in between, and the size of the break at each clock adjustment.

    `constants_ns` are those of windows.py: how much longer the delays of a pair are than expected, where receivers did
    not wait in both directions. `method` is how the last system was solved, which is how the next one is. `tolerance`
    is the residual at which conjugate gradients may end. `shape_error_ns` are the standard errors of `smooth_ns`, and
    `offset_error_ns` those of a constant offset of each clock; both are empty without observations.
    """

    times_ns: Floats
    smooth_ns: Floats
    jumps_ns: Floats
    constants_ns: Floats = field(default_factory=lambda: np.zeros(0))
    method: Method = field(default_factory=Method)
    tolerance: float = 0.0
    shape_error_ns: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    offset_error_ns: Floats = field(default_factory=lambda: np.zeros(0))

    def standard_error_ns(self, grid: Grid) -> Floats:
        """Return the standard error of the correction of every clock at every knot of the grid, nan if unknown."""
        if not len(self.shape_error_ns):
            return np.full((len(grid.knots_ns), self.smooth_ns.shape[1]), np.nan)
        place, fraction = place_between(self.times_ns, grid.knots_ns)
        shape_ns = self.shape_error_ns[place] * (1 - fraction[:, None])
        shape_ns += self.shape_error_ns[place + 1] * fraction[:, None]
        return np.asarray(np.hypot(shape_ns, self.offset_error_ns))

    def at(self, grid: Grid, moments: Moments) -> Floats:
        """Return the correction of each clock at a moment, in coarse time."""
        value = moments.interpolated(self.smooth_ns)
        for adjustment, jump in zip(grid.adjustments, self.jumps_ns, strict=True):
            is_after = moments.at_ns >= (adjustment.from_ns + adjustment.to_ns) / 2
            value = value + np.where((moments.clock == adjustment.clock) & is_after, jump, 0.0)
        return np.asarray(value)


def fit(
    evidence: Evidence, grid: Grid, anchored: Bools, corners: tuple[Corner, ...] = (), *, trusted: bool
) -> Fit:
    """Return the fitted corrections; those of `anchored` clocks are 0. `trusted`: no outliers were found.

    At `corners`, and around changes of rates that were removed, rates may change by any amount, and no window spans
    one.
    """
    clocks = len(grid.budget)
    evidence = compared_by_exits(evidence)
    evidence = evidence.where(tight(evidence, clocks, by_channel=True))
    abrupt_ns = _abrupt(grid, corners)
    times_ns = _times(evidence, grid, FINER if len(abrupt_ns) else 1)
    result = Fit(
        times_ns,
        np.zeros((len(times_ns), clocks)),
        -np.array([adjustment.size_ns for adjustment in grid.adjustments]),
    )
    before = grid.segment_at(evidence.source, evidence.sent_ns)
    after = grid.segment_at(evidence.target, evidence.received_ns)
    usable = (before >= 0) & (after >= 0)
    side = before + after + np.searchsorted(np.sort(abrupt_ns.mean(axis=1)), evidence.sent_ns)
    evidence, side = evidence.where(usable), side[usable]
    if not len(evidence):
        return result
    problem = Problem(
        evidence,
        (
            moments_of(times_ns, clocks, evidence.source, evidence.sent_ns),
            moments_of(times_ns, clocks, evidence.target, evidence.received_ns),
        ),
        cells_of(evidence, times_ns, side, MOST_VARIABLE.per_window),
        grid,
        anchored,
        ROUND_TRIP_QUANTILE if trusted else LOW_QUANTILE,
        has_corners=trusted and len(abrupt_ns) > 0,
    )
    smoothness = _smoothness(times_ns, clocks, MOST_VARIABLE.walk, abrupt_ns)
    result = _refined(result, problem, smoothness, range(FIRST_ROUNDS))
    for rate_noise in STEADIER:
        longer = replace(problem, cells=cells_of(evidence, times_ns, side, rate_noise.per_window))
        smoother = _smoothness(times_ns, clocks, rate_noise.walk, abrupt_ns)
        steadier = _refined(result, longer, smoother, range(ROUNDS))
        if _misfit(windows_of(longer, steadier, is_first=False)) <= MISFIT:
            return _with_errors(steadier, longer, smoother, finest=problem)
    result = _refined(result, problem, smoothness, range(FIRST_ROUNDS, ROUNDS))
    return _with_errors(result, problem, smoothness, finest=problem)


def _abrupt(grid: Grid, corners: tuple[Corner, ...]) -> Floats:
    """Return between which moments rates change abruptly, one row each."""
    ends_ns = [(each.from_ns, each.to_ns) for each in corners]
    ends_ns += [(each.from_ns, each.to_ns) for each in grid.adjustments if each.is_rate]
    return np.array(ends_ns, float).reshape(-1, 2)


def _refined(result: Fit, problem: Problem, smoothness: coo_array, rounds: range) -> Fit:
    """Return the fit after some rounds of finding the shortest delays and solving for the corrections."""
    return_memory()  # the windows of each round differ in size: they do not fit into the gaps that earlier ones left
    for number in rounds:
        windows = windows_of(problem, result, is_first=not number)
        result = _solve(windows, problem.grid, result, problem.anchored, smoothness)
    return result


def _with_errors(result: Fit, problem: Problem, smoothness: coo_array, finest: Problem) -> Fit:
    """Return the fit with its standard errors; `finest` has the shortest windows.

    Where the shortest windows deviate from the fit by more than their variances allow, such as where a clock was slewed
    by too little to be found, all windows of that pair are less certain by as much (Birge 1932).
    """
    return_memory()
    windows = windows_of(replace(problem, has_exits=True), result, is_first=False)
    ratio = birge_ratios(windows_of(finest, result, is_first=False), len(windows.constant_ns))
    windows = replace(
        windows,
        weight=windows.weight / ratio[windows.constant] ** 2,
        exit_errors_ns=exit_errors(problem.evidence, len(problem.anchored)),
    )
    system = _system(windows, problem.grid, result, problem.anchored, smoothness)
    return replace(
        result,
        shape_error_ns=shape_errors(system, windows, result.times_ns, problem.grid),
        offset_error_ns=offset_errors(windows, problem.anchored),
    )


def _misfit(windows: Windows) -> float:
    """Return the mean squared residual of the windows in units of their variance."""
    return float(np.mean(windows.change_ns**2 * windows.weight)) if len(windows.one) else 0.0


def _times(evidence: Evidence, grid: Grid, finer: int) -> Floats:
    """Return the knots of the fit, `finer` times as many as the number of observations asks for."""
    clocks = len(grid.budget)
    counts = distinct(evidence.source * clocks + evidence.target).counts
    each = float(np.quantile(counts, 0.9)) if len(counts) else 0.0
    most = max(2, min(MOST_WINDOWS, MOST_UNKNOWN // (finer * clocks)))
    count = int(np.clip(each / PER_WINDOW + 1, 2, most))
    return np.linspace(grid.knots_ns[0], grid.knots_ns[-1], finer * (count - 1) + 1)


def _smoothness(times_ns: Floats, clocks: int, walk: float, abrupt_ns: Floats) -> coo_array:
    """Return the regularization rows: second differences (linear corrections) and, much weaker, first differences.

    Within `abrupt_ns` (rows of two moments) and next to it, rates may change by any amount.
    """
    count, gap_ns = len(times_ns), times_ns[1] - times_ns[0]
    knots = np.arange(count * clocks).reshape(count, clocks)
    bend = np.full(max(0, count - 2), 1 / (walk * gap_ns * np.sqrt(gap_ns)))
    for from_ns, to_ns in abrupt_ns.tolist():
        inside = (times_ns[1:-1] > from_ns - NEAR * gap_ns) & (times_ns[1:-1] < to_ns + NEAR * gap_ns)
        bend[inside] = 1 / (ABRUPT * gap_ns)
    bend = np.repeat(bend, clocks)
    flat = 1 / (LARGEST_RATE * gap_ns)
    bends = [(knots[:-2], bend), (knots[1:-1], -2 * bend), (knots[2:], bend)]
    flats = [(ends, np.full(ends.size, value)) for ends, value in ((knots[:-1], -flat), (knots[1:], flat))]
    entries = []
    offset = 0
    for terms in (bends, flats):
        size = terms[0][0].size
        entries += [(offset + np.arange(size), column.reshape(-1), value) for column, value in terms]
        offset += size
    row, column, value = (np.concatenate(part) for part in zip(*entries, strict=True))
    return coo_array((value, (row, column)), shape=(offset, knots.size)).tocsr()


def _solve(windows: Windows, grid: Grid, fitted: Fit, anchored: Bools, smoothness: coo_array) -> Fit:
    count, clocks = fitted.smooth_ns.shape
    system = _system(windows, grid, fitted, anchored, smoothness)
    current = np.concatenate(
        [fitted.smooth_ns.reshape(-1), fitted.jumps_ns, np.zeros(len(windows.constant_ns))]
    )
    current[len(current) - len(fitted.constants_ns) :] = fitted.constants_ns
    right = system.weighted.T @ windows.change_ns - system.prior.T @ (system.prior @ current)
    tolerance = fitted.tolerance or CONVERGED * float(np.linalg.norm(right[system.free]))
    change, method = system.solved(right, tolerance)
    new = current + change
    jumps = count * clocks + len(fitted.jumps_ns)
    return Fit(
        fitted.times_ns,
        new[: count * clocks].reshape(count, clocks),
        new[count * clocks : jumps],
        new[jumps:],
        method,
        tolerance,
    )


@dataclass(frozen=True)
class System:
    """The normal equations: `weighted` is the design with the weights, `prior` the rows of the regularization.

    `shape` is the number of knots and clocks, and `is_constant` which of the free unknowns are constants of pairs.
    """

    design: coo_array
    weighted: coo_array
    prior: coo_array
    normal: csc_array
    free: Ints
    is_constant: Bools
    shape: tuple[int, int]
    method: Method

    def solved(self, right: Floats, tolerance: float = 0.0) -> tuple[Floats, Method]:
        """Return the solution, for one or several columns, and the method that found it.

        Unknowns that are not free stay 0. `tolerance` is that of `with_constants`.
        """
        change = np.zeros(right.shape)
        if not len(self.free):
            return change, self.method
        knots, clocks = self.shape
        clock = np.where(self.free < knots * clocks, self.free % clocks, self.free)
        unknowns = self.is_constant, clock
        change[self.free], method = solution(self.normal, right[self.free], unknowns, self.method, tolerance)
        return change, method


def _system(windows: Windows, grid: Grid, fitted: Fit, anchored: Bools, smoothness: coo_array) -> System:
    count, clocks = fitted.smooth_ns.shape
    design = _design(windows, grid, fitted.times_ns, clocks)
    constants = len(windows.constant_ns)
    smooth, rows = smoothness.tocoo(), smoothness.shape[0]
    entries = (
        np.concatenate([smooth.data, 1 / windows.constant_ns]),
        (
            np.concatenate([smooth.row, rows + np.arange(constants)]),
            np.concatenate([smooth.col, design.shape[1] - constants + np.arange(constants)]),
        ),
    )
    prior = coo_array(entries, shape=(rows + constants, design.shape[1])).tocsr()
    weighted = design.multiply(windows.weight[:, None]).tocsr()
    is_free = np.concatenate([np.tile(~anchored, count), np.ones(design.shape[1] - count * clocks, bool)])
    free = np.flatnonzero(is_free)
    normal = (design.T @ weighted + prior.T @ prior).tocsc()[free][:, free]
    # Corrections without observations keep their value; if only a sum is known, it is divided evenly.
    # Constants have a prior of their own, which may be weaker than that.
    is_shared = free < design.shape[1] - constants
    ridge_size = RIDGE * max(float(normal.diagonal()[is_shared].max(initial=0.0)), 1e-8)
    ridge = coo_array((np.where(is_shared, ridge_size, 0.0), (np.arange(len(free)),) * 2)).tocsc()
    normal = (normal + ridge).tocsc()
    return System(design, weighted, prior, normal, free, ~is_shared, (count, clocks), fitted.method)


def _design(windows: Windows, grid: Grid, times_ns: Floats, clocks: int) -> coo_array:
    """Return the matrix from all corrections to the difference of corrections in each window."""
    place, fraction = place_between(times_ns, windows.at_ns)
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
    first = len(times_ns) * clocks + len(grid.adjustments)
    entries.append((row, first + windows.constant, np.ones(len(row))))
    rows, columns, values = (np.concatenate(part) for part in zip(*entries, strict=True))
    shape = (len(place), first + len(windows.constant_ns))
    return coo_array((values, (rows, columns)), shape=shape).tocsr()
