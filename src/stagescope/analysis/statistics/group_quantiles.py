"""Quantiles of many small groups at once: Polars computes each group's on its own, which takes 4 µs per group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

EXACT = 2.0**53
"""Larger whole numbers are not exact as floating-point numbers."""
LARGEST = np.iinfo(np.int64).max


class GroupedValues:
    """Values in the order of their groups and sizes; `group` numbers the group of each value, from 0, without a gap."""

    def __init__(self, values: Floats, group: Integers, groups: int) -> None:
        self.count = np.bincount(group, minlength=groups)
        self._first = np.cumsum(self.count) - self.count
        self._ordered = _in_groups(values, group, self.count)

    def linear(self, quantile: float) -> Floats:
        """Return a quantile of every group, interpolated between two values."""
        place = quantile * (self.count - 1)
        low = np.floor(place).astype(np.int64)
        lower, upper = (self._ordered[self._first + each] for each in (low, np.ceil(place).astype(np.int64)))
        found: Floats = lower + (place - low) * (upper - lower)
        return found

    def lower_median(self) -> Floats:
        """Return the median of every group, the lower one of two in the middle."""
        found: Floats = self._ordered[self._first + (self.count - 1) // 2]
        return found


def _in_groups(values: Floats, group: Integers, count: Integers) -> Floats:
    """Return the values sorted by group and size.

    Whole numbers are sorted together with their groups as one number: 60 ns per value instead of 400.
    """
    whole = values.astype(np.int64) if len(values) and np.abs(values).max() <= EXACT else np.empty(0)
    least = int(whole.min(initial=0))
    width = int(whole.max(initial=0)) - least + 1
    if not np.array_equal(whole, values) or len(count) * width > LARGEST:
        return values[np.lexsort((values, group))]
    both = np.sort(group * width + (whole - least))
    ordered: Floats = (both - np.repeat(np.arange(len(count)) * width - least, count)).astype(np.float64)
    return ordered
