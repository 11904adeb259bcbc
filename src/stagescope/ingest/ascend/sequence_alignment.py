"""Align two sequences, either of which may lack entries, at minimum total cost.

A global alignment as in Needleman and Wunsch (J. Mol. Biol. 48, 1970), restricted to a band around the diagonal and
computed row by row on whole numpy arrays. It runs in both directions, so that the cost of the best and of the
second-best partner of every entry is known: where the two are close, no partner is chosen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Indices = npt.NDArray[np.int64]

MISSING_COST = 1.0
"""Cost of an expected entry that was not observed. All other costs are relative to it."""

BAND_MARGIN = 32
"""Half-width of the band: how many more entries than the difference in length may be missing on one side at any point.
"""

MIN_ADVANTAGE = 0.1
"""By how much the best partner of an entry must be cheaper than the second best to be chosen."""

DIAGONAL_COST = 0.25
"""Sequences of equal length in which every entry-by-entry pair costs at most this much are paired one to one."""

NO_PARTNER, UNCLEAR = -1, -2


class Sides(NamedTuple):
    """Lengths of the two sequences; per observed entry, its cost without a partner and the maximum cost of a pair."""

    observed: int
    expected: int
    unpaired_cost: Floats
    max_cost: Floats


def align(sides: Sides, pair_costs: Callable[[Indices, Indices], Floats]) -> Indices:
    """Return the index of each observed entry's partner, NO_PARTNER for none, UNCLEAR where two fit equally well.

    `pair_costs(i, j)` returns the cost of pairing the observed entries i with the expected entries j, infinite where
    the pair is impossible; both index arrays have the same shape, and so has the result.
    """
    n, m, unpaired_cost, max_cost = sides
    if n == m:
        diagonal = np.arange(n)
        # Undamaged data take this path: it is linear, while the band costs 65 columns or more per entry.
        if (pair_costs(diagonal, diagonal) <= DIAGONAL_COST).all():
            return diagonal
    if not n or not m:
        return np.full(n, NO_PARTNER)
    first = min(0, m - n) - BAND_MARGIN
    width = abs(m - n) + 2 * BAND_MARGIN + 1
    rows, columns = np.arange(n)[:, None], np.arange(n)[:, None] + first + np.arange(width)[None, :]
    inside = (columns >= 0) & (columns < m)
    costs = pair_costs(np.broadcast_to(rows, columns.shape), columns.clip(0, m - 1))
    costs = np.where(inside & (costs <= max_cost[:, None]), costs, np.inf)
    before = _forward(costs, unpaired_cost, first, m)
    # The same from the other end: row n - 1 - i, column m - 1 - j.
    first_back = m - n - first - width + 1
    after = _forward(costs[::-1, ::-1], unpaired_cost[::-1], first_back, m)[::-1, ::-1]
    return _partners(before, costs, after, unpaired_cost, columns)


def _forward(costs: Floats, unpaired_cost: Floats, first: int, m: int) -> Floats:
    """Return the cost of the best alignment of the first i observed with the first i + first + w expected entries.

    One row per i from 0 to n, one column per w.
    """
    n, width = costs.shape
    table = np.full((n + 1, width), np.inf)
    steps = MISSING_COST * np.arange(width)
    for i in range(n + 1):
        row = np.full(width, np.inf)
        if i == 0 and 0 <= -first < width:
            row[-first] = 0.0
        if i > 0:
            row = table[i - 1] + costs[i - 1]
            row[:-1] = np.minimum(row[:-1], table[i - 1, 1:] + unpaired_cost[i - 1])
        row = np.minimum.accumulate(row - steps) + steps  # any number of consecutive missing entries
        column = i + first + np.arange(width)
        table[i] = np.where((column >= 0) & (column <= m), row, np.inf)
    return table


def _partners(
    before: Floats, costs: Floats, after: Floats, unpaired_cost: Floats, columns: Indices
) -> Indices:
    """Return the best partner of every observed entry, from the best costs before and after it."""
    n, width = costs.shape
    paired = before[:-1] + costs + after[1:]
    alone = np.full((n, 1), np.inf)
    # The band shifts by one per row: the same number of expected entries is one column further left in the next row.
    alone[:, 0] = (before[:-1, 1:] + after[1:, :-1]).min(axis=1) + unpaired_cost
    whole = np.concatenate([paired, alone], axis=1)
    order = np.argsort(whole, axis=1)[:, :2]
    best, following = np.take_along_axis(whole, order, axis=1).T
    chosen = order[:, 0]
    partner = np.where(chosen == width, NO_PARTNER, columns[np.arange(n), chosen.clip(0, width - 1)])
    return np.where(following - best < MIN_ADVANTAGE, UNCLEAR, partner)
