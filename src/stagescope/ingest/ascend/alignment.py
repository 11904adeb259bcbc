"""Two sequences of which either may lack entries, put side by side by the costs of putting two entries together.

A global alignment in the manner of Needleman and Wunsch (J. Mol. Biol. 48, 1970), within a band around the diagonal,
row by row on whole numpy arrays. It runs in both directions, so that every entry's best partner is known together
with the cost of the next best: what is not clear is not decided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Indices = npt.NDArray[np.int64]

LOST = 1.0
"""Cost of an expected entry that was not observed; the costs of pairs are measured against it."""

SLACK = 32
"""How many more entries may be missing on one side than on the other, anywhere, beyond what the lengths say."""

CLEAR = 0.1
"""How much better the best partner of an entry must be than the next best one."""

EASY = 0.25
"""Sequences of one length whose entries all fit this well are what they look like."""

NOBODY, UNCLEAR = -1, -2


class Sides(NamedTuple):
    """How long the two sequences are, and what each observed entry costs without a partner, and at most with one."""

    observed: int
    expected: int
    extra: Floats
    most: Floats


def align(sides: Sides, pair_costs: Callable[[Indices, Indices], Floats]) -> Indices:
    """Return for every observed entry the place of its partner, NOBODY for none, UNCLEAR where two are as good.

    `pair_costs(i, j)` gives the costs of putting the observed entries i beside the expected entries j, infinite where
    that cannot be; the arrays have the same shape.
    """
    n, m, extra, most = sides
    if n == m:
        diagonal = np.arange(n)
        if (pair_costs(diagonal, diagonal) <= EASY).all():
            return diagonal
    if not n or not m:
        return np.full(n, NOBODY)
    first = min(0, m - n) - SLACK
    width = abs(m - n) + 2 * SLACK + 1
    rows, columns = np.arange(n)[:, None], np.arange(n)[:, None] + first + np.arange(width)[None, :]
    inside = (columns >= 0) & (columns < m)
    costs = pair_costs(np.broadcast_to(rows, columns.shape), columns.clip(0, m - 1))
    costs = np.where(inside & (costs <= most[:, None]), costs, np.inf)
    before = _forward(costs, extra, first, m)
    # The same from the other end: row n - 1 - i, column m - 1 - j.
    first_back = m - n - first - width + 1
    after = _forward(costs[::-1, ::-1], extra[::-1], first_back, m)[::-1, ::-1]
    return _partners(before, costs, after, extra, columns)


def _forward(costs: Floats, extra: Floats, first: int, m: int) -> Floats:
    """Return the cost of the best alignment of the first i observed with the first i + first + w expected entries.

    One row per i from 0 to n, one column per w.
    """
    n, width = costs.shape
    table = np.full((n + 1, width), np.inf)
    steps = LOST * np.arange(width)
    for i in range(n + 1):
        row = np.full(width, np.inf)
        if i == 0 and 0 <= -first < width:
            row[-first] = 0.0
        if i > 0:
            row = table[i - 1] + costs[i - 1]
            row[:-1] = np.minimum(row[:-1], table[i - 1, 1:] + extra[i - 1])
        row = np.minimum.accumulate(row - steps) + steps  # entries that were lost, any number in a row
        column = i + first + np.arange(width)
        table[i] = np.where((column >= 0) & (column <= m), row, np.inf)
    return table


def _partners(before: Floats, costs: Floats, after: Floats, extra: Floats, columns: Indices) -> Indices:
    """Return every observed entry's best partner, from the best costs up to it and from it on."""
    n, width = costs.shape
    paired = before[:-1] + costs + after[1:]
    alone = np.full((n, 1), np.inf)
    # A column of the next row stands one place further left for the same number of expected entries.
    alone[:, 0] = (before[:-1, 1:] + after[1:, :-1]).min(axis=1) + extra
    whole = np.concatenate([paired, alone], axis=1)
    order = np.argsort(whole, axis=1)[:, :2]
    best, following = np.take_along_axis(whole, order, axis=1).T
    chosen = order[:, 0]
    partner = np.where(chosen == width, NOBODY, columns[np.arange(n), chosen.clip(0, width - 1)])
    return np.where(following - best < CLEAR, UNCLEAR, partner)
