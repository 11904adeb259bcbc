"""Converts a foreign data frame to a declared table, or raises an error that names the mismatch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from polars.exceptions import PolarsError

from stagescope.vocabulary.errors import TableError

if TYPE_CHECKING:
    from stagescope.model.tables import Column, Table


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


def in_order(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    """Return `frame` sorted as `table` declares; the sort is stable.

    Sorted input is returned unchanged: recordings usually are sorted, and sorting takes as long as reading them.
    """
    keys = [pl.col(name) for name in table.order]
    # Compares each row with the one before it, over all columns of the order, without a sort.
    later = pl.lit(value=False)
    for key in reversed(keys):
        before = key.shift(1)
        later = (before > key) | ((before == key) & later)
    if frame.null_count().select(table.order).sum_horizontal().item() or frame.select(later.any()).item():
        return frame.sort(table.order, maintain_order=True)
    return frame


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
