"""Read one exported report: NVTX ranges, launches and kernels, as blocks of numeric columns.

Source: NVIDIA Nsight Systems User Guide, "SQLite Schema Reference" (docs.nvidia.com/nsight-systems), and the schema
that nsys 2025 writes into each export as comments. Times are nanoseconds since the session began, whose wall time is
TARGET_INFO_SESSION_START_TIME.utcEpochNs. The lowest 24 bits of a globalTid are the thread, the next 24 the process;
in a globalPid the thread bits are 0. A table exists only if something was collected for it, and columns were added over
the years: `textId` in 2019, `eventClass` and the `globalPid` of kernels in 2020.
"""

from __future__ import annotations

import sqlite3
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import numpy as np
import polars as pl

from stagescope.ingest.database import Database
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]

RANGES, LAUNCHES, KERNELS = "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL"
PUSHED, STARTED = 59, 60
"""eventType of push/pop ranges and of start/end ranges (ENUM_NSYS_EVENT_TYPE)."""

BLOCK_ROWS = 1 << 16
THREAD_BITS = 24
ABSENT = -1

RANGES_SCHEMA = {"name": pl.String, "thread": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}


class ReportFacts(NamedTuple):
    """The machine of a report: host, start of the session, and device names by number."""

    host: str | None
    epoch_ns: int | None
    devices: dict[int, str]


class Report(Database):
    """A report that is open for reading; raises InputError like Database, but also opens truncated files."""

    def _open(self) -> tuple[sqlite3.Connection, dict[str, frozenset[str]]]:
        try:
            return super()._open()
        except InputError:
            opened = _open_cut(self.path)
            if opened is None:
                raise
        self._note("sqlite_master", "describes a larger file: it is truncated")
        return opened

    def facts(self) -> ReportFacts:
        """Return the facts about the report's machine."""
        began = self._first("TARGET_INFO_SESSION_START_TIME", "utcEpochNs", "1")
        host = self._first("TARGET_INFO_SYSTEM_ENV", "value", "name = 'Hostname'")
        gpus = self._rows_of("TARGET_INFO_GPU", ("id", "name"))
        return ReportFacts(
            host if isinstance(host, str) and host else None,
            began if isinstance(began, int) and began > 0 else None,
            {number: name for number, name in gpus if isinstance(number, int) and isinstance(name, str)},
        )

    def ranges(self) -> tuple[pl.DataFrame, int]:
        """Return the NVTX ranges (RANGES_SCHEMA), and the number of ranges still open when the report ended."""
        if not self.has(RANGES):
            return pl.DataFrame(schema=RANGES_SCHEMA), 0
        names = dict(self._rows_of("StringIds", ("id", "value")))
        columns = ("text", "textId", "globalTid", "start", "end", "eventType")
        rows = [
            (text if isinstance(text, str) else names.get(number), *map(_whole, (thread, start, end)))
            for text, number, thread, start, end, kind in self._rows_of(RANGES, columns)
            if kind in (PUSHED, STARTED, None)
        ]
        whole = pl.DataFrame(rows, RANGES_SCHEMA, orient="row", strict=False)
        if lost := whole.height - whole.drop_nulls(["name", "start_ns"]).height:
            self._note(RANGES, f"has {lost} ranges without a name or a start, which were dropped")
        named = whole.drop_nulls(["name", "start_ns"]).with_columns(pl.col("thread").fill_null(ABSENT))
        return named.drop_nulls("end_ns").sort("start_ns"), named["end_ns"].null_count()

    def names_like(self, word: str) -> dict[int, str]:
        """Return the strings that contain a word, by id."""
        if not self.has("StringIds"):
            return {}
        query = "SELECT t.rowid, t.id, t.value FROM StringIds t WHERE t.value LIKE ?"
        return dict(self.rows("StringIds", query, (f"%{word}%",)))

    def blocks(self, table: str, names: Sequence[str]) -> Iterator[dict[str, Numbers]]:
        """Yield the columns of a table as integers (ABSENT for null), BLOCK_ROWS rows at a time.

        Reading stops at a damaged page, which is recorded as a fault.
        """
        if not self.has(table):
            return
        wanted = self.columns(table, "t", names).split(", ")
        query = ", ".join(f"ifnull(CAST({column} AS INTEGER), {ABSENT})" for column in wanted)
        cursor = None
        count = 0
        while True:
            try:
                cursor = cursor or self._connection.execute(f"SELECT {query} FROM {table} t")  # noqa: S608 - ours
                rows = cursor.fetchmany(BLOCK_ROWS)
            except sqlite3.DatabaseError as reason:
                self._note(table, f"cannot be read to its end ({reason}): {count} rows were read")
                return
            if not rows:
                return
            count += len(rows)
            flat = np.fromiter(chain.from_iterable(rows), np.int64, len(rows) * len(names))
            matrix = flat.reshape(-1, len(names)).T
            yield dict(zip(names, matrix, strict=True))

    def _rows_of(self, table: str, names: Sequence[str]) -> list[tuple[Any, ...]]:
        if not self.has(table):
            return []
        columns = self.columns(table, "t", names)
        return self.rows(table, f"SELECT t.rowid, {columns} FROM {table} t")  # noqa: S608 - names of ours

    def _first(self, table: str, name: str, condition: str) -> object:
        if not self.has(table):
            return None
        column = self.columns(table, "t", [name])
        found = self.rows(table, f"SELECT t.rowid, {column} FROM {table} t WHERE {condition}")  # noqa: S608
        return found[0][0] if found else None


def _whole(value: object) -> int | None:
    """Return an integer; None for anything else, because SQLite columns may hold values of any type."""
    return value if isinstance(value, int) else None


def _open_cut(path: Path) -> tuple[sqlite3.Connection, dict[str, frozenset[str]]] | None:
    """Return a connection to a file that is shorter than its header states, and its tables; None for any other fault.

    SQLite opens such a file only with `PRAGMA writable_schema`, which is meant for repairs (btree.c, lockBtree).
    """
    connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=0)
    connection.text_factory = lambda value: value.decode("utf-8", "replace")
    columns = "SELECT m.name, p.name FROM sqlite_master m, pragma_table_info(m.name) p WHERE m.type = 'table'"
    found: dict[str, set[str]] = {}
    try:
        connection.execute("PRAGMA writable_schema = ON")
        for table, column in connection.execute(columns):
            found.setdefault(table, set()).add(column)
    except sqlite3.DatabaseError:
        connection.close()
        return None
    return connection, {table: frozenset(names) for table, names in found.items()}


def is_report(path: Path) -> bool:
    """Return whether a database is an nsys export: it has the table of strings and some collected data."""
    with Report(path) as report:
        some = (RANGES, LAUNCHES, KERNELS, "TARGET_INFO_SESSION_START_TIME")
        return report.has("StringIds") and any(map(report.has, some))


def process_of(thread: Numbers) -> Numbers:
    """Return the process of each thread, or of each globalPid: without the bits of the thread.

    >>> process_of(np.array([(7 << 24) + 3, 7 << 24])).tolist()
    [7, 7]
    """
    return thread >> THREAD_BITS
