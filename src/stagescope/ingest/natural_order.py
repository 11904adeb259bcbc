"""Sort names in natural order: rank2 before rank10."""

from __future__ import annotations

import re


def natural_key(text: str) -> list[tuple[int, str]]:
    """Return a sort key that compares runs of digits as numbers.

    >>> sorted(["rank10", "rank2"], key=natural_key)
    ['rank2', 'rank10']
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]
