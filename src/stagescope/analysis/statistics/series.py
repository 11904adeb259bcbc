"""Statistics of a series with one number per step: its trend and its outliers.

Sources: slope and its interval, Theil 1950 and Sen 1968, with the variance of Kendall 1975 widened for first-order
autocorrelation; outliers, Rosner 1983 (generalized extreme studentized deviates).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import ndtri, stdtr, stdtrit  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

FEWEST_VALUES = 4
MOST_VALUES = 600
"""Longer series are reduced to medians of neighbors: the number of pairs grows with the square."""

MOST_INCREMENTS = 12
"""A trend is tested on the means of so many parts of a series, so that noise averages out in long ones."""

OUTLIER_DEVIATIONS = 6.0
"""Values farther from the trend than so many median deviations do not count in full."""

MOST_OUTLIERS_FRACTION = 0.2


class Trend(NamedTuple):
    """The slope of a series per unit of its positions, its 95 % CI, and the p-value of no trend."""

    slope: float
    low: float
    high: float
    p_value: float


def find_trend(places: Floats, values: Floats) -> Trend:
    """Return the Theil-Sen slope of `values` over `places`, which ascend.

    With fewer than four values the slope is NaN and the p-value 1.
    """
    if len(values) < FEWEST_VALUES:
        return Trend(np.nan, np.nan, np.nan, 1.0)
    places, values = _thinned(places), _thinned(values)
    count = len(values)
    one, other = np.triu_indices(count, 1)
    slopes = np.sort((values[other] - values[one]) / (places[other] - places[one]))
    slope = float(np.median(slopes))
    variance = count * (count - 1) * (2 * count + 5) / 18 * inflation(values - slope * places)
    reach = float(ndtri(0.975)) * np.sqrt(variance)
    ends = np.clip(np.array([len(slopes) - reach, len(slopes) + reach]) / 2, 0, len(slopes) - 1)
    low, high = slopes[[int(np.floor(ends[0])), int(np.ceil(ends[1]))]]
    return Trend(slope, float(low), float(high), _p_of_no_trend(_without_outliers(values, slope * places)))


def _without_outliers(values: Floats, line: Floats) -> Floats:
    """Return values with those far from the line moved to where outliers begin."""
    away = values - line
    middle = np.median(away)
    limit = OUTLIER_DEVIATIONS * float(np.median(np.abs(away - middle)))
    return line + np.clip(away, middle - limit, middle + limit)


def _p_of_no_trend(values: Floats) -> float:
    """Return the p-value of a mean increment of 0: a t-test on the increments between parts of the series.

    It is exact for a random walk and conservative for everything that returns to its mean. A test for independent
    values takes every slow drift for a trend, and a few steps do not show whether they are independent.
    """
    size = -(-len(values) // (MOST_INCREMENTS + 1))
    parts = values[len(values) % size :].reshape(-1, size).mean(axis=1)
    increments = np.diff(parts)
    count, total = len(increments), abs(float(increments.sum()))
    # Differences of neighboring means of a random walk have a correlation of 1/4 (Working 1960).
    widened = 1.5 if size > 1 else 1.0
    error = float(increments.std(ddof=1)) * np.sqrt(count * widened)
    if not error:
        return 0.0 if total else 1.0
    return float(min(2 * stdtr(count - 1, -total / error), 1.0))


def _thinned(values: Floats) -> Floats:
    """Return the medians of consecutive groups of equal length, at most MOST_VALUES of them."""
    if len(values) <= MOST_VALUES:
        return values
    return np.array([np.median(part) for part in np.array_split(values, MOST_VALUES)])


def inflation(residuals: Floats) -> float:
    """Return the factor by which first-order autocorrelation widens the variance of an estimate."""
    centered = residuals - residuals.mean()
    total = float((centered**2).sum())
    correlation = float((centered[1:] * centered[:-1]).sum()) / total if total else 0.0
    correlation = float(np.clip(correlation, 0.0, 0.9))
    return (1 + correlation) / (1 - correlation)


def find_outliers(values: Floats, rate: float) -> NDArray[np.bool_]:
    """Return which values are farther from the others than chance explains.

    In a fraction `rate` of all series without an outlier, one is found nevertheless. Up to a fifth of the values can be
    outliers. The rate holds for normally distributed values; take logarithms of durations first. Takes as long as
    sorting does.
    """
    count = len(values)
    found = np.zeros(count, dtype=np.bool_)
    most = max(1, int(MOST_OUTLIERS_FRACTION * count)) if count >= FEWEST_VALUES else 0
    removed, away = _farthest_first(values, most)
    above = np.flatnonzero(away > _critical(count - np.arange(most), rate))
    found[removed[: above[-1] + 1 if len(above) else 0]] = True
    return found


def _farthest_first(values: Floats, most: int) -> tuple[NDArray[np.int64], Floats]:
    """Remove the value that is farthest from the mean of the rest, `most` times; return which and how far each was.

    Distances are in standard deviations of the values that were left with it; 0 if those were all equal. The farthest
    is always the smallest or the largest one left. Sums run outwards from the median, so that large values far away do
    not cancel.
    """
    from_middle = values - np.median(values) if most else values
    at = np.arange(len(values))
    order = np.lexsort((np.where(from_middle < 0, at, -at), from_middle))
    ordered = from_middle[order].tolist()
    low_sums, low_squares = _sums_outwards(from_middle, below=True)
    high_sums, high_squares = _sums_outwards(from_middle, below=False)
    low, high = 0, len(ordered)
    removed, away = np.zeros(most, np.int64), np.zeros(most)
    for taken in range(most):
        count = high - low
        mean = (low_sums[low] + high_sums[high]) / count
        variance = (low_squares[low] + high_squares[high] - count * mean * mean) / (count - 1)
        below, above = mean - ordered[low], ordered[high - 1] - mean
        takes_low = (below, order[high - 1]) > (above, order[low])
        removed[taken] = order[low] if takes_low else order[high - 1]
        away[taken] = max(below, above) / variance**0.5 if variance > 0 else 0.0
        low, high = (low + 1, high) if takes_low else (low, high - 1)
    return removed, away


def _sums_outwards(from_middle: Floats, *, below: bool) -> tuple[list[float], list[float]]:
    """Return, for each position in the sorted values, the sum from it to the middle, and the sum of squares.

    Below the middle a position is that of the first value that counts, above it the one after the last.
    """
    side = np.sort(np.minimum(from_middle, 0.0) if below else np.maximum(from_middle, 0.0))
    if below:
        sums, squares = (np.append(np.cumsum(one[::-1])[::-1], 0.0) for one in (side, side**2))
    else:
        sums, squares = (np.insert(np.cumsum(one), 0, 0.0) for one in (side, side**2))
    return sums.tolist(), squares.tolist()


def _critical(counts: NDArray[np.int64], rate: float) -> Floats:
    """Return how many standard deviations the farthest of so many values may be from their mean."""
    quantiles = stdtrit(counts - 2, 1 - rate / (2 * counts))
    critical: Floats = (counts - 1) * quantiles / np.sqrt((counts - 2 + quantiles**2) * counts)
    return critical
