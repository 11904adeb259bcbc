"""Process groups: what identifies one on all its members, and the numbers of its collectives."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from stagescope.record.format import NONE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MOST_LISTED_RANKS = 8
NAME_CHARACTERS = 8
"""Characters of the name of a group that are kept: torch numbers groups, or hashes their ranks."""


class Group:
    """A process group of this process.

    `text` is the same on all its members and different for all other groups, `size` is the number of members, and
    `ranks` are their global ranks in the order of their ranks in the group.
    `number` returns the number of the next collective; `counted` are those that were numbered, but not recorded one by
    one.
    """

    __slots__ = ("counted", "names", "number", "ranks", "size", "text")

    def __init__(self, text: str, size: int, ranks: Sequence[int] = ()) -> None:
        self.text = text
        self.size = size
        self.ranks = ranks
        self.number: Callable[[], int] = itertools.count().__next__
        self.counted = 0
        self.names: dict[str, str] = {}

    def name(self, operation: str) -> str:
        """Return the name of a collective."""
        name = self.names.get(operation)
        if name is None:
            name = self.names[operation] = f"{operation} in {self.text}"
        return name

    @property
    def issued(self) -> int:
        """How many collectives were numbered, read from the text of the counter."""
        return int(repr(self.number.__self__)[len("count(") : -1])  # type: ignore[attr-defined]  # a method

    def rank(self, number: int) -> int:
        """Return the global rank of a member; `NONE` if it is not known."""
        return self.ranks[number] if 0 <= number < len(self.ranks) else NONE


def group_of(owner: Any) -> Group:
    """Return the group of a process group of torch."""
    import torch.distributed as dist  # already imported by the training

    ranks = dist.get_process_group_ranks(owner)
    purpose = getattr(owner, "group_desc", "") or ""
    number = str(getattr(owner, "group_name", ""))[:NAME_CHARACTERS]
    known = "" if purpose == "undefined" else f"{purpose} "
    return Group(f"{known}{ranks_text(ranks)} ({number})", len(ranks), ranks)


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ranks as short as possible.

    >>> ranks_text([0, 1, 2, 3]), ranks_text([1, 5, 9]), ranks_text([0, 3, 4])
    ('0-3', '1-9:4', '0,3,4')
    """
    first, last, count = ranks[0], ranks[-1], len(ranks)
    stride = ranks[1] - first if count > 1 else 1
    if count > 2 and stride > 0 and list(ranks) == list(range(first, last + 1, stride)):  # noqa: PLR2004  # two are listed
        return f"{first}-{last}" + (f":{stride}" if stride > 1 else "")
    listed = ",".join(map(str, ranks[:MOST_LISTED_RANKS]))
    return listed if count <= MOST_LISTED_RANKS else f"{listed},... {count} ranks to {last}"
