"""Mutators of span tables: Parquet by its columns, CSV by its cells."""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING

import polars as pl

from fuzz.mutations import NUMBERS, Mutator, of_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

ODD_CELLS = (
    *NUMBERS,
    b"text",
    b"\xff",
    b'"',
    b'"a,b"',
    b"=1+1",
    b"\0",
    b"forward ",
    b"F",
    b"nan",
    b"x" * 70_000,
)


def odd_cell(data: bytes, chance: Random) -> bytes:
    """Replace a cell."""
    lines = data.split(b"\n")
    place = chance.randrange(len(lines))
    cells = lines[place].split(b",")
    cells[chance.randrange(len(cells))] = chance.choice(ODD_CELLS)
    lines[place] = b",".join(cells)
    return b"\n".join(lines)


def ragged_row(data: bytes, chance: Random) -> bytes:
    """Add a cell to a row, or delete one."""
    lines = data.split(b"\n")
    place = chance.randrange(len(lines))
    cells = lines[place].split(b",")
    where = chance.randrange(len(cells))
    cells = [*cells[:where], *([b"7", cells[where]] if chance.random() < 0.5 else []), *cells[where + 1 :]]
    lines[place] = b",".join(cells)
    return b"\n".join(lines)


def without_column(data: bytes, chance: Random) -> bytes:
    """Delete a column."""
    rows = [line.split(b",") for line in data.split(b"\n")]
    where = chance.randrange(len(rows[0]))
    return b"\n".join(b",".join([*row[:where], *row[where + 1 :]]) for row in rows)


CSV = tuple(map(of_bytes, (odd_cell, odd_cell, odd_cell, ragged_row, without_column)))


def _of_table(
    change: Callable[[pl.DataFrame, Random], pl.DataFrame], *, is_revealed: bool = False
) -> Mutator:
    def apply(path: Path, chance: Random) -> None:
        try:
            changed = change(pl.read_parquet(path), chance)
        except Exception:  # noqa: BLE001 - another mutation has made it unreadable, or the types do not fit
            return
        changed.write_parquet(path, compression=chance.choice(["zstd", "uncompressed", "gzip", "snappy"]))

    return Mutator(change.__name__, apply, is_revealed)


TYPES: tuple[Callable[[pl.Expr], pl.Expr], ...] = (
    lambda column: column.cast(pl.String),
    lambda column: column.cast(pl.Float32),
    lambda column: column.cast(pl.Float64) * 1e300,
    lambda column: column.cast(pl.Float64) + float("nan"),
    lambda column: column.cast(pl.UInt64),
    lambda column: column.is_null(),
    pl.concat_list,
    pl.struct,
    lambda column: pl.lit(None),
    lambda column: pl.lit(date(2026, 11, 1)),
    lambda column: pl.lit(timedelta(seconds=3)),
    lambda column: column.cast(pl.String).cast(pl.Binary),
    lambda column: column.cast(pl.String).cast(pl.Categorical),
    lambda column: pl.lit(2**63, pl.UInt64),
    lambda column: pl.lit(-(2**63), pl.Int64),
    lambda column: -column,
)


def other_type(table: pl.DataFrame, chance: Random) -> pl.DataFrame:
    """Change the type of a column."""
    name = chance.choice(table.columns)
    return table.with_columns(chance.choice(TYPES)(pl.col(name)).alias(name))


def other_value(table: pl.DataFrame, chance: Random) -> pl.DataFrame:
    """Change one value of a column of numbers."""
    name = chance.choice([name for name, kind in table.schema.items() if kind.is_integer()])
    values = table[name].to_list()
    values[chance.randrange(len(values))] = chance.choice(
        [None, -1, 0, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)]
    )
    return table.with_columns(pl.Series(name, values, pl.Int64))


def drop_column(table: pl.DataFrame, chance: Random) -> pl.DataFrame:
    """Drop a column."""
    return table.drop(chance.choice(table.columns))


def rename_column(table: pl.DataFrame, chance: Random) -> pl.DataFrame:
    """Rename a column."""
    return table.rename({chance.choice(table.columns): chance.choice(["", "other", "RANK"])})


def repeat_rows(table: pl.DataFrame, chance: Random) -> pl.DataFrame:
    """Repeat some rows."""
    return pl.concat([table, table.sample(chance.randrange(1, table.height + 1), seed=chance.randrange(99))])


def no_rows(table: pl.DataFrame, chance: Random) -> pl.DataFrame:  # noqa: ARG001 - the signature of all mutators
    """Delete all rows."""
    return table.clear()


PARQUET = (
    *(_of_table(change) for change in (other_type, other_type, other_type, other_value, other_value)),
    *(_of_table(change) for change in (drop_column, rename_column, no_rows)),
    _of_table(repeat_rows, is_revealed=True),
)
