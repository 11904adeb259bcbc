"""The tables of an export of Nsight Systems, equal in SQLite and Parquet.

Source: NVIDIA Nsight Systems User Guide, "SQLite Schema Reference" (docs.nvidia.com/nsight-systems), and the schema
that nsys 2025 writes into each export as comments; `parquetdir` has one file per table with the same columns. Times are
nanoseconds since the session began, whose wall time is TARGET_INFO_SESSION_START_TIME.utcEpochNs. The lowest 24 bits of
a globalTid are the thread, the next 24 the process; in a globalPid the thread bits are 0. A table exists only if
something was collected for it, and columns were added over the years: `textId` in 2019, `eventClass` and the
`globalPid` of kernels in 2020.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import polars as pl

from stagescope.ingest.device_ranges.trace import ABSENT, RANGES_SCHEMA, TraceFacts, Wording, process_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]

RANGES, LAUNCHES, KERNELS = "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL"
SESSION, ENVIRONMENT, GPUS = "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV", "TARGET_INFO_GPU"
COMPARED_TABLES = (LAUNCHES, KERNELS, SESSION, ENVIRONMENT, GPUS)
PUSHED, STARTED = 59, 60
"""eventType of push/pop ranges and of start/end ranges (ENUM_NSYS_EVENT_TYPE)."""

STRINGS, STRING_COLUMNS = "StringIds", ("id", "value")
STRINGS_SCHEMA = {"number": pl.Int64, "text": pl.String}
EVENTS = {
    "text": "text", "textId": "number", "globalTid": "thread", "start": "start_ns", "end": "end_ns",
    "eventType": "type",
}  # fmt: skip
EVENT_TYPES = (pl.String, pl.Int64, pl.Int64, pl.Int64, pl.Int64, pl.Int64)
LAUNCH_NAMES = {"thread": "globalTid", "correlation": "correlationId", "start_ns": "start"}
KERNEL_NAMES = {
    "process": "globalPid", "correlation": "correlationId", "stream": "streamId", "device": "deviceId",
    "name": "shortName", "start_ns": "start", "end_ns": "end",
}  # fmt: skip
WORDING = Wording(
    ranges="NVTX ranges",
    file="report",
    no_ranges="put \"with torch.cuda.nvtx.range(f'F{stage}.{microbatch}'):\" around each forward (B around each "
    "backward) and record with nsys profile -t cuda,nvtx; or describe action names with --pattern; or start "
    "the training with: nsys profile -t cuda,nvtx stagescope run --also nvtx -- torchrun ... train.py",
    no_kernels="record with: nsys profile -t cuda,nvtx",
    example="rank0.sqlite, rank1.sqlite",
    clock_method="wall time at which nsys began the session",
)

LATEST_NS = 4_102_444_800_000_000_000
"""The year 2100: a later beginning is invalid, and sums with it may not fit."""


class Tables(Protocol):
    """The tables of one export: what a database and a directory of Parquet files have in common."""

    @property
    def tables(self) -> frozenset[str]:
        """The names of all tables."""

    def frame(self, table: str, columns: Sequence[str], schema: Mapping[str, Any]) -> pl.DataFrame:
        """Return columns of a table with the names and types of `schema`; empty if there is no such table."""

    def blocks(self, table: str, names: Sequence[str]) -> Iterator[dict[str, Numbers]]:
        """Yield columns of a table as integers, ABSENT for null."""

    def names_like(self, word: str) -> dict[int, str]:
        """Return the strings that contain a word, by id."""

    def note(self, table: str, text: str) -> None:
        """Add a fault of a table, once."""


def read_facts(export: Tables) -> TraceFacts:
    """Return the facts about the machine of an export."""
    began = export.frame(SESSION, ("utcEpochNs",), {"began_ns": pl.Int64})["began_ns"].drop_nulls()
    environment = export.frame(ENVIRONMENT, ("name", "value"), {"name": pl.String, "value": pl.String})
    hosts = environment.filter(pl.col("name") == "Hostname")["value"].drop_nulls()
    gpus = export.frame(GPUS, ("id", "name"), {"id": pl.Int64, "name": pl.String}).drop_nulls()
    return TraceFacts(
        hosts[0] or None if len(hosts) else None,
        _epoch_of(export, began),
        dict(gpus.iter_rows()),
    )


def _epoch_of(export: Tables, began: pl.Series) -> int | None:
    """Return the wall time at which the session began, None if it is not recorded or impossible."""
    if not len(began):
        return None
    if not 0 < began[0] <= LATEST_NS:
        export.note(SESSION, f"has the impossible epoch {began[0]} ns, which was ignored")
        return None
    return int(began[0])


def read_ranges(export: Tables) -> tuple[pl.DataFrame, int]:
    """Return the NVTX ranges (RANGES_SCHEMA), and the number of ranges still open when the export ended."""
    every = export.frame(RANGES, list(EVENTS), dict(zip(EVENTS.values(), EVENT_TYPES, strict=True)))
    is_range = pl.col("type").is_in([PUSHED, STARTED]) | pl.col("type").is_null()
    events, others = every.filter(is_range), every.filter(~is_range, pl.col("end_ns").is_not_null())
    if len(others):
        number = others["type"][0]
        export.note(RANGES, f"has {len(others)} ranges of an unknown type, which were left out: {number}")
    numbered = events.filter(pl.col("text").is_null())["number"].drop_nulls().unique()
    names = _strings(export).filter(pl.col("number").is_in(numbered.implode())) if len(numbered) else None
    named = events.with_columns(name="text") if names is None else _with_names(events, names)
    known = named.drop_nulls(["name", "start_ns"])
    if lost := named.height - known.height:
        export.note(RANGES, f"has {lost} ranges without a name or a start, which were dropped")
    known = known.with_columns(pl.col("thread").fill_null(ABSENT)).select(list(RANGES_SCHEMA))
    return known.drop_nulls("end_ns").sort("start_ns"), known["end_ns"].null_count()


def read_launches(export: Tables) -> Iterator[dict[str, Numbers]]:
    """Yield the calls of the CUDA runtime in blocks."""
    for block in export.blocks(LAUNCHES, list(LAUNCH_NAMES.values())):
        yield {name: block[column] for name, column in LAUNCH_NAMES.items()}


def read_kernels(export: Tables) -> Iterator[dict[str, Numbers]]:
    """Yield the kernels in blocks."""
    for block in export.blocks(KERNELS, list(KERNEL_NAMES.values())):
        found = {name: block[column] for name, column in KERNEL_NAMES.items()}
        found["process"] = process_of(found["process"])  # of ABSENT: ABSENT
        yield found


def _strings(export: Tables) -> pl.DataFrame:
    """Return the strings by number."""
    if STRINGS not in export.tables:
        export.note(STRINGS, "is missing")
    found = export.frame(STRINGS, STRING_COLUMNS, STRINGS_SCHEMA)
    return found.drop_nulls().unique("number", keep="first", maintain_order=True)


def _with_names(events: pl.DataFrame, names: pl.DataFrame) -> pl.DataFrame:
    """Return events with the column `name`: their text, or the string that they refer to."""
    found = names.rename({"text": "string"})
    joined = events.join(found, on="number", how="left", maintain_order="left")
    return joined.with_columns(name=pl.coalesce("text", "string"))
