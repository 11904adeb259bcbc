"""Parse lists of whole numbers on the command line: 0,1,8-15."""

from __future__ import annotations

import re

from stagescope.vocabulary.errors import UsageError

PART = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?")


def parse_ranges(text: str) -> tuple[int, ...]:
    """Return the numbers of a list, each once, in the given order.

    Raises UsageError for malformed text and for a descending range.

    >>> parse_ranges("0-3,7")
    (0, 1, 2, 3, 7)
    """
    numbers: dict[int, None] = {}
    for part in text.split(","):
        bounds = PART.fullmatch(part)
        first, last = (int(bounds[1]), int(bounds[2] or bounds[1])) if bounds else (1, 0)
        if last < first:
            raise UsageError.numbers_malformed(text)
        numbers |= dict.fromkeys(range(first, last + 1))
    return tuple(numbers)
