"""Rows by their groups: distinct keys, and quantiles of many groups at once, again and again for other values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from stagescope.clocks.evidence import Floats, Ints

AT_ONCE = 1 << 17
"""Values that are sorted together: few enough to stay in the cache of a processor."""


class Distinct(NamedTuple):
    """Keys, sorted, with the first row of each, the number of its rows, and for each row the place of its key."""

    keys: Ints
    first: Ints
    inverse: Ints
    counts: Ints


def distinct(keys: Ints) -> Distinct:
    """Return what `numpy.unique` does, in a tenth of the time where equal keys are next to each other.

    Observations are sorted by source and target.
    """
    starts = np.flatnonzero(np.concatenate([keys[:1] == keys[:1], keys[1:] != keys[:-1]]))
    sizes = np.diff(starts, append=len(keys))
    found, first, inverse = np.unique(keys[starts], return_index=True, return_inverse=True)
    counts = np.bincount(inverse, sizes, len(found)).astype(np.int64)
    return Distinct(found, starts[first], np.repeat(inverse, sizes), counts)


@dataclass(frozen=True)
class Grouped:
    """Rows by their groups: the numbers of the groups that have any, and the first place and the size of each.

    `order` has the rows in the order of their groups, None if they are in that order.
    """

    number: Ints
    first: Ints
    size: Ints
    order: npt.NDArray[np.int32] | None

    def in_order(self, values: Floats) -> Floats:
        """Return a value for each row in the order of the groups."""
        return values if self.order is None else values[self.order]

    def ranked(self, values: Floats, rank: Ints) -> Floats:
        """Return for each group the value that has this rank among those of the group, 0 for the least.

        `values` are in the order of the groups. Sorting each group by itself takes a fifth of the time of sorting all
        rows by group and value, and hardly any memory.
        """
        found = values[self.first]
        for chosen, width in self._of_like_sizes():
            column = np.arange(width)
            places = self.first[chosen][:, None] + column
            np.minimum(places, len(values) - 1, out=places)
            rows = values[places]
            rows[column >= self.size[chosen][:, None]] = np.inf
            rows.sort(axis=1)
            found[chosen] = rows[np.arange(len(chosen)), rank[chosen]]
        return found

    def _of_like_sizes(self) -> Iterator[tuple[Ints, int]]:
        """Yield the groups of more than one row whose sizes are at most a width, and more than half of it."""
        _, exponent = np.frexp(self.size - 1.0)
        for power in np.unique(exponent[self.size > 1]).tolist():
            width = 1 << power
            own = np.flatnonzero((exponent == power) & (self.size > 1))
            each = max(1, AT_ONCE // width)
            for start in range(0, len(own), each):
                yield own[start : start + each], width


def grouped(group: Ints, rows: Ints | None = None) -> Grouped:
    """Return rows by their groups: `rows` are some of them, all without it."""
    own = group if rows is None else group[rows]
    order = rows
    if (own[1:] < own[:-1]).any():
        by_group = np.argsort(own, kind="stable")
        own = own[by_group]
        order = by_group if rows is None else rows[by_group]
    first = np.flatnonzero(np.concatenate([own[:1] >= 0, own[1:] != own[:-1]]))
    size = np.diff(first, append=len(own))
    return Grouped(own[first], first, size, None if order is None else order.astype(np.int32))
