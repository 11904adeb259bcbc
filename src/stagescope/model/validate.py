"""Converts a foreign data frame to a declared table, or raises an error that names the mismatch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from polars.exceptions import PolarsError

from stagescope.model.row_numbers import order_rows
from stagescope.vocabulary.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stagescope.model.tables import Column, Table

BLOCK_ROWS, MOST_PARTS = 250_000, 256
"""Rows and parts that are conformed at once: one part takes a millisecond, of which little depends on its rows."""

COLUMNS_TO_SORT_APART = 2
"""With more columns in an order, few rows are alike in all but the last one."""


def conform(frame: pl.DataFrame, table: Table, where: str = "") -> pl.DataFrame:
    """Return `frame` as declared by `table`: its columns in order, cast and sorted.

    Missing nullable columns are filled with null; columns that the table does not declare are dropped. Raises
    TableError, naming table, column and the first wrong value, if a required column is missing, a value does not fit
    its type, or a required value is null.
    """
    missing = [c.name for c in table.columns if not c.nullable and c.name not in frame.columns]
    if missing:
        raise TableError.missing_columns(table.name, missing, where)
    cast = pl.DataFrame([_column(frame, column, table, where) for column in table.columns])
    return in_order(cast, table)


def conform_parts(parts: Iterable[pl.DataFrame], table: Table) -> pl.DataFrame:
    """Return parts of a table, which have the same columns, as one that conforms to `table`.

    The result is that of `conform`, except that parts are conformed a block at a time: as they are, with text for
    kinds and columns that are dropped, they take more memory than the result, and are not all there at once. Raises
    TableError as `conform` does.
    """
    blocks: list[pl.DataFrame] = []
    block: list[pl.DataFrame] = []
    for part in parts:
        block.append(part)
        if sum(each.height for each in block) >= BLOCK_ROWS or len(block) >= MOST_PARTS:
            blocks.append(conform(pl.concat(block), table))
            block = []
    if block:
        blocks.append(conform(pl.concat(block), table))
    return in_order(pl.concat(blocks), table) if blocks else table.empty()


def in_order(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    """Return `frame` sorted as `table` declares; the sort is stable.

    Sorted input is returned unchanged: recordings usually are sorted, and sorting takes as long as reading them.
    """
    order = _order_of(frame.select(table.order))
    return frame if order is None else frame.rechunk()[order]


def in_order_together(parts: list[pl.DataFrame], table: Table) -> pl.DataFrame:
    """Return the rows of all parts sorted as `table` declares, those that are alike in the order of the parts.

    Nullable columns that a part does not have are null. `parts` is empty afterwards: one column after the other is
    moved, so that rows that the caller does not keep are in memory once, and not three times.
    """
    own = [part.clone() for part in (table.empty(), *parts)]
    parts.clear()
    order = _order_of(pl.concat([part.select(table.order) for part in own]))
    if order is None:  # nothing has to be moved
        return pl.concat(own, how="diagonal")
    return pl.DataFrame([_move(own, column, order) for column in table.columns])


def _move(parts: Sequence[pl.DataFrame], column: Column, order: pl.Series) -> pl.Series:
    """Remove a column from all parts, and return all its values in an order."""
    whole = pl.concat(
        [
            part.drop_in_place(column.name)
            if column.name in part.columns
            else pl.Series(column.name, [None], dtype=column.dtype).new_from_index(0, part.height)
            for part in parts
        ],
        rechunk=True,
    )
    return whole.gather(order)


def _order_of(keys: pl.DataFrame) -> pl.Series | None:
    """Return the rows of some columns in their order, equal ones as they were; None if they are sorted."""
    if not sum(keys.null_count().row(0)):
        if _is_sorted(keys):
            return None
        if keys.width > COLUMNS_TO_SORT_APART and all(dtype.is_integer() for dtype in keys.dtypes):
            # Parts that are sorted are merged in a sixth of the time. Few rows differ only in the last column.
            order = pl.Series(order_rows(keys[:, :-1]), dtype=pl.UInt32)
            if _is_sorted(keys[order]):
                return order
    return keys.select(pl.arg_sort_by(keys.columns, maintain_order=True)).to_series()


def _is_sorted(keys: pl.DataFrame) -> bool:
    """Return whether each row is no smaller than the one before it, which is compared with it without a sort."""
    later = pl.lit(value=False)
    for name in reversed(keys.columns):
        key, before = pl.col(name), pl.col(name).shift(1)
        later = (before > key) | ((before == key) & later)
    return not keys.select(later.any()).item()


def _column(frame: pl.DataFrame, column: Column, table: Table, where: str) -> pl.Series:
    if column.name not in frame.columns:
        absent: pl.Series = pl.Series(column.name, [None], dtype=column.dtype).new_from_index(0, frame.height)
        return absent
    found = frame[column.name]
    try:
        series: pl.Series = found.cast(column.dtype)
    except PolarsError:
        raise TableError.wrong_values(
            table.name, column.name, _first_wrong(found, column), _expected(column), where
        ) from None
    if series.null_count() and not column.nullable:
        raise TableError.wrong_values(table.name, column.name, None, _expected(column), where)
    return series


def _first_wrong(found: pl.Series, column: Column) -> object:
    """Return the first value that cannot be cast to the type of the column, or the type that it has instead."""
    try:
        wrong = found.filter(found.cast(column.dtype, strict=False).is_null() & found.is_not_null())
    except PolarsError:  # no value of this type can be
        return str(found.dtype)
    return wrong[0] if len(wrong) else None


def _expected(column: Column) -> str:
    if isinstance(column.dtype, pl.Enum):
        return f"one of {', '.join(column.dtype.categories)}"
    return f"{column.dtype}{' in ' + column.unit if column.unit else ''}"
