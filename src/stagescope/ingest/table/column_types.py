"""Convert the types that columns of foreign tables have, where a plain cast would change the meaning of the values."""

from __future__ import annotations

from math import ceil, inf, log2
from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.errors import TableError

if TYPE_CHECKING:
    from stagescope.model.tables import Column, Table

NS_PER_UNIT = {"ns": 1, "us": 10**3, "ms": 10**6}
LARGEST_NS = 2**63 - 1
LARGEST_EXACT = 2**53
"""Up to this number, Float64 has every whole number."""


def with_plain_types(frame: pl.DataFrame, table: Table, where: str) -> pl.DataFrame:
    """Return the frame with columns that can be cast to the types of the table.

    Dates with a time become nanoseconds. Raises TableError for whole numbers with a fraction, for truth values and
    dates in the place of numbers, and for columns of lists, structures or other objects.
    """
    columns = [column for column in table.columns if column.name in frame.columns]
    return frame.with_columns(_plain(frame[column.name], column, table, where) for column in columns)


def rounded_times(frame: pl.DataFrame, table: Table, where: str) -> list[Diagnostic]:
    """Return a warning for each column of times in floating point with numbers that have lost their last digits."""
    found = []
    for column in table.columns:
        if column.unit != "ns" or column.name not in frame.columns or not frame[column.name].dtype.is_float():
            continue
        largest = float(frame[column.name].abs().fill_nan(0).max() or 0)  # type: ignore[arg-type] # a number
        exact = LARGEST_EXACT if frame[column.name].dtype == pl.Float64 else LARGEST_EXACT >> 29
        if exact < largest < inf:
            grid = int(2 ** ceil(log2(largest) - log2(exact)))
            text = (
                f"{column.name} is in floating point, where times of this size are multiples of {grid:,} ns"
            )
            found.append(Diagnostic("warning", text, where, count=frame.height, code="timestamps.rounded"))
    return found


def _plain(values: pl.Series, column: Column, table: Table, where: str) -> pl.Series:
    kind = values.dtype
    is_number = column.dtype in (pl.Int32, pl.Int64)
    if column.unit == "ns" and isinstance(kind, (pl.Datetime, pl.Duration)):
        factor = NS_PER_UNIT[kind.time_unit]
        counts = values.to_physical()
        beyond = counts.filter(~counts.is_between(-LARGEST_NS // factor, LARGEST_NS // factor))
        if beyond.is_empty():
            return counts * factor
        # Dates after the year 2262 exceed 64 bits in nanoseconds. Python has no date after the year 9999.
        since = " since 1970" if isinstance(kind, pl.Datetime) else ""
        number = f"{beyond[0]} {kind.time_unit}{since}"
        raise TableError.wrong_values(table.name, column.name, number, "Int64 in ns", where)
    if kind.is_nested() or kind == pl.Object or (is_number and (kind.is_temporal() or kind == pl.Boolean)):
        wrong: object = str(kind)
    elif is_number and kind.is_float() and column.unit != "ns":
        wrong = next(iter(values.filter(values.is_finite() & (values != values.floor()))), None)
    else:
        wrong = None
    if wrong is None:
        return values
    unit = f" in {column.unit}" if column.unit else ""
    raise TableError.wrong_values(table.name, column.name, wrong, f"{column.dtype}{unit}", where)
