"""The levels of series that clearly shift, once or several times, and stay there.

A rank that is slow in the first half of a run and another one that is slow in the second half have series with two
levels. Both levels are in the variance of such a series, and in the likeness of its neighboring steps, which looks like
drift: among few ranks, shifts hide themselves. Differences of neighboring steps contain a shift only once.

All of these differences are taken to be drift, an AR(1) process with the coefficient `MEMORY` of noise.py. Of all
processes with the same differences and at most that memory, it has the least certain levels. A shift that exceeds even
that is clear; what is not remains noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import stdtr  # type: ignore[import-untyped]

from stagescope.analysis.statistics.noise import MEMORY, mean_share

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SHORTEST = 2
"""Steps at a level; one step may be an outlier."""

EXPLAINED_RATIO = 2.0
"""Levels explain a series if they leave no more than this many times the variance that neighboring steps show."""


def fit_levels(series: Floats, rate: float) -> Floats:
    """Return the levels of every series (subjects x samples, NaN is missing), each with one value where none shifts.

    The probability of finding a shift in a run without one is at most `rate`, provided that drift decays at least as
    fast as assumed.
    """
    found = np.full_like(series, np.nan)
    known = np.isfinite(series)
    own = np.array([_of_neighbors(row[there]) for row, there in zip(series, known, strict=True)])
    usual = float(np.median(own[np.isfinite(own)])) if np.isfinite(own).any() else np.nan
    for place, (row, there) in enumerate(zip(series, known, strict=True)):
        found[place, there] = _levels(row[there], np.fmax(own[place], usual), rate / len(series))
    return found


def has_shift(levels: Floats) -> NDArray[np.bool_]:
    """Return which of the series from `fit_levels` shift."""
    low = np.fmin.reduce(levels, axis=1, initial=np.inf)
    shifts: NDArray[np.bool_] = np.fmax.reduce(levels, axis=1, initial=-np.inf) > low
    return shifts


def explains(values: Floats, levels: Floats) -> bool:
    """Return whether a series differs from its levels by no more than its neighboring steps do."""
    left = float(((values - levels) ** 2).mean())
    return left <= EXPLAINED_RATIO * _of_neighbors(values - levels)


def _of_neighbors(values: Floats) -> float:
    """Return the variance that the differences of neighboring values show; NaN for fewer than two.

    Differences of a shift, which are few and large, are moved to the limit.
    """
    if len(values) < SHORTEST:
        return np.nan
    squares = np.diff(values) ** 2
    # The median of a squared normal variable is 0.455 times its mean.
    return float(np.minimum(squares, 9 * np.median(squares) / 0.455).mean() / 2)


def _levels(values: Floats, variance: float, rate: float) -> Floats:
    """Return the level of each value: those of two parts if there is a clear shift, which may have parts again."""
    first = _clear_shift(values, variance, rate)
    if first is None:
        return np.full(len(values), values.mean() if len(values) else np.nan)
    return np.concatenate([_levels(part, variance, rate) for part in (values[:first], values[first:])])


def _clear_shift(values: Floats, variance: float, rate: float) -> int | None:
    """Return the first value after the clearest shift, None if none is clear.

    As many values before as after it are compared, for several numbers of values.
    """
    count = len(values)
    if count < 2 * SHORTEST or not variance > 0:
        return None
    first = np.arange(SHORTEST, count - SHORTEST + 1)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    lengths = SHORTEST * 2 ** np.arange(int(np.log2(count)))
    before, after = (np.minimum(lengths[:, None], margin) for margin in (first, count - first))
    means = [(sums[first] - sums[first - before]) / before, (sums[first + after] - sums[first]) / after]
    # The two means are taken as independent. Drift makes neighbors alike, so that their difference varies less.
    shares = sum(mean_share(each.astype(np.float64)) for each in (before, after))
    ratio = np.abs(means[1] - means[0]) / np.sqrt(variance / (1 - MEMORY) * shares)
    # Differences of such drift are almost independent of each other.
    p_value = 2 * stdtr(count - 1, -ratio.max())
    if p_value * ratio.size > rate:
        return None
    return int(first[np.argmax(ratio.max(axis=0))])
