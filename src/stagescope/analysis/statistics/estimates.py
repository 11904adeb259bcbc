"""What repeated measurements say, and how surely: trimmed means with t intervals, tests, false discoveries.

A sample is what was measured in one training step (or a part of one). Steps repeat the same work, so they are
taken as independent; actions of one step are not, for they share whatever disturbed that step.

Sources: trimmed mean with winsorized variance, Tukey and McLaughlin 1963 and Yuen 1974; degrees of freedom of a
difference, Welch 1947; false discovery rate, Benjamini and Hochberg 1995. Few samples are honest ones: quantiles
are Student's, and one sample has no interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import stdtr, stdtrit  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

TRIM_FRACTION = 0.2
FEWEST_TO_TRIM = 8
"""With fewer samples than this, what trimming costs in degrees of freedom is more than what it gives."""

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimates:
    """Estimated values, one per subject: the value, its standard error, degrees of freedom, samples behind it.

    A subject with less than two samples has no error: NaN, and 0 degrees of freedom.
    """

    value: Floats
    error: Floats
    degrees: Floats
    count: NDArray[np.int64]

    def intervals(self, confidence: float = CONFIDENCE) -> tuple[Floats, Floats]:
        """Return the lower and upper ends of the two-sided confidence intervals; NaN where there is no error."""
        reach = stdtrit(np.maximum(self.degrees, 1), 0.5 + confidence / 2) * self.error
        return self.value - reach, self.value + reach

    def p_above(self, least: Floats | float) -> Floats:
        """Return the one-sided p-values of the hypotheses that the values are `least` or less.

        1 where there is no error to compare with. Samples without any spread speak for themselves: 0 or 1.
        """
        beyond = self.value - least
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(self.error > 0, beyond / self.error, np.where(beyond > 0, np.inf, -np.inf))
        p_value: Floats = stdtr(np.maximum(self.degrees, 1), -ratio)
        return np.where(self.degrees > 0, p_value, 1.0)


def estimate_means(samples: Floats, trim_fraction: float = TRIM_FRACTION) -> Estimates:
    """Return the trimmed mean of every row of `samples` (subjects x samples); NaN is no sample.

    From 8 samples on, `trim_fraction` of them is cut off at either end; of fewer nothing is.
    """
    ordered = np.sort(np.atleast_2d(samples), axis=1)  # NaN comes last
    count = np.isfinite(ordered).sum(axis=1)
    cut = np.where(count >= FEWEST_TO_TRIM, np.floor(trim_fraction * count), 0).astype(np.int64)
    place = np.arange(ordered.shape[1])[None, :]
    kept = (place >= cut[:, None]) & (place < (count - cut)[:, None])
    kept_count = kept.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.where(kept, ordered, 0.0).sum(axis=1) / kept_count
        winsorized = _winsorized(ordered, cut, count)
        own = place < count[:, None]
        center = np.where(own, winsorized, 0.0).sum(axis=1) / count
        squares = np.where(own, (winsorized - center[:, None]) ** 2, 0.0).sum(axis=1)
        error = np.sqrt(squares / (kept_count * (kept_count - 1.0)))
    has_error = kept_count > 1
    return Estimates(
        value=np.where(kept_count > 0, value, np.nan),
        error=np.where(has_error, error, np.nan),
        degrees=np.where(has_error, kept_count - 1.0, 0.0),
        count=count,
    )


def _winsorized(ordered: Floats, cut: NDArray[np.int64], count: NDArray[np.int64]) -> Floats:
    """Return sorted samples with those cut off replaced by the outermost ones that were kept."""
    if not ordered.shape[1]:
        return ordered
    rows = np.arange(len(ordered))
    lowest = ordered[rows, np.minimum(cut, ordered.shape[1] - 1)]
    highest = ordered[rows, np.clip(count - cut - 1, 0, None)]
    clipped: Floats = np.clip(ordered, lowest[:, None], highest[:, None])
    return clipped


def difference(one: Estimates, other: Estimates) -> Estimates:
    """Return the estimates of `other` minus `one`, with the degrees of freedom after Welch."""
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = [each.error**2 for each in (one, other)]
        total = squares[0] + squares[1]
        shares = [
            square**2 / np.maximum(each.degrees, 1)
            for square, each in zip(squares, (one, other), strict=True)
        ]
        degrees = np.where(total > 0, total**2 / (shares[0] + shares[1]), one.degrees + other.degrees)
    known = (one.degrees > 0) & (other.degrees > 0)
    return Estimates(
        value=other.value - one.value,
        error=np.where(known, np.sqrt(total), np.nan),
        degrees=np.where(known, degrees, 0.0),
        count=np.minimum(one.count, other.count),
    )


def discoveries(p_values: Floats, rate: float) -> NDArray[np.bool_]:
    """Return which hypotheses to reject so that at most `rate` of the rejected are expected to be true ones.

    Benjamini and Hochberg's step-up procedure; it holds for independent and for positively dependent tests. Where
    nothing at all is there to be found, `rate` is also the chance of any rejection.
    """
    order = np.argsort(p_values, kind="stable")
    limits = rate * np.arange(1, len(p_values) + 1) / max(len(p_values), 1)
    passed = np.flatnonzero(p_values[order] <= limits)
    found = np.zeros(len(p_values), dtype=np.bool_)
    if len(passed):
        found[order[: passed[-1] + 1]] = True
    return found


def medians_of_others(values: Floats) -> Floats:
    """Return for every row and column of `values` the median of the other rows in that column; NaN counts as absent.

    What has no other row is NaN. A row is left out of its own median, or a slow one among few would hide in it.
    """
    order = np.argsort(values, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)
    place = np.argsort(order, axis=0, kind="stable")
    present = np.isfinite(values)
    others = present.sum(axis=0)[None, :] - present
    last = max(len(values) - 1, 0)
    middle = []
    for index in ((others - 1) // 2, others // 2):
        beyond = np.clip(index + (place <= index), 0, last)  # the row itself is skipped
        middle.append(np.take_along_axis(ordered, beyond, axis=0))
    found: Floats = np.where(others > 0, (middle[0] + middle[1]) / 2, np.nan)
    return found
