"""CSV and Parquet: the spans table, or another table of the model, without changes, for notebooks and spreadsheets.

Neither has a column for the accuracy of clocks. If machines have different clocks, a Parquet file lists them in its
metadata as JSON; a CSV file has no place for metadata.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import polars as pl
import polars.selectors as cs

from stagescope.exporters.writer import Writer, Written
from stagescope.model.clock_groups import clock_summary

if TYPE_CHECKING:
    from pathlib import Path

    from stagescope.model import Timeline


CLOCKS_KEY = "stagescope.clocks"
FORMULA_START = r"^[=+\-@\t\r\n\x{FF1D}\x{FF0B}\x{FF0D}\x{FF20}]"
"""What spreadsheets evaluate a cell for (OWASP, CSV Injection), with the full-width forms."""


def write_csv(
    timeline: Timeline, path: Path, table: str = "spans", *, without_formulas: bool = False
) -> Written:
    """Write one line per row after a header line, null as an empty field, and return what was written.

    With `without_formulas`, text that a spreadsheet would evaluate has an apostrophe before it.
    """
    rows = _spelled(timeline, table)
    if without_formulas:
        rows = rows.with_columns(cs.string().str.replace(FORMULA_START, "'${0}"))
    with path.open("wb") as file:
        rows.write_csv(file)
        return _written(path, rows, file.tell())


def write_parquet(timeline: Timeline, path: Path, table: str = "spans") -> Written:
    """Write a table, compressed with zstd, and return what was written."""
    rows = _spelled(timeline, table)
    clocks = clock_summary(timeline)
    metadata = {CLOCKS_KEY: json.dumps(clocks.to_dicts())} if clocks.height > 1 else None
    with path.open("wb") as file:
        rows.write_parquet(file, metadata=metadata)
        return _written(path, rows, file.tell())


def _csv(table: str, *, without_formulas: bool = False) -> Writer:
    return Writer(
        "csv",
        ".csv",
        "the spans table as text, one line per span",
        partial(write_csv, table=table, without_formulas=without_formulas),
        of_table=_csv,
        without_formulas=partial(_csv, table, without_formulas=True),
    )


def _parquet(table: str) -> Writer:
    write = partial(write_parquet, table=table)
    return Writer("parquet", ".parquet", "the spans table, typed and compressed", write, of_table=_parquet)


CSV, PARQUET = _csv("spans"), _parquet("spans")


def _spelled(timeline: Timeline, table: str) -> pl.DataFrame:
    """Return a table of the timeline with enumerations as plain strings, which every reader understands."""
    rows: pl.DataFrame = getattr(timeline, table)
    return rows.with_columns(pl.col(pl.Enum).cast(pl.String))


def _written(path: Path, rows: pl.DataFrame, size_bytes: int) -> Written:
    return Written(path, size_bytes, rows.height, flow_count=0, track_names=(), diagnostics=(), unit="row")
