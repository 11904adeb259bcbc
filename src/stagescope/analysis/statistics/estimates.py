"""Estimates from repeated measurements: trimmed means with t intervals, p-values, false discovery control.

A sample is measured in one training step or a part of one. Steps repeat the same work and are treated as independent;
the actions of one step are not, because they share whatever disturbed that step.

Sources: trimmed mean with winsorized variance, Tukey and McLaughlin 1963 and Yuen 1974; degrees of freedom of a
difference, Welch 1947; false discovery rate, Benjamini and Hochberg 1995; family-wise rate, Holm 1979. Quantiles are
those of Student's t, which stays valid for few samples; one sample has no interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import stdtr, stdtrit  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

TRIM_FRACTION = 0.2
FEWEST_TO_TRIM = 8
"""With fewer samples, trimming loses more in degrees of freedom than it gains in robustness."""

CONFIDENCE = 0.95
SAMPLES_AT_ONCE = 1_000_000
"""Samples that are looked at together; each takes about 60 bytes."""


@dataclass(frozen=True)
class Estimates:
    """Estimates, one per subject: the value, its standard error, its degrees of freedom and n.

    A subject with fewer than two samples has no error: NaN, and 0 degrees of freedom.
    """

    value: Floats
    error: Floats
    degrees: Floats
    count: NDArray[np.int64]

    def intervals(self, confidence: float = CONFIDENCE) -> tuple[Floats, Floats]:
        """Return lower and upper ends of the two-sided confidence intervals; NaN without an error."""
        # Subjects without an error have 0 degrees of freedom, which stdtrit rejects; their error is NaN anyway.
        reach = stdtrit(np.maximum(self.degrees, 1), 0.5 + confidence / 2) * self.error
        return self.value - reach, self.value + reach

    def p_above(self, least: Floats | float) -> Floats:
        """Return the one-sided p-values of the hypotheses that the values are `least` or less.

        1 without an error. Samples without any spread have an error of 0: their p-value is 0 or 1.
        """
        beyond = self.value - least
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(self.error > 0, beyond / self.error, np.where(beyond > 0, np.inf, -np.inf))
        p_value: Floats = stdtr(np.maximum(self.degrees, 1), -ratio)
        return np.where(self.degrees > 0, p_value, 1.0)


def estimate_means(samples: Floats, trim_fraction: float = TRIM_FRACTION) -> Estimates:
    """Return the trimmed mean of every row of `samples` (subjects x samples); NaN is a missing sample.

    From 8 samples on, `trim_fraction` of them is cut off at either end; fewer are not trimmed.
    """
    parts = [_estimate(rows, trim_fraction) for rows in some_rows(np.atleast_2d(samples))]
    return Estimates(*(np.concatenate(each) for each in zip(*map(_values, parts), strict=True)))


def some_rows(samples: Floats) -> Iterator[Floats]:
    """Yield some rows of `samples` (subjects x samples) after the others, at least once: views of them.

    What is computed from all together needs several times their memory.
    """
    at_once = max(1, SAMPLES_AT_ONCE // max(samples.shape[1], 1))
    for first in range(0, max(len(samples), 1), at_once):
        yield samples[first : first + at_once]


def _values(part: Estimates) -> tuple[Floats, Floats, Floats, NDArray[np.int64]]:
    return part.value, part.error, part.degrees, part.count


def _estimate(samples: Floats, trim_fraction: float) -> Estimates:
    """Return the estimates of some subjects."""
    ordered = np.sort(samples, axis=1)  # NaN is sorted last
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
    """Return sorted samples with those cut off replaced by the outermost ones that remain."""
    if not ordered.shape[1]:
        return ordered
    rows = np.arange(len(ordered))
    lowest = ordered[rows, np.minimum(cut, ordered.shape[1] - 1)]
    highest = ordered[rows, np.clip(count - cut - 1, 0, None)]
    clipped: Floats = np.clip(ordered, lowest[:, None], highest[:, None])
    return clipped


def difference(one: Estimates, other: Estimates) -> Estimates:
    """Return the estimates of `other` minus `one`, with the degrees of freedom of Welch."""
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
    """Return which hypotheses to reject so that at most `rate` of the rejected ones are expected to be true.

    The step-up procedure of Benjamini and Hochberg; it holds for independent and for positively dependent tests. If all
    hypotheses are true, `rate` is also the probability of any rejection.
    """
    order = np.argsort(p_values, kind="stable")
    places = np.arange(1, len(p_values) + 1)
    below = np.flatnonzero(p_values[order] * len(p_values) / places <= rate)
    rejected = np.zeros(len(p_values), dtype=np.bool_)
    rejected[order[: below[-1] + 1 if len(below) else 0]] = True
    return rejected


def rejections(p_values: Floats, rate: float) -> NDArray[np.bool_]:
    """Return which hypotheses to reject so that, in all but `rate` of all runs, none of them is true (Holm 1979)."""
    order = np.argsort(p_values, kind="stable")
    left = np.arange(len(p_values), 0, -1)
    holds = np.logical_and.accumulate(p_values[order] * left <= rate)
    rejected = np.zeros(len(p_values), dtype=np.bool_)
    rejected[order] = holds
    return rejected


def inverse(order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place of each value, given the order of the values along the first axis; faster than sorting again."""
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(len(order)).reshape(-1, *[1] * (order.ndim - 1)), axis=0)
    return place


def medians_of_others(values: Floats) -> Floats:
    """Return for every row and column of `values` the median of the other rows in that column; NaN is missing.

    NaN if there is no other row. A row does not count in its own reference: one slow subject among few would otherwise
    hide in the median.
    """
    found = np.full(values.shape, np.nan)
    at_once = max(1, SAMPLES_AT_ONCE // max(len(values), 1))
    for first in range(0, values.shape[1], at_once):
        found[:, first : first + at_once] = _medians_of_others(values[:, first : first + at_once])
    return found


def _medians_of_others(values: Floats) -> Floats:
    """Return medians_of_others for some columns."""
    order = np.argsort(values, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)
    place = inverse(order)
    present = np.isfinite(values)
    others = present.sum(axis=0)[None, :] - present
    last = max(len(values) - 1, 0)
    middle = []
    for index in ((others - 1) // 2, others // 2):
        beyond = np.clip(index + (place <= index), 0, last)  # the row itself is skipped
        middle.append(np.take_along_axis(ordered, beyond, axis=0))
    found: Floats = np.where(others > 0, (middle[0] + middle[1]) / 2, np.nan)
    return found
