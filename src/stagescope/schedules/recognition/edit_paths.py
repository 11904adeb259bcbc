"""All alignments of two sequences of actions, observed and planned, with the fewest edits.

An edit is a planned action that was not observed (lost), or an observed action that was not planned (extra). The
alignments are found by dynamic programming in a band of diagonals, which grows until the best path cannot leave it
(E. Ukkonen, Algorithms for approximate string matching, Information and Control 64, 1985). The edits are counted from
both ends, which shows for each cell whether a path with the fewest edits crosses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

FIRST_REACH = 4
FAR = 1 << 60

Fits = Callable[[int, int], bool]


class Pair(NamedTuple):
    """Observed action number `seen` is planned action number `place`."""

    seen: int
    place: int


class EditPaths:
    """The paths through a band of cells, and the fewest edits from either end of both sequences to each cell.

    Cell (i, j) is after i observed and j planned actions. Row i of the band has the cells from j = i + `low` on, so
    index d of a row is diagonal `low` + d and a match stays at index d from one row to the next.
    """

    def __init__(self, fits: Fits, sizes: tuple[int, int], reach: int) -> None:
        observed, planned = self.sizes = sizes
        self.low = min(0, planned - observed) - reach
        self.width = abs(planned - observed) + 2 * reach + 1
        self.fits = [
            [0 <= j < planned and fits(i, j) for j in range(i + self.low, i + self.low + self.width)]
            for i in range(observed)
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
            # Cell (0, 0) is the start. A step to the right is a planned action that was lost.
            best = left + 1 if i or i + self.low + d else 0
            # A step down the diagonal is a match: it keeps d, since row i starts at column i + low.
            if fits[d] and above[d] < best:
                best = above[d]
            # A step straight down, from d + 1 of the row above, is an extra observed action.
            if d + 1 < self.width and above[d + 1] + 1 < best:
                best = above[d + 1] + 1
            row[d] = left = best
        return row

    def _backwards(self) -> list[list[int]]:
        observed = self.sizes[0]
        rows: list[list[int]] = []
        for i in range(observed, -1, -1):
            below, fits = (
                (rows[-1], self.fits[i]) if i < observed else ([FAR] * self.width, [False] * self.width)
            )
            rows.append(self._row_from_below(i, below, fits))
        return rows[::-1]

    def _row_from_below(self, i: int, below: list[int], fits: list[bool]) -> list[int]:
        observed, planned = self.sizes
        row, right = [FAR] * self.width, FAR
        for d in reversed(self._inside(i)):
            best = right + 1 if i < observed or i + self.low + d < planned else 0
            if fits[d] and below[d] < best:
                best = below[d]
            if d and below[d - 1] + 1 < best:
                best = below[d - 1] + 1
            row[d] = right = best
        return row

    def _inside(self, i: int) -> range:
        """Return the cells of a row with j from 0 to the number of planned actions."""
        first = max(0, -i - self.low)
        return range(first, max(first, min(self.width, self.sizes[1] - i - self.low + 1)))

    @property
    def edits(self) -> int:
        """The fewest edits of any alignment."""
        return self.after[0][-self.low]

    def edits_before(self, pair: Pair) -> int:
        """Return the fewest edits before a pair."""
        return self.before[pair.seen][pair.place - pair.seen - self.low]

    def pairs(self, seen: int) -> list[Pair]:
        """Return the planned actions that an observed one is matched to on some path with the fewest edits."""
        before = self.before[seen]
        after = self.after[seen + 1]
        return [
            Pair(seen, seen + self.low + d)
            for d, fits in enumerate(self.fits[seen])
            if fits and before[d] + after[d] == self.edits
        ]

    def may_be_extra(self, seen: int) -> bool:
        """Return whether an observed action is extra on some path with the fewest edits."""
        before, after = self.before[seen], self.after[seen + 1]
        # An extra action moves from cell (i, j) to (i + 1, j), which is index d - 1 of the next row.
        return any(before[d] + 1 + after[d - 1] == self.edits for d in range(1, self.width))


def find_paths(fits: Fits, sizes: tuple[int, int], most_edits: int) -> EditPaths | None:
    """Return the paths with the fewest edits, None if these are more than `most_edits`.

    `fits(i, j)` is whether observed action i may be planned action j; `sizes` are the numbers of observed and planned
    actions.
    """
    difference = abs(sizes[0] - sizes[1])
    reach = FIRST_REACH
    # Each edit moves a path by one diagonal, so a path with e edits beyond the difference in length leaves the outer
    # diagonals by at most e / 2: a band with that reach contains all of them. Doubling costs at most twice the last
    # band.
    while difference <= most_edits:
        paths = EditPaths(fits, sizes, reach)
        # Within the band the result is only an upper bound; it is exact once the reach covers half of the excess edits.
        if paths.edits <= most_edits and (paths.edits - difference) // 2 <= reach:
            return paths
        if 2 * reach >= most_edits - difference:
            return None
        reach *= 2
    return None
