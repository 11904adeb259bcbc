"""Read one exported report: NVTX ranges, launches and kernels, as blocks of numeric columns.

Source: NVIDIA Nsight Systems User Guide, "SQLite Schema Reference" (docs.nvidia.com/nsight-systems), and the schema
that nsys 2025 writes into each export as comments. Times are nanoseconds since the session began, whose wall time is
TARGET_INFO_SESSION_START_TIME.utcEpochNs. The lowest 24 bits of a globalTid are the thread, the next 24 the process;
in a globalPid the thread bits are 0. A table exists only if something was collected for it, and columns were added over
the years: `textId` in 2019, `eventClass` and the `globalPid` of kernels in 2020.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.ingest.database import Database
from stagescope.ingest.plausible_times import MAX_NS
from stagescope.ingest.sqlite_access import FAILURES, failure_text
from stagescope.ingest.typed_rows import integer_block
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

SESSION, ENVIRONMENT, GPUS = "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV", "TARGET_INFO_GPU"
STRINGS, STRING_COLUMNS = "StringIds", ("id", "value")
STRINGS_SCHEMA = {"number": pl.Int64, "text": pl.String}
TIMES = ("start", "end")
EVENTS = {
    "text": "text", "textId": "number", "globalTid": "thread", "start": "start_ns", "end": "end_ns",
    "eventType": "type",
}  # fmt: skip
EVENT_TYPES = (pl.String, pl.Int64, pl.Int64, pl.Int64, pl.Int64, pl.Int64)
RANGES_SCHEMA = {"name": pl.String, "thread": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}


class ReportFacts(NamedTuple):
    """The machine of a report: host, start of the session, and device names by number."""

    host: str | None
    epoch_ns: int | None
    devices: dict[int, str]


class Report(Database):
    """A report that is open for reading; raises InputError like Database."""

    def facts(self) -> ReportFacts:
        """Return the facts about the report's machine."""
        began = self.frame(SESSION, ("utcEpochNs",), {"began_ns": pl.Int64})["began_ns"].drop_nulls()
        environment = self.frame(ENVIRONMENT, ("name", "value"), {"name": pl.String, "value": pl.String})
        hosts = environment.filter(pl.col("name") == "Hostname")["value"].drop_nulls()
        gpus = self.frame(GPUS, ("id", "name"), {"id": pl.Int64, "name": pl.String}).drop_nulls()
        return ReportFacts(
            hosts[0] or None if len(hosts) else None,
            began[0] if len(began) and began[0] > 0 else None,
            dict(gpus.iter_rows()),
        )

    def ranges(self) -> tuple[pl.DataFrame, int]:
        """Return the NVTX ranges (RANGES_SCHEMA), and the number of ranges still open when the report ended."""
        every = self.frame(RANGES, list(EVENTS), dict(zip(EVENTS.values(), EVENT_TYPES, strict=True)))
        events = every.filter(pl.col("type").is_in([PUSHED, STARTED]) | pl.col("type").is_null())
        numbered = events.filter(pl.col("text").is_null())["number"].drop_nulls().unique()
        names = self._strings().filter(pl.col("number").is_in(numbered.implode())) if len(numbered) else None
        named = events.with_columns(name="text") if names is None else _with_names(events, names)
        known = named.drop_nulls(["name", "start_ns"])
        if lost := named.height - known.height:
            self.note(RANGES, f"has {lost} ranges without a name or a start, which were dropped")
        known = known.with_columns(pl.col("thread").fill_null(ABSENT)).select(list(RANGES_SCHEMA))
        return known.drop_nulls("end_ns").sort("start_ns"), known["end_ns"].null_count()

    def names_like(self, word: str) -> dict[int, str]:
        """Return the strings that contain a word, by id."""
        query = f"SELECT t.rowid, {self.columns(STRINGS, 't', STRING_COLUMNS)} FROM {STRINGS} t WHERE t.value LIKE ?"  # noqa: S608 - ours
        found = self.typed(STRINGS, self.rows(STRINGS, query, (f"%{word}%",)), STRINGS_SCHEMA)
        return dict(found.drop_nulls().iter_rows())

    def blocks(self, table: str, names: Sequence[str]) -> Iterator[dict[str, Numbers]]:
        """Yield the columns of a table as integers (ABSENT for null), BLOCK_ROWS rows at a time.

        Reading stops at a damaged page, which is recorded as a fault. So are values that are no integers, which are
        ABSENT, and rows with an impossible `start` or `end`, which are dropped.
        """
        if not self.has(table):
            return
        wanted = self.columns(table, "t", names).split(", ")
        absent = {name: MAX_NS if name in TIMES else ABSENT for name in names}
        columns = ", ".join(
            f"ifnull({column}, {absent[name]})" for column, name in zip(wanted, names, strict=True)
        )
        # Without an index, rows come in the order of their ids: a page that is read twice shows.
        query = f"SELECT t.rowid, {columns} FROM {table} t NOT INDEXED"  # noqa: S608 - names of ours
        last, count = ABSENT, 0
        try:
            cursor = self.execute(query)
            while rows := cursor.fetchmany(BLOCK_ROWS):
                count += len(rows)
                block, misfits = integer_block(rows, {"rowid": ABSENT, **absent})
                if misfits:
                    self.note(table, f"has values that do not fit, which were ignored ({', '.join(misfits)})")
                if block["rowid"][0] <= last or (np.diff(block["rowid"]) <= 0).any():
                    self.note(table, "has rows several times")
                last = block.pop("rowid")[-1]
                yield self._plausible(table, block)
        except FAILURES as reason:
            self.check_time(table)
            self.note(table, f"cannot be read to its end ({failure_text(reason)}): {count} rows were read")

    def _plausible(self, table: str, block: dict[str, Numbers]) -> dict[str, Numbers]:
        """Return a block without rows with an impossible start or end."""
        start = block.get("start")
        if start is None:
            return block
        end = block.get("end", start)
        is_right = (start > -MAX_NS) & (start <= end) & (end < MAX_NS)
        if is_right.all():
            return block
        self.note(table, "has rows without a possible start and end, which were dropped")
        return {name: values[is_right] for name, values in block.items()}

    def _strings(self) -> pl.DataFrame:
        """Return the strings by number."""
        if STRINGS not in self.tables:
            self.note(STRINGS, "is missing")
        found = self.frame(STRINGS, STRING_COLUMNS, STRINGS_SCHEMA)
        return found.drop_nulls().unique("number", keep="first", maintain_order=True)


def _with_names(events: pl.DataFrame, names: pl.DataFrame) -> pl.DataFrame:
    """Return events with the column `name`: their text, or the string that they refer to."""
    found = names.rename({"text": "string"})
    joined = events.join(found, on="number", how="left", maintain_order="left")
    return joined.with_columns(name=pl.coalesce("text", "string"))


def is_report(path: Path) -> bool:
    """Return whether a file is an nsys export: it has a table of collected data.

    Raises InputError if that cannot be known, because the file or its schema is damaged.
    """
    with Report(path) as report:
        if any(name in report.tables for name in (RANGES, LAUNCHES, KERNELS, SESSION)):
            return True
        if report.faults:
            raise InputError.damaged(path, report.faults[0].text)
        return False


def process_of(thread: Numbers) -> Numbers:
    """Return the process of each thread, or of each globalPid: without the bits of the thread.

    >>> process_of(np.array([(7 << 24) + 3, 7 << 24])).tolist()
    [7, 7]
    """
    return thread >> THREAD_BITS
