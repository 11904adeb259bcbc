"""How much the level and the change of a series vary by chance, when many series of one run have the same noise.

A series has one number per step: how much longer a rank, stage or pipeline takes than its peers. Its noise is taken to
be white noise plus drift: an AR(1) process with a coefficient of up to 0.9 per step, which is the temperature of a
device, a neighbor on the network, or the data order. Drift makes the mean of ten steps ten times less certain than
white noise of the same size does, and looks like a trend. There are two estimates, and each of them is robust to a
minority of series that do differ:

* over time: the variance within the series, and which share of it may be drift, from how much neighboring steps
  resemble each other (von Neumann 1941). The share is an upper bound, because short series hardly show it;
* over subjects: how much the means of all series differ. This needs no assumption about time, but most of the subjects
  have to be equal.

Pooling is what makes a rank visible that is slower by as much as its actions vary: its own steps are too few to show
how much it varies. A series that varies much more than the others keeps its own variance.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import stdtrit  # type: ignore[import-untyped]

from stagescope.analysis.statistics.action_samples import FEWEST_SAMPLES
from stagescope.analysis.statistics.estimates import Estimates, estimate_means, some_rows

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MEMORY = 0.9
"""The coefficient of drift from one step to the next that is assumed at most."""
REMEMBERED = 400
"""The number of steps after which nothing is left of drift: less than the rounding of a number."""

SURE_DEVIATIONS = 2.5
"""The share of drift is its estimate plus so many standard errors."""

DRIFT_DEGREES = 3.0
"""Degrees of freedom of the variance of one short series that is drift, whatever its length."""

SPREAD_EFFICIENCY = 0.8
"""A standard deviation without outliers is as certain as one of so large a share of the values."""

LARGEST_DEVIATION = 4.0
"""Beyond so many standard deviations a value is an outlier and is moved there."""

LARGEST_VARIANCE_RATIO = 4.0
"""A series with a larger variance than so many times the usual one has noise of its own."""

FEWEST_SUBJECTS = 6.0
FEWEST_RANKS = 2
MEDIAN_VARIANCE = 1.45
"""The variance of the median of a few values, relative to that of their mean."""

DECISIVE_RATE = 1e-5
"""The two estimates are compared by how large a value has to be for this p-value."""


class Noise(NamedTuple):
    """The noise of one sample of a series: its variance, the share that may be drift, and from how many series."""

    variance: float
    drift_share: float
    series: float

    def mean_variance(self, count: Floats) -> Floats:
        """Return the variance of the mean of so many samples."""
        count = np.maximum(count, 2.0)  # one sample shows no variance, and has no degrees of freedom
        own = mean_share(count)
        white, drift = 1 / count, own / (1 - own)
        found: Floats = self.variance * ((1 - self.drift_share) * white + self.drift_share * drift)
        return found

    def change_variance(self, count: Floats) -> Floats:
        """Return the variance of the change over so many samples, on the line through them (least squares)."""
        white = 12 * (count - 1) / (count * (count + 1))
        drift = _change_share(count) / (1 - mean_share(count))
        found: Floats = self.variance * ((1 - self.drift_share) * white + self.drift_share * drift)
        return found

    def degrees(self, count: Floats) -> Floats:
        """Return the degrees of freedom of both."""
        of_one = (1 - self.drift_share) * (count - 1) + self.drift_share * DRIFT_DEGREES
        found: Floats = np.maximum(self.series * of_one, 1.0)
        return found


def fit_noise(series: Floats, independent: float) -> Noise:
    """Return the noise that most of the series (subjects x samples, NaN is missing) have in common.

    `independent` is how many of them are independent: two replicas that are each other's reference are one series.
    """
    residuals = _residuals(series)
    count = np.concatenate([np.isfinite(rows).sum(axis=1) for rows in some_rows(residuals)])
    long = count > 1
    if not long.any():
        return Noise(np.nan, 1.0, 0.0)
    count = count[long].astype(float)
    squares, neighbors = (
        np.concatenate(each)[long] for each in zip(*map(_squares, some_rows(residuals)), strict=True)
    )
    del residuals
    with np.errstate(invalid="ignore", divide="ignore"):
        within = squares / (count - 1)
        likeness = neighbors / within
    usual = max(float(np.median(count)), 2.0)
    typical = np.isfinite(likeness)
    ratio = float(np.median(likeness[typical])) if typical.any() else 1.0
    # The standard error of von Neumann's ratio of white noise, and of a median.
    error = 1.25 * np.sqrt((usual - 2) / (usual**2 - 1) / max(independent, 1.0))
    own = float(mean_share(np.array([usual]))[0])
    visible = 1 - (1 - MEMORY) / (1 - own)
    share = (
        (1 - ratio + SURE_DEVIATIONS * error) / visible if visible > 0 and usual >= FEWEST_SAMPLES else 1.0
    )
    share = float(np.clip(share, 0.0, 1.0))
    degrees = (1 - share) * (usual - 1) + share * DRIFT_DEGREES
    # The median of a chi-squared variable is below its mean (Wilson and Hilferty 1931).
    variance = float(np.median(within)) / (1 - 2 / (9 * degrees)) ** 3
    return Noise(variance, share, independent)


def count_independent(series: Floats, groups: pl.Series, peers: NDArray[np.int64]) -> float:
    """Return how many of the series are independent.

    `groups` are their pipelines: where the data differ, the ranks of one pipeline vary together. `peers` is how many
    others each one is compared with.
    """
    known = np.concatenate([np.isfinite(rows).any(axis=1) for rows in some_rows(series)])
    if not known.any():
        return 0.0
    residuals = np.nan_to_num(_residuals(series), copy=False)
    residuals = residuals if known.all() else residuals[known]
    number = np.unique(groups.fill_null(-1).to_numpy(), return_inverse=True)[1]
    sums = np.zeros((int(number.max()) + 1, residuals.shape[1]))
    np.add.at(sums, number[known], residuals)
    members = np.bincount(number[known])
    squares = float(np.square(residuals, out=residuals).sum())
    size = float(known.sum()) / max(int((members > 0).sum()), 1)
    # The mean product of two ranks of a pipeline, relative to their variance.
    likeness = (
        (float((sums**2).sum()) - squares) / (squares * (size - 1)) if size > 1 and squares > 0 else 0.0
    )
    of_peers = peers[known] / (peers[known] + 1.0)
    return float(of_peers.sum() / (1 + (size - 1) * float(np.clip(likeness, 0.0, 1.0))))


def share_noise(estimates: Estimates, rank_error: tuple[float, float], ranks: NDArray[np.int64]) -> Estimates:
    """Return estimates about stages with the error that the noise of their ranks gives them, where that is smaller.

    `rank_error` is the error of a rank compared with the median of its peers. A stage is the median of its ranks,
    compared with the mean of other stages.
    """
    error, degrees = rank_error
    stages, size = max(len(ranks), 2), np.maximum(ranks.astype(float), FEWEST_RANKS)
    of_median = np.where(ranks > FEWEST_RANKS, MEDIAN_VARIANCE, 1.0)
    of_one = error**2 / (1 + of_median / (size - 1))
    variance = of_one * of_median / size * (1 + 1 / (stages - 1))
    free = np.full(len(ranks), max(degrees, 1.0))
    usable = (ranks > 1) & np.isfinite(variance) & (estimates.degrees > 0)
    mine = np.where(usable, _reach(np.nan_to_num(variance), free), np.inf)
    better = mine < _reach(estimates.error**2, np.maximum(estimates.degrees, 1.0))
    return replace(
        estimates,
        error=np.where(better, np.sqrt(variance), estimates.error),
        degrees=np.where(better, free, estimates.degrees),
    )


def estimate_levels(series: Floats, noise: Noise, *, over_subjects: bool = True) -> Estimates:
    """Return the trimmed mean of every series, with the error that the noise gives it.

    Without `over_subjects`, the subjects may all differ, as stages do, and only the noise over time counts.
    """
    plain = estimate_means(series)
    count = np.maximum(plain.count.astype(float), 1.0)
    over_time = noise.mean_variance(count)
    white = noise.variance / count
    if not over_subjects:
        noise = noise._replace(series=min(noise.series, FEWEST_SUBJECTS - 1))
    return _with_errors(plain, over_time, white, noise)


def estimate_changes(series: Floats, noise: Noise) -> Estimates:
    """Return the change of every series from its first to its last sample, on the line through its samples."""
    slope, count = (np.concatenate(each) for each in zip(*map(_slopes, some_rows(series)), strict=True))
    value = slope * (count - 1.0)
    plain = Estimates(value, np.zeros(len(value)), np.maximum(count - 2.0, 0.0), count)
    several = np.maximum(count.astype(float), 2.0)
    white = noise.variance * 12 * (several - 1) / (several * (several + 1))
    return _with_errors(plain, noise.change_variance(several), white, noise)


def _slopes(series: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Return the slopes of the lines through the samples, and how many samples there are."""
    known = np.isfinite(series)
    place = np.where(known, np.arange(series.shape[1], dtype=float)[None, :], np.nan)
    count = known.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        middle = np.nansum(place, axis=1) / count
        away = place - middle[:, None]
        return np.nansum(away * series, axis=1) / np.nansum(away**2, axis=1), count


def _with_errors(plain: Estimates, over_time: Floats, white: Floats, noise: Noise) -> Estimates:
    """Return estimates with the errors of the estimate, over time or over subjects, that decides more."""
    count = np.maximum(plain.count.astype(float), 1.0)
    degrees = noise.degrees(count)
    variance, spread = over_time, _spread(plain.value[plain.degrees > 0])
    if noise.series >= FEWEST_SUBJECTS and np.isfinite(spread):
        others = np.maximum(spread**2, white)
        free = np.full(len(count), max(SPREAD_EFFICIENCY * noise.series - 1.0, 1.0))
        better = _reach(others, free) < _reach(over_time, degrees)
        variance, degrees = np.where(better, others, over_time), np.where(better, free, degrees)
    # A series with much more noise than the others has noise of its own.
    own = plain.error**2 * count
    is_noisy = own > LARGEST_VARIANCE_RATIO * noise.variance
    variance = np.where(is_noisy, np.maximum(variance, plain.error**2), variance)
    degrees = np.where(is_noisy, np.minimum(degrees, plain.degrees), degrees)
    known = plain.degrees > 0
    return Estimates(
        plain.value,
        np.where(known, np.sqrt(variance), np.nan),
        np.where(known, degrees, 0.0),
        plain.count,
    )


def _reach(variance: Floats, degrees: Floats) -> Floats:
    reach: Floats = -stdtrit(degrees, DECISIVE_RATE) * np.sqrt(variance)
    return reach


def find_odd(values: Floats) -> NDArray[np.bool_]:
    """Return which values are clearly larger or smaller than most; NaN is not."""
    known = values[np.isfinite(values)]
    usual = 1.4826 * float(np.median(np.abs(known))) if len(known) else 0.0
    found: NDArray[np.bool_] = np.abs(np.nan_to_num(values)) > LARGEST_DEVIATION * usual
    return found & (usual > 0)


def _spread(values: Floats) -> float:
    """Return the standard deviation around zero of most of the values, without those far from it."""
    if not len(values):
        return np.nan
    usual = 1.4826 * float(np.median(np.abs(values)))
    kept = values[np.abs(values) <= 3 * usual]
    return 1.02 * float(np.sqrt((kept**2).mean()))  # 0.4 % of a normal variance is beyond 3 deviations


def _residuals(series: Floats) -> Floats:
    """Return the series around their means, outliers of the whole moved to the limit."""
    away = np.empty_like(series, order="C")
    with np.errstate(invalid="ignore"):
        for rows, own in zip(some_rows(series), some_rows(away), strict=True):
            np.subtract(rows, _row_medians(rows)[:, None], out=own)
        known = np.concatenate([np.abs(own[np.isfinite(own)]) for own in some_rows(away)])
        limit = (
            LARGEST_DEVIATION * 1.4826 * float(np.median(known, overwrite_input=True)) if len(known) else 0.0
        )
        del known
        for own in some_rows(away):
            if limit:
                np.clip(own, -limit, limit, out=own)
            count = np.maximum(np.isfinite(own).sum(axis=1), 1)
            np.subtract(own, (np.nansum(own, axis=1) / count)[:, None], out=own)
    return away


def _squares(residuals: Floats) -> tuple[Floats, Floats]:
    """Return the sums of the squares of residuals, and half of the mean squares of the differences of neighbors."""
    steps = np.diff(residuals, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        neighbors = np.nansum(steps**2, axis=1) / np.maximum(np.isfinite(steps).sum(axis=1), 1) / 2
    return np.nansum(residuals**2, axis=1), neighbors


def _row_medians(values: Floats) -> Floats:
    ordered = np.sort(values, axis=1)
    count = np.isfinite(ordered).sum(axis=1)
    rows = np.arange(len(values))
    low, high = np.maximum((count - 1) // 2, 0), np.minimum(count // 2, max(values.shape[1] - 1, 0))
    found: Floats = (ordered[rows, low] + ordered[rows, high]) / 2 if values.shape[1] else np.zeros(len(rows))
    return found


def mean_share(count: Floats) -> Floats:
    """Return the variance of the mean of so many samples of drift, relative to that of one sample."""
    found = (1 + 2 * MEMORY / (1 - MEMORY) * (1 - (1 - MEMORY**count) / (count * (1 - MEMORY)))) / count
    return np.asarray(found, dtype=np.float64)


def _change_share(count: Floats) -> Floats:
    """Return the variance of the change over so many samples of drift, relative to that of one sample."""
    sizes, where = np.unique(np.floor(count), return_inverse=True)
    # The sum of the products of places that are `lag` apart, and count from their middle, has a closed form.
    lag = np.arange(1, REMEMBERED + 1)
    pairs = np.maximum(sizes[:, None] - lag, 0)
    products = pairs * (pairs**2 - 1) / 12 - pairs * lag**2 / 4
    squares = sizes * (sizes**2 - 1) / 12
    variance = squares + 2 * products @ MEMORY**lag
    share: Floats = variance * ((sizes - 1) / squares) ** 2
    return share[where]
