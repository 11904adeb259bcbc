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


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ranks as compact ranges, with the noun.

    >>> ranks_text([3]), ranks_text([0, 1, 2]), ranks_text([0, 3])
    ('rank 3', 'ranks 0-2', 'ranks 0 and 3')
    """
    different = set(ranks)
    listed = compact_ranges(different)
    if listed.count(",") == 1:
        listed = listed.replace(", ", " and ")
    return f"{'rank' if len(different) == 1 else 'ranks'} {listed}"
