"""Read one report that was exported to a directory of Parquet files, one per table (`nsys export --type parquetdir`).

Columns of another type are converted, and values that cannot be are null, with a fault, as in SQLite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
from polars.exceptions import PanicException, PolarsError

from stagescope.ingest.database import Fault
from stagescope.ingest.database_blocks import BLOCK_ROWS, plausible_rows
from stagescope.ingest.device_ranges.kernels import NO_KERNELS
from stagescope.ingest.device_ranges.trace import ABSENT
from stagescope.ingest.nsight.schema import (
    KERNELS,
    LAUNCHES,
    RANGES,
    SESSION,
    STRING_COLUMNS,
    STRINGS,
    STRINGS_SCHEMA,
    WORDING,
    read_facts,
    read_kernels,
    read_launches,
    read_ranges,
)
from stagescope.ingest.plausible_times import MAX_NS
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.limits import require

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from stagescope.ingest.device_ranges.trace import TraceFacts
    from stagescope.model.diagnostics import Diagnostic

    Numbers = npt.NDArray[np.int64]

SUFFIX = ".parquet"
SIGNS = (RANGES, KERNELS, LAUNCHES, SESSION)
"""Tables of which an export has at least one."""

BYTES_PER_VALUE = 16
"""At most what a value of the columns of numbers takes while they are converted."""

UNREADABLE = (PolarsError, PanicException, OSError, ValueError)


class ParquetReport:
    """A directory of Parquet files as a DeviceTrace."""

    wording = WORDING

    def __init__(self, path: Path) -> None:
        """Take the directory; files are opened when they are needed."""
        self.path = path
        self.faults: list[Fault] = []

    @property
    def tables(self) -> frozenset[str]:
        """The names of all tables."""
        return frozenset(file.stem for file in self.path.glob(f"*{SUFFIX}") if file.is_file())

    def facts(self) -> TraceFacts:
        """Return the facts about the report's machine."""
        return read_facts(self)

    def ranges(self) -> tuple[pl.DataFrame, int]:
        """Return the NVTX ranges (RANGES_SCHEMA), and the number of ranges still open when the report ended."""
        return read_ranges(self)

    def launches(self) -> Iterator[dict[str, Numbers]]:
        """Yield the launches in blocks."""
        return read_launches(self)

    def kernels(self) -> Iterator[dict[str, Numbers]]:
        """Yield the kernels in blocks."""
        return read_kernels(self)

    def communication_kernels(self) -> dict[int, str]:
        """Return the strings that may be names of NCCL kernels, by id."""
        return self.names_like("ccl")

    def kernel_names(self) -> dict[int, str]:
        """Return all strings of the report by id, which include the names of its kernels."""
        return self.names_like("")

    def other_kernels(self) -> pl.DataFrame:
        """Return no kernels: all are in the table of kernels."""
        return NO_KERNELS

    def names_like(self, word: str) -> dict[int, str]:
        """Return the strings that contain a word, by id."""
        strings = self.frame(STRINGS, STRING_COLUMNS, STRINGS_SCHEMA).drop_nulls()
        found = strings.filter(pl.col("text").str.to_lowercase().str.contains(word, literal=True))
        return dict(found.iter_rows())

    def frame(self, table: str, columns: Sequence[str], schema: Mapping[str, Any]) -> pl.DataFrame:
        """Return columns of a table with the names and types of `schema`; empty if there is no such table."""
        if table not in self.tables:
            if table in (RANGES, STRINGS):
                self.note(table, "is missing")
            return pl.DataFrame(schema=dict(schema))
        found = self._columns(table, columns)
        names = dict(zip(columns, schema, strict=True))
        typed = [
            self._typed(table, found[column], schema[name]).alias(name) for column, name in names.items()
        ]
        return pl.DataFrame(typed, dict(schema))

    def blocks(self, table: str, names: Sequence[str]) -> Iterator[dict[str, Numbers]]:
        """Yield the columns of a table as integers (ABSENT for null), BLOCK_ROWS rows at a time."""
        if table not in self.tables:
            return
        every = self._columns(table, names)
        for start in range(0, every.height, BLOCK_ROWS):
            part = every.slice(start, BLOCK_ROWS)
            block = {
                name: self._typed(table, part[name], pl.Int64)
                .fill_null(MAX_NS if name in ("start", "end") else ABSENT)
                .to_numpy()
                for name in names
            }
            plausible = plausible_rows(block)
            if len(plausible[names[0]]) < part.height:
                self.note(table, "has rows without a possible start and end, which were dropped")
            yield plausible

    def note(self, table: str, text: str) -> None:
        """Add a fault, once."""
        fault = Fault(table, text)
        if fault not in self.faults:
            self.faults.append(fault)

    def fault_sentences(self) -> list[str]:
        """Return what is wrong with tables of the report."""
        return [fault.sentence for fault in self.faults]

    def diagnostics(self) -> list[Diagnostic]:
        """Return one diagnostic per fault."""
        return [fault.diagnostic(str(self.path)) for fault in self.faults]

    def _columns(self, table: str, names: Sequence[str]) -> pl.DataFrame:
        """Return columns of a table as they are, null where the table lacks them."""
        path = self.path / f"{table}{SUFFIX}"
        try:
            rows = pl.scan_parquet(path).select(pl.len()).collect().item()
            require("unpacked", rows * BYTES_PER_VALUE * len(names), path)
            schema = pl.read_parquet_schema(path)
            present = [name for name in names if name in schema]
            found = pl.read_parquet(path, columns=present) if present else pl.DataFrame({"": [None] * rows})
        except UNREADABLE as reason:
            text = " ".join(str(reason).split()) or type(reason).__name__
            self.note(table, f"cannot be read ({text[:200]})")
            return pl.DataFrame(schema=dict.fromkeys(names, pl.Null))
        if missing := [name for name in names if name not in schema]:
            self.note(table, f"has no column {', '.join(missing)}")
        return found.select(pl.col(name) if name in schema else pl.lit(None).alias(name) for name in names)

    def _typed(self, table: str, column: pl.Series, kind: Any) -> pl.Series:
        """Return a column of `kind`: strings, or integers; values of another type are null."""
        is_text = column.dtype in (pl.String, pl.Categorical)
        if column.dtype == pl.Null or (is_text if kind == pl.String else column.dtype.is_numeric()):
            found: pl.Series = column.cast(kind, strict=False)
        else:
            found = pl.Series(column.name, [None] * len(column), kind)
        if found.null_count() > column.null_count():
            self.note(table, f"has values that do not fit, which were ignored ({column.name})")
        return found


def is_parquet_report(directory: Path) -> bool:
    """Return whether a directory is an nsys export: it has a Parquet file of collected data, with a start."""
    for sign in SIGNS:
        path = directory / f"{sign}{SUFFIX}"
        if not path.is_file():
            continue
        try:
            if {"start", "utcEpochNs"} & set(pl.read_parquet_schema(path)):
                return True
        except UNREADABLE:
            continue
    return False


def is_table_of_report(path: Path) -> bool:
    """Return whether a Parquet file is a table of an nsys export, and not a table of spans beside one."""
    if path.stem in SIGNS:
        return True
    if not is_parquet_report(path.parent):
        return False
    try:
        return "start_ns" not in pl.read_parquet_schema(path)
    except UNREADABLE:
        return True


def require_tables(directory: Path) -> None:
    """Raise InputError for a directory in which no table of collected data can be read."""
    if not is_parquet_report(directory):
        raise InputError.damaged(directory, f"none of the tables {', '.join(SIGNS)} can be read")
