"""The standard error of the estimate: what the spread of the delays, and constants that nothing shows, leave open.

Two parts, which are independent: the offset of each clock, and how the correction changes over time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_array  # type: ignore[import-untyped]
from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]
from scipy.sparse.linalg import splu  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from stagescope.clocks.estimate import Fit, System
    from stagescope.clocks.evidence import Bools, Floats, Ints
    from stagescope.clocks.grid import Grid
    from stagescope.clocks.windows import Windows

COVERING = 3.6
"""The estimated error is this many standard errors: 2.6 would cover 99 % of a normal distribution, but short runs and
rates that vary are not as regular as the model. docs/clocks.md has the coverage."""
LEAST_JUDGED = 4
"""Windows of a pair that show how large their errors are: the residuals of fewer are large by chance."""
SAMPLES = 24
"""Samples of the change over time, and of the offsets where there are too many clocks for a dense matrix."""
CERTAIN = 1e6
"""A weight with which only the constant of a pair counts: an error of 1 ps."""
MOST_DENSE = 1_200
"""Clocks up to which the covariance of the offsets is computed as a whole."""


def shape_errors(system: System, windows: Windows, times_ns: Floats, grid: Grid) -> Floats:
    """Return the standard errors of the corrections at the times of the fit (rows) of all clocks, without constants.

    Solving the normal equations for random residuals of the windows and of the regularization, with their variances,
    gives deviations with the covariance of the solution (perturbation sampling; Papandreou and Yuille, 2010).
    """
    rng = np.random.default_rng(0)  # the same run has the same result
    residuals = rng.standard_normal((len(windows.weight), SAMPLES)) * np.sqrt(windows.weight)[:, None]
    prior = rng.standard_normal((system.prior.shape[0], SAMPLES))
    prior[len(prior) - len(windows.constant_ns) :] = 0.0
    samples = system.solved(np.asarray(system.design.T @ residuals + system.prior.T @ prior))[0]
    count, clocks = len(times_ns), system.shape[1]
    shape = samples[: count * clocks].reshape(count, clocks, SAMPLES)
    for number, adjustment in enumerate(grid.adjustments):
        after = times_ns >= (adjustment.from_ns + adjustment.to_ns) / 2
        shape[after, adjustment.clock] += samples[count * clocks + number]
    return np.asarray(np.sqrt(np.mean(shape**2, axis=2)))


def birge_ratios(windows: Windows, pairs: int) -> Floats:
    """Return by how much larger the errors of the windows of each pair are than their variances state, at least 1.

    That is the root of the mean squared residual in units of the variance (Birge 1932). Pairs with few windows have 1.
    """
    counts = np.bincount(windows.constant, minlength=pairs)
    squares = np.bincount(windows.constant, windows.change_ns**2 * windows.weight, pairs)
    ratio = np.sqrt(np.maximum(1.0, squares / np.maximum(counts - 1, 1)))
    return np.asarray(np.where(counts >= LEAST_JUDGED, ratio, 1.0))


def offset_errors(windows: Windows, anchored: Bools) -> Floats:
    """Return the standard error of the offset of each clock, nan where nothing connects it to an anchored one.

    Each pair of clocks knows the difference of their offsets to its constant and to the mean of its windows. The
    covariance is the inverse of the graph's Laplacian. Collectives compare exits, and the exits of a clock are as far
    from its offset as they may be: a node of the graph of its own.
    """
    windows, anchored, clocks = *_with_exits(windows, anchored), len(anchored)
    return _node_errors(windows, anchored)[:clocks]


def _with_exits(windows: Windows, anchored: Bools) -> tuple[Windows, Bools]:
    """Return the windows with the exits of clocks as nodes of their own, where these may be far from their offsets."""
    apart_ns = windows.exit_errors_ns
    apart = np.flatnonzero(apart_ns > 0)
    if not len(apart):
        return windows, anchored
    clocks, pairs = len(anchored), len(windows.constant_ns)
    node = np.arange(clocks)
    node[apart] = clocks + np.arange(len(apart))
    one, other = (np.where(windows.of_exits, node[each], each) for each in (windows.one, windows.other))
    return replace(
        windows,
        one=np.concatenate([one, apart]),
        other=np.concatenate([other, node[apart]]),
        weight=np.concatenate([windows.weight, np.full(len(apart), CERTAIN)]),
        constant=np.concatenate([windows.constant, pairs + np.arange(len(apart))]),
        constant_ns=np.concatenate([windows.constant_ns, apart_ns[apart]]),
    ), np.concatenate([anchored, np.zeros(len(apart), bool)])


def _node_errors(windows: Windows, anchored: Bools) -> Floats:
    clocks = len(anchored)
    pair, first = np.unique(windows.constant, return_index=True)
    weight = np.bincount(windows.constant, windows.weight)[pair]
    precision = weight / (1 + weight * windows.constant_ns[pair] ** 2)
    one, other = windows.one[first], windows.other[first]
    degree = np.bincount(one, precision, clocks) + np.bincount(other, precision, clocks)
    rows = np.concatenate([one, other, np.arange(clocks)])
    columns = np.concatenate([other, one, np.arange(clocks)])
    values = np.concatenate([-precision, -precision, degree])
    links = coo_array((np.ones(len(one)), (one, other)), shape=(clocks, clocks)).tocsr()
    part = connected_components(links, directed=False)[1]
    is_known = np.isin(part, part[anchored])
    free = np.flatnonzero(~anchored & is_known)
    laplacian = coo_array((values, (rows, columns)), shape=(clocks, clocks)).tocsc()[free][:, free]
    errors_ns = np.where(is_known, 0.0, np.nan)
    if len(free) <= MOST_DENSE:
        errors_ns[free] = np.sqrt(np.abs(np.linalg.inv(laplacian.toarray()).diagonal())) if len(free) else 0.0
    else:
        rng = np.random.default_rng(0)
        incident = np.zeros((clocks, SAMPLES))
        noise = rng.standard_normal((len(pair), SAMPLES)) * np.sqrt(precision)[:, None]
        np.add.at(incident, one, noise)
        np.subtract.at(incident, other, noise)
        errors_ns[free] = np.sqrt(np.mean(splu(laplacian.tocsc()).solve(incident[free]) ** 2, axis=1))
    return errors_ns


def deviation_of_references(
    fitted: Fit, standard_error_ns: Floats, grid: Grid, reference: Ints, slewed: Ints
) -> Floats:
    """Return how far the reference of each clock may have deviated from its usual rate, at every knot of the grid.

    A reference that was slewed by little, without being noticed, moves the corrections of all other clocks of its group
    by the same amount: at most by what their deviations from straight lines may have in common, the intersection of
    their confidence intervals. Clocks that were `slewed` show nothing, because a part of what the reference did may
    have been removed with their own slews; unless they are all that there is.
    """
    times_ns, smooth_ns = fitted.times_ns, fitted.smooth_ns
    rates = np.diff(smooth_ns, axis=0) / np.diff(times_ns)[:, None]
    lines_ns = smooth_ns[:1] + np.median(rates, axis=0) * (times_ns - times_ns[0])[:, None]
    away_ns, found_ns = smooth_ns - lines_ns, np.zeros(standard_error_ns.shape)
    for first in np.unique(reference).tolist():
        own = np.flatnonzero((reference == first) & (np.arange(len(reference)) != first))
        own = own[np.isfinite(standard_error_ns[:, own]).all(axis=0)]
        if not len(own):
            continue
        steady = own[~np.isin(own, slewed)]
        shown = steady if len(steady) else own
        at_knots = np.stack(
            [np.interp(grid.knots_ns, times_ns, away_ns[:, each]) for each in shown.tolist()], axis=1
        )
        least_ns = (at_knots - COVERING * standard_error_ns[:, shown]).max(axis=1)
        most_ns = (at_knots + COVERING * standard_error_ns[:, shown]).min(axis=1)
        # Where the intervals are disjoint, what all deviate by in one direction is common.
        same_ns = np.maximum(np.maximum(at_knots.min(axis=1), -at_knots.max(axis=1)), 0.0)
        common_ns = np.where(least_ns <= most_ns, np.maximum(most_ns, -least_ns), same_ns)
        found_ns[:, own] = common_ns[:, None]
    return found_ns
