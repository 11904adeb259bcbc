"""Whole numbers as compact ranges: 0-3, 7."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def compact_ranges(numbers: Iterable[int]) -> str:
    """Return numbers as compact ranges, "none" for no numbers.

    >>> compact_ranges([0, 1, 2, 3, 7])
    '0-3, 7'
    """
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs) or "none"
