"""Operations on tables with a row for every rank and step: a large run fits into memory once, and not twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

ROWS_AT_ONCE = 500_000
"""Of parts that are reduced together: ranges of few steps of a large run have nearly as many as the sum over all."""
KEPT_ROWS = 1_000_000
"""Parts with as many rows together are kept in memory where each of them is used a dozen times."""


def chosen_rows(frame: pl.DataFrame, is_chosen: pl.Expr) -> pl.DataFrame:
    """Return the rows for which `is_chosen` is true; `frame` itself if these are all rows.

    >>> frame = pl.DataFrame({"step": [0, 1]})
    >>> chosen_rows(frame, pl.col("step") >= 0) is frame
    True
    """
    mask = frame.select(is_chosen.fill_null(value=False).alias("is_chosen"))["is_chosen"]
    return frame if mask.all() else frame.filter(mask)


def few_rows(frame: pl.DataFrame, is_chosen: pl.Expr) -> pl.DataFrame:
    """Return a few rows of a table, to keep them longer than the table.

    `filter` alone keeps all memory of a table in chunks, as read from a file: where no row of a chunk is chosen, the
    result has an empty slice of it.

    >>> frame = pl.concat([pl.DataFrame({"step": [0]}), pl.DataFrame({"step": [1]})], rechunk=False)
    >>> few_rows(frame, pl.col("step") == 1).n_chunks()
    1
    """
    return frame.filter(is_chosen).rechunk()


def sort_in_place(frame: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return rows sorted by keys, those that are alike as they were, column by column, which takes half of the memory.

    Null is last. `frame` has no column afterwards.

    >>> frame = pl.DataFrame({"step": [1, 0], "rank": [0, 1]})
    >>> sort_in_place(frame, ["step"]).rows(), frame.columns
    ([(0, 1), (1, 0)], [])
    """
    order = frame.select(pl.arg_sort_by(keys, nulls_last=True, maintain_order=True)).to_series()
    return pl.DataFrame([frame.drop_in_place(name).gather(order) for name in frame.columns])


def reduced(parts: Iterable[pl.DataFrame], reduce: Callable[[pl.DataFrame], pl.DataFrame]) -> pl.DataFrame:
    """Return what `reduce` returns for the rows of all parts together; only a few parts are in memory at a time.

    There is at least one part. `reduce` must return the same if some of its rows are reduced before the others are
    added, as sums of integers do.

    >>> parts = [pl.DataFrame({"rank": [0, 1], "ns": [1, step]}) for step in range(3)]
    >>> reduced(parts, lambda rows: rows.group_by("rank", maintain_order=True).agg(pl.sum("ns"))).rows()
    [(0, 3), (1, 3)]
    """
    whole = ReducedRows(reduce)
    for rows in parts:
        whole.add(rows)
    return whole.rows()


class ReducedRows:
    """What `reduced` returns, for parts that are added one after the other; `reduce` is that of `reduced`."""

    def __init__(self, reduce: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
        self._reduce = reduce
        self._some: list[pl.DataFrame] = []
        self._height = 0

    def __bool__(self) -> bool:
        return bool(self._some)

    def add(self, rows: pl.DataFrame) -> None:
        """Add the rows of a part."""
        some = self._some
        some.append(self._reduce(rows))
        self._height += some[-1].height
        if len(some) > 1 and self._height > max(ROWS_AT_ONCE, 2 * some[0].height):
            self._some = [self._reduce(pl.concat(some))]
            self._height = self._some[0].height

    def rows(self) -> pl.DataFrame:
        """Return the reduced rows of all parts, of which there is at least one."""
        return self._reduce(pl.concat(self._some))


def united_rows(parts: Iterable[pl.DataFrame], columns: Sequence[str]) -> pl.DataFrame:
    """Return the different rows of some columns of all parts, in any order.

    >>> united_rows([pl.DataFrame({"step": [0, 0], "rank": [1, 2]})], ["step"]).rows()
    [(0,)]
    """
    return reduced((rows.select(columns) for rows in parts), pl.DataFrame.unique)


def kept_if_few(parts: Iterable[pl.DataFrame]) -> Iterable[pl.DataFrame]:
    """Return the same parts, in memory if they have few rows: otherwise they are loaded whenever they are iterated.

    `parts` may be iterated more than once.
    """
    kept: list[pl.DataFrame] = []
    rows = 0
    for each in parts:
        kept.append(each)
        rows += each.height
        if rows > KEPT_ROWS:
            return parts
    return kept
