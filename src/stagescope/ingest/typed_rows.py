"""Turn rows of SQLite into tables with declared types: any column of SQLite may hold values of any type."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from stagescope.ingest.plausible_times import MAX_NS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

BITS = {pl.Int8: 8, pl.Int32: 32, pl.Int64: 64}


class TypedRows(NamedTuple):
    """A table, the number of values that do not fit their column and are null in it, and the names of these columns."""

    frame: pl.DataFrame
    misfits: int
    columns: tuple[str, ...]


def typed_rows(rows: Sequence[tuple[object, ...]], schema: Mapping[str, Any]) -> TypedRows:
    """Return rows as a table with the types of `schema`, with null in place of values that do not fit.

    Text does not fit a column of numbers, a number not one of text, and a number not one that is too small for it. The
    columns `*_ns` are times: no number of MAX_NS or more fits them.
    """
    try:
        frame = pl.DataFrame(rows, schema=dict(schema), orient="row", strict=True)
    except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError):
        return _converted(rows, schema)
    # Polars accepts a number as text.
    texts = [place for place, kind in enumerate(schema.values()) if kind == pl.String]
    if any(not isinstance(row[place], str | None) for row in rows for place in texts):
        return _converted(rows, schema)
    times = frame.select(name for name in schema if name.endswith("_ns"))
    fit = (column.is_between(-MAX_NS, MAX_NS - 1).all() for column in times)
    return TypedRows(frame, 0, ()) if all(fit) else _converted(rows, schema)


def _converted(rows: Sequence[tuple[object, ...]], schema: Mapping[str, Any]) -> TypedRows:
    columns = {}
    misfits: dict[str, int] = {}
    for place, (name, kind) in enumerate(schema.items()):
        largest = MAX_NS if name.endswith("_ns") else 2 ** (BITS.get(kind, 64) - 1)
        values = [_fitting(row[place], kind, largest) for row in rows]
        wrong = sum(value is None and row[place] is not None for value, row in zip(values, rows, strict=True))
        if wrong:
            misfits[name] = wrong
        columns[name] = pl.Series(name, values, kind)
    return TypedRows(pl.DataFrame(columns), sum(misfits.values()), tuple(misfits))


def _fitting(value: object, kind: Any, largest: int) -> object:
    if kind == pl.String:
        return value if isinstance(value, str) else None
    if isinstance(value, float) and value == value and abs(value) < largest:  # noqa: PLR0124 - not NaN
        return int(value)
    return value if isinstance(value, int) and -largest <= value < largest else None


def integer_block(
    rows: Sequence[tuple[Any, ...]], absent: Mapping[str, int]
) -> tuple[dict[str, npt.NDArray[np.int64]], tuple[str, ...]]:
    """Return columns of integers, and the names of those with other values.

    `absent` has the names of the columns, and what is in the place of null and of other values.
    """
    try:
        flat = np.fromiter(chain.from_iterable(rows), np.int64, len(rows) * len(absent))
        return dict(zip(absent, flat.reshape(-1, len(absent)).T, strict=True)), ()
    except (TypeError, ValueError, OverflowError):  # None, or a value of another type
        values = typed_rows(rows, dict.fromkeys(absent, pl.Int64))
    filled = values.frame.with_columns(pl.col(name).fill_null(value) for name, value in absent.items())
    return {name: filled[name].to_numpy() for name in absent}, values.columns
