"""Binary searches in many segments of one column at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


def search_segments(values: Integers, first: Integers, stop: Integers, wanted: Integers) -> Integers:
    """Return for each row the first index in [first, stop) whose value is at least `wanted`, or `stop`.

    `values[first:stop]` has to be sorted for each row; `values` as a whole need not be. All rows are searched in
    lockstep, which takes as many passes over the rows as the longest segment has binary digits.
    """
    low, high = first.astype(np.int64), stop.astype(np.int64)
    if not len(values):
        return low
    for _ in range(int((high - low).max(initial=0)).bit_length()):
        middle = (low + high) >> 1
        below = values.take(middle, mode="clip") < wanted
        below &= low < high
        low = np.where(below, middle + 1, low)
        high = np.where(below, high, middle)
    return low
