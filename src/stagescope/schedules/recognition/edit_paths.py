"""All ways to match two rows of jobs with the fewest edits: what was done, and what should have been.

An edit is an action that no job was, or a job that is none of the actions. Dynamic programming in a band of diagonals
that grows until the best path cannot leave it (E. Ukkonen, Algorithms for approximate string matching, Information and
Control 64, 1985), from both ends, so that it is known of every cell whether a path with the fewest edits crosses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

FIRST_REACH = 4
FAR = 1 << 60

Fits = Callable[[int, int], bool]


class Pair(NamedTuple):
    """NumberedAction `seen` is action `place`."""

    seen: int
    place: int


class EditPaths:
    """The paths through a band of cells, and the fewest edits from either end of both rows to each cell.

    Cell (i, j) lies behind i jobs and j actions. Row i of the band holds the cells from j = i + `low` on.
    """

    def __init__(self, fits: Fits, sizes: tuple[int, int], reach: int) -> None:
        jobs, actions = self.sizes = sizes
        self.low = min(0, actions - jobs) - reach
        self.width = abs(actions - jobs) + 2 * reach + 1
        self.fits = [
            [0 <= j < actions and fits(i, j) for j in range(i + self.low, i + self.low + self.width)]
            for i in range(jobs)
        ]
        self.before = self._forwards()
        self.after = self._backwards()

    def _forwards(self) -> list[list[int]]:
        rows: list[list[int]] = []
        for i in range(self.sizes[0] + 1):
            above, fits = (rows[-1], self.fits[i - 1]) if i else ([FAR] * self.width, [False] * self.width)
            rows.append(self._row_from_above(i, above, fits))
        return rows

    def _row_from_above(self, i: int, above: list[int], fits: list[bool]) -> list[int]:
        row, left = [FAR] * self.width, FAR
        for d in self._inside(i):
            best = left + 1 if i or i + self.low + d else 0
            if fits[d] and above[d] < best:
                best = above[d]
            if d + 1 < self.width and above[d + 1] + 1 < best:
                best = above[d + 1] + 1
            row[d] = left = best
        return row

    def _backwards(self) -> list[list[int]]:
        jobs = self.sizes[0]
        rows: list[list[int]] = []
        for i in range(jobs, -1, -1):
            below, fits = (rows[-1], self.fits[i]) if i < jobs else ([FAR] * self.width, [False] * self.width)
            rows.append(self._row_from_below(i, below, fits))
        return rows[::-1]

    def _row_from_below(self, i: int, below: list[int], fits: list[bool]) -> list[int]:
        jobs, actions = self.sizes
        row, right = [FAR] * self.width, FAR
        for d in reversed(self._inside(i)):
            best = right + 1 if i < jobs or i + self.low + d < actions else 0
            if fits[d] and below[d] < best:
                best = below[d]
            if d and below[d - 1] + 1 < best:
                best = below[d - 1] + 1
            row[d] = right = best
        return row

    def _inside(self, i: int) -> range:
        """Return which cells of a row there are: from 0 to all actions."""
        first = max(0, -i - self.low)
        return range(first, max(first, min(self.width, self.sizes[1] - i - self.low + 1)))

    @property
    def edits(self) -> int:
        """The fewest edits of all."""
        return self.after[0][-self.low]

    def edits_before(self, pair: Pair) -> int:
        """Return the fewest edits before a pair."""
        return self.before[pair.seen][pair.place - pair.seen - self.low]

    def pairs(self, seen: int) -> list[Pair]:
        """Return what a job is on any path with the fewest edits."""
        before = self.before[seen]
        after = self.after[seen + 1]
        return [
            Pair(seen, seen + self.low + d)
            for d, fits in enumerate(self.fits[seen])
            if fits and before[d] + after[d] == self.edits
        ]

    def may_be_extra(self, seen: int) -> bool:
        """Tell whether a job is extra on any path with the fewest edits."""
        before, after = self.before[seen], self.after[seen + 1]
        return any(before[d] + 1 + after[d - 1] == self.edits for d in range(1, self.width))


def find_paths(fits: Fits, sizes: tuple[int, int], most_edits: int) -> EditPaths | None:
    """Return the paths with the fewest edits, None where these are more than `most_edits`.

    `fits` tells whether a job may be an action, `sizes` are the numbers of jobs and of actions.

    A path with that many edits beyond the difference in length strays from the outer diagonals by at most half
    of them, so a band whose reach is as large holds all of them.
    """
    difference = abs(sizes[0] - sizes[1])
    reach = FIRST_REACH
    while difference <= most_edits:
        paths = EditPaths(fits, sizes, reach)
        if paths.edits <= most_edits and (paths.edits - difference) // 2 <= reach:
            return paths
        if 2 * reach >= most_edits - difference:
            return None
        reach *= 2
    return None
