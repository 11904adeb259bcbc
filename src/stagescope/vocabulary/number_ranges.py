"""Whole numbers as compact ranges: 0-3, 7."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


MOST_LISTED = 3
"""Numbers in a few words."""

MOST_RANGES = 24
"""Ranges in a message; a message that lists thousands of ranks is not read."""


def compact_ranges(
    numbers: Iterable[int], most: int | None = MOST_RANGES, names: Sequence[int] | None = None
) -> str:
    """Return numbers as compact ranges, "none" for no numbers; beyond `most` ranges, how many numbers follow.

    With `names`, numbers are indices into it, and the names there are shown instead.

    >>> compact_ranges([0, 1, 2, 3, 7])
    '0-3, 7'
    >>> compact_ranges(range(0, 10_000, 8), most=3)
    '0, 8, 16 and 1,247 more'
    >>> compact_ranges([1, 2, 4], names=[0, 10, 20, 30, 40])
    '10-20, 40'
    """
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    listed = runs[:most]
    if names is not None:
        listed = [[names[end] for end in run] for run in listed]
    text = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in listed) or "none"
    hidden = sum(b - a + 1 for a, b in runs[len(listed) :])
    return f"{text} and {hidden:,} more" if hidden else text


def ranks_text(ranks: Iterable[int], most: int | None = MOST_RANGES) -> str:
    """Return ranks as compact ranges, with the noun; see compact_ranges.

    >>> ranks_text([3]), ranks_text([0, 1, 2]), ranks_text([0, 3])
    ('rank 3', 'ranks 0-2', 'ranks 0 and 3')
    """
    different = set(ranks)
    listed = compact_ranges(different, most)
    if " and " not in listed and listed.count(",") == 1:
        listed = listed.replace(", ", " and ")
    return f"{'rank' if len(different) == 1 else 'ranks'} {listed}"


def listed_numbers(noun: str, numbers: Collection[int]) -> str:
    """Return a noun with its numbers, or how many there are if there are many.

    >>> listed_numbers("rank", [3]), listed_numbers("rank", [5, 1]), listed_numbers("rank", [1, 2, 3, 4])
    ('rank 3', 'ranks 1 and 5', '4 ranks')
    """
    if len(numbers) > MOST_LISTED:
        return f"{len(numbers)} {noun}s"
    *first, last = map(str, sorted(numbers))
    return f"{noun}s {', '.join(first)} and {last}" if first else f"{noun} {last}"


def verb(numbers: Iterable[int], singular: str, plural: str) -> str:
    """Return the form of a verb whose subject is these numbers, in one of the forms above.

    >>> verb([3], "is", "are"), verb([0, 3, 4, 5], "is", "are")
    ('is', 'are')
    """
    return singular if len(set(numbers)) == 1 else plural


def steps_text(steps: Iterable[int], most: int | None = MOST_RANGES) -> str:
    """Return steps as compact ranges, with the noun; see compact_ranges.

    >>> steps_text([11]), steps_text([10, 11, 12])
    ('step 11', 'steps 10-12')
    """
    different = set(steps)
    return f"{'step' if len(different) == 1 else 'steps'} {compact_ranges(different, most)}"
