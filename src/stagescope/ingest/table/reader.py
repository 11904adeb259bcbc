"""Readers of a spans table from any source: CSV or Parquet with the columns of model/tables.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import polars as pl
from polars.exceptions import PanicException, PolarsError

from stagescope.ingest.memory_need import LEAST_ROW_BYTES
from stagescope.ingest.reader import Reader, ReadOptions
from stagescope.ingest.streams import open_stream
from stagescope.ingest.table.column_types import rounded_times, with_plain_types
from stagescope.ingest.table.csv_text import usable_lines
from stagescope.ingest.usable_files import read_usable
from stagescope.model import RANKS, SPANS, Timeline, empty_timeline
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.implied import implied_ranks, implied_steps, with_assumed_step
from stagescope.model.validate import conform
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.limits import require

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PARQUET_MAGIC = b"PAR1"
SECOND = "_duplicated_0"
"""What Polars appends to the name of a column that the header has a second time."""
HEADER_BEGINS = re.compile(rb'("?)[A-Za-z_]\w*\1\r?(,|\n|$)')
Load = Callable[["Path"], tuple[pl.DataFrame, list[Diagnostic]]]
REQUIRED = tuple(column.name for column in SPANS.columns if not column.nullable)


class Loaded(NamedTuple):
    """The tables that one file contains, and what was wrong with it."""

    path: Path
    spans: pl.DataFrame
    ranks: pl.DataFrame
    diagnostics: list[Diagnostic]


def read_csv(files: Sequence[Path], options: ReadOptions | None = None) -> Timeline:
    """Return the Timeline of CSV files with spans; see `read_tables`.

    Every value is read as text and cast to the declared type of its column, so no types are guessed.
    """
    return read_tables(files, _load_csv, options)


def read_parquet(files: Sequence[Path], options: ReadOptions | None = None) -> Timeline:
    """Return the Timeline of Parquet files with spans; see `read_tables`."""
    return read_tables(files, _load_parquet, options)


def read_tables(files: Sequence[Path], load: Load, options: ReadOptions | None = None) -> Timeline:
    """Return one Timeline of all files: their spans, and the ranks and steps that the spans imply.

    Nullable columns may be missing, and undeclared columns are ignored, except the coordinates of the rank in each row
    (pp, dp, tp, cp, ep). A table without any step is taken as step 0. Rows without a required value are omitted and
    counted, and equal rows are used once. A file that is unreadable, not a spans table, or empty, or in which a rank
    has two values of a coordinate, becomes an error in diagnostics as long as another file is usable; otherwise
    TableError or InputError is raised for the first. Raises InputError if two files contain the same rank.
    """
    options = options or ReadOptions()

    def keep(table: Loaded) -> Loaded:
        options.count(table.spans.height, span_bytes=LEAST_ROW_BYTES)
        return table

    tables, refused = read_usable(_table_of, files, options.done, load, keep=keep)
    diagnostics = [row for table in tables for row in table.diagnostics]
    return _timeline(tables).with_diagnostics([*refused, *diagnostics])


def _table_of(path: Path, load: Load) -> Loaded:
    """Return the spans and ranks of one file."""
    frame, diagnostics = _load(path, load)
    known = [name for name in REQUIRED if name in frame.columns]
    # Only the existing ones of the required columns: conform reports missing columns.
    whole = frame.drop_nulls(known)
    if lost := frame.height - whole.height:
        message = f"rows without a value in {', '.join(known)}; they were omitted"
        diagnostics.append(Diagnostic("error", message, str(path), count=lost, code="rows.incomplete"))
    diagnostics += rounded_times(whole, SPANS, str(path))
    plain = with_plain_types(with_plain_types(whole, SPANS, str(path)), RANKS, str(path))
    every = conform(plain, SPANS, where=str(path))
    spans = _once(every)
    if repeated := every.height - spans.height:
        message = "rows are in the table more than once and were used once"
        diagnostics.append(Diagnostic("error", message, str(path), count=repeated, code="rows.repeated"))
    if spans.is_empty():
        raise InputError.damaged(path, "the spans table has no usable row")
    spans, assumed = with_assumed_step(spans, str(path))
    ranks = implied_ranks(plain, str(path)).with_columns(source=pl.lit(str(path)))
    return Loaded(path, spans, ranks, [*diagnostics, *assumed])


def _once(spans: pl.DataFrame) -> pl.DataFrame:
    """Return spans without rows that are equal to another one; they are sorted, so equal rows are not far apart."""
    at_once = pl.all_horizontal(pl.col(name) == pl.col(name).shift(1) for name in SPANS.order)
    return spans.unique(maintain_order=True) if spans.select(at_once.any()).item() else spans


def _load(path: Path, load: Load) -> tuple[pl.DataFrame, list[Diagnostic]]:
    try:
        return load(path)
    except OSError as reason:
        raise InputError.cannot_read(path, reason) from None
    except (PolarsError, PanicException) as error:
        what = next(iter(str(error).splitlines()), "unknown")
        raise InputError.damaged(path, f"not a readable table: {what}") from None


def _load_csv(path: Path) -> tuple[pl.DataFrame, list[Diagnostic]]:
    with open_stream(path) as stream:
        lines, diagnostics = usable_lines(stream.read(), path)
        if stream.damage:
            diagnostics.append(Diagnostic("error", stream.damage, str(path), code="file.damaged"))
        frame = pl.read_csv(lines, infer_schema=False)
        if twice := [name for name in SPANS.names if f"{name}{SECOND}" in frame.columns]:
            raise InputError.damaged(path, f"the header has the column {twice[0]} more than once")
        return _without_empty_rows(frame), diagnostics


def _without_empty_rows(texts: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of a CSV file without blank lines and lines of separators, which no data are missing from."""
    is_empty = [pl.col(name).str.strip_chars().fill_null("") == "" for name in texts.columns]
    # Almost always the first column is full, which is known without looking at the others.
    return texts.filter(~pl.all_horizontal(is_empty)) if texts.select(is_empty[0].any()).item() else texts


def _load_parquet(path: Path) -> tuple[pl.DataFrame, list[Diagnostic]]:
    rows = pl.scan_parquet(path, hive_partitioning=False).select(pl.len()).collect().item()
    require("spans", rows, path)  # equal values take no space in the file, but memory when it is read
    return pl.read_parquet(path, hive_partitioning=False), []


def _timeline(tables: Sequence[Loaded]) -> Timeline:
    """Return the Timeline of the tables of all files, with the steps that their spans imply."""
    sources: dict[int, str] = {}
    for table in tables:
        for rank in table.ranks["rank"]:
            if rank in sources:
                raise InputError.duplicate_rank(rank, (sources[rank], str(table.path)))
            sources[rank] = str(table.path)
    every = pl.concat(table.spans for table in tables)
    bare = empty_timeline()
    return Timeline(
        spans=every.sort(SPANS.order, maintain_order=True),
        ranks=conform(pl.concat(table.ranks for table in tables), RANKS),
        steps=implied_steps(every),
        clocks=bare.clocks,
        diagnostics=bare.diagnostics,
    )


def _is_csv(path: Path, head: bytes) -> bool:
    """Return whether a file begins with column names: any for a file named .csv, otherwise one of the spans table."""
    if not HEADER_BEGINS.match(head) or b"\0" in head.partition(b"\n")[0]:
        return False
    names = re.split(rb'[,"\r\n\xbb\xbf]+', head)
    return ".csv" in path.name.lower() or any(name.encode() in names for name in SPANS.names)


PARQUET = Reader(
    name="parquet",
    patterns=("*.parquet",),
    description="a spans table as Parquet",
    recognizes=lambda _, head: head.startswith(PARQUET_MAGIC),
    read=read_parquet,
)
CSV = Reader(
    name="csv",
    patterns=("*.csv", "*.csv.gz", "*.csv.zst"),
    description="a spans table as CSV with a header line",
    recognizes=_is_csv,
    read=read_csv,
)
