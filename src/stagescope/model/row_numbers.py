"""Numbers for rows that have the same values in some columns: what a sort, a grouping or a join by them needs.

One integer represents the values of all columns, so that many analyses of the same rows need no sort of wide tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

LARGEST = np.iinfo(np.int64).max
WIDEST_TABLE = 1 << 24
"""Up to this many codes are renumbered by a lookup table (16 Mi entries of 5 bytes), more of them by sorting."""

CODES_PER_VALUE = 16
"""With more codes than this per value to renumber, sorting is faster as well: 40,000 values with 16 Mi codes took 3 ms
instead of 260 ms, and 1 MB instead of 144 MB (2026-11-26)."""

FOLDED_PER_VALUE = 4
"""Columns are folded into one number up to this many codes per row before it is renumbered by a small table."""


class RowNumbers(NamedTuple):
    """The number of the group of every row, without gaps, and the first row of every group.

    Groups are numbered in the order in which a sort by all columns puts them, nulls first.
    """

    number: Integers
    first: Integers


def number_rows(keys: pl.DataFrame) -> RowNumbers:
    """Return the groups of equal rows of some columns of integers, Booleans or categories; null equals null."""
    number, count = _renumber(*_fold(keys, min(WIDEST_TABLE, FOLDED_PER_VALUE * keys.height)))
    first = np.zeros(count, dtype=np.int64)
    # Of several values for one place, the last one is kept.
    first[number[::-1]] = np.arange(keys.height - 1, -1, -1)
    return RowNumbers(number, first)


def order_rows(keys: pl.DataFrame) -> Integers:
    """Return the order of rows sorted by such columns; equal ones stay in their order."""
    order: Integers = np.argsort(_fold(keys, LARGEST)[0], kind="stable")
    return order


def _fold(keys: pl.DataFrame, most: int) -> tuple[Integers, int]:
    """Return a number for every row, equal for equal rows and larger for later ones, and a limit that all are below.

    Numbers above `most` are avoided: they are renumbered without gaps in between.
    """
    numbers, count = np.zeros(keys.height, dtype=np.int64), 1
    for column in keys.get_columns():
        codes, width = _codes(column)
        if count * width > most:
            (numbers, count), (codes, width) = _renumber(numbers, count), _renumber(codes, width)
        numbers = numbers * width + codes
        count *= width
    return numbers, count


def _codes(column: pl.Series) -> tuple[Integers, int]:
    """Return a number from 0 for every value, in their order, 0 for null, and how many numbers there may be."""
    values = column.to_physical() if column.dtype in (pl.Enum, pl.Categorical) else column
    if column.null_count():
        wide = values.cast(pl.Int64)
        least = int(wide.min() or 0) - 1
        codes = wide.fill_null(least).to_numpy() - least
    else:
        known = values.to_numpy()
        codes = known.astype(np.int64)
        codes -= int(known.min()) if len(known) else 0
    return codes, int(codes.max(initial=0)) + 1


def _renumber(numbers: Integers, count: int) -> tuple[Integers, int]:
    """Return the numbers renumbered without gaps, in the same order, and the number of distinct ones.

    All numbers are below `count`.
    """
    if count > min(max(WIDEST_TABLE, len(numbers)), CODES_PER_VALUE * len(numbers)):
        known, dense = np.unique(numbers, return_inverse=True)
        return dense, len(known)
    occurs = np.zeros(count, dtype=np.bool_)
    occurs[numbers] = True
    table = np.cumsum(occurs, dtype=np.int32) - np.int32(1)
    return table[numbers].astype(np.int64), int(occurs.sum())
