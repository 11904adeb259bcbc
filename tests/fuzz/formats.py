"""The declared formats: the sample of each, the mutators that apply, and the redundancy that the format has.

A new reader gets one entry here. `reveals(before, after)` answers whether the format itself shows that a file was
damaged: then a different result without a diagnostic is a failure. A digit that becomes another digit reveals nothing.
"""

from __future__ import annotations

import gzip
import json
import zlib
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from fuzz import samples
from fuzz.database_mutations import DATABASE, is_damaged
from fuzz.frame_mutations import FRAMES
from fuzz.json_mutations import JSON, JSON_LINES
from fuzz.mutations import BYTES, TEXT, Mutator
from fuzz.table_mutations import CSV, PARQUET

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Format(NamedTuple):
    """One format: its name, how to write a sample into an empty folder, its mutators and its redundancy.

    `reveals` gets the file before and after the mutations. `pattern` selects the files to mutate. `is_directory` states
    that the files mean something together only.
    """

    name: str
    write: Callable[[Path], None]
    mutators: tuple[Mutator, ...]
    reveals: Callable[[Path, Path], bool]
    pattern: str = "*"
    is_directory: bool = False


def any_change(before: Path, after: Path) -> bool:
    """Return True: every byte of the format is covered by a checksum, a length or a sequence number."""
    return before.read_bytes() != after.read_bytes()


def nothing(before: Path, after: Path) -> bool:  # noqa: ARG001 - the signature of all checks
    """Return False: the format has no redundancy beyond what a single mutator declares."""
    return False


def invalid_json(before: Path, after: Path) -> bool:  # noqa: ARG001 - same
    """Return whether a file is no longer JSON."""
    return not _is_json(after.read_bytes())


def invalid_gzip(before: Path, after: Path) -> bool:
    """Return whether a file is no longer intact gzip data (RFC 1952: CRC32 and size), or no longer JSON inside."""
    try:
        content = gzip.decompress(after.read_bytes())
    except (OSError, EOFError, zlib.error):
        return True
    return content != gzip.decompress(before.read_bytes()) and not _is_json(content)


def invalid_lines(before: Path, after: Path) -> bool:
    """Return whether a file has lines that are no JSON."""
    known = set(before.read_bytes().splitlines())
    return not all(
        _is_json(line) for line in after.read_bytes().splitlines() if line.strip() and line not in known
    )


def damaged_rows(before: Path, after: Path) -> bool:  # noqa: ARG001 - same
    """Return whether a CSV file has equal rows, rows with too few fields or NUL, or no line break at its end."""
    data = after.read_bytes()
    rows = [line for line in data.split(b"\n")[1:] if line.strip()]
    commas = data.partition(b"\n")[0].count(b",")
    is_whole = data.endswith(b"\n") and b"\0" not in data and len(set(rows)) == len(rows)
    return b'"' not in data and not (is_whole and all(row.count(b",") >= commas for row in rows))


def damaged_database(before: Path, after: Path) -> bool:  # noqa: ARG001 - same
    """Return whether SQLite's own check fails."""
    return is_damaged(after)


def unreadable_parquet(before: Path, after: Path) -> bool:  # noqa: ARG001 - same
    """Return whether a file can no longer be decoded."""
    try:
        pl.read_parquet(after)
    except BaseException as error:  # noqa: BLE001 - Polars may panic
        return not isinstance(error, KeyboardInterrupt)
    return False


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return False
    return True


FORMATS = (
    Format("recording", samples.recorded_run, BYTES, any_change),
    Format("recording frames", samples.segmented_recording, FRAMES, nothing),
    Format("kineto", samples.kineto_traces, (*BYTES, *TEXT, *JSON, *JSON), invalid_json),
    Format("kineto, gzip", samples.compressed_kineto_traces, BYTES, invalid_gzip),
    Format("chrome", samples.chrome_trace, (*BYTES, *TEXT, *JSON, *JSON), invalid_json),
    Format("chrome, mapped", samples.mapped_trace, (*BYTES, *TEXT, *JSON, *JSON), invalid_json),
    Format("perfetto", samples.perfetto_export, BYTES, nothing),
    Format("csv", samples.spans_csv, (*BYTES, *TEXT, *CSV, *CSV), damaged_rows),
    Format("parquet", samples.spans_parquet, (*BYTES, *PARQUET), unreadable_parquet),
    Format("stored run", samples.stored_run, (*BYTES, *TEXT), any_change, is_directory=True),
    Format("nsight", samples.nsight_reports, (*BYTES, *DATABASE), damaged_database, "*.sqlite"),
    Format(
        "nsight, parquet", samples.nsight_parquet_reports, (*BYTES, *PARQUET), unreadable_parquet, "*.parquet"
    ),
    Format("rocpd", samples.rocpd_databases, (*BYTES, *DATABASE), damaged_database, "*.db"),
    Format("rocprof", samples.rocprof_results, (*BYTES, *TEXT, *JSON, *JSON), invalid_json),
    Format("xplane", samples.xla_profile, BYTES, nothing),
    Format("otlp", samples.otlp_lines, (*BYTES, *TEXT, *JSON_LINES, *JSON_LINES), invalid_lines),
    Format("ascend", samples.ascend_profiles, (*BYTES, *DATABASE), damaged_database, "*.db"),
    Format(
        "ascend, msmonitor", samples.monitored_ascend_profiles, (*BYTES, *DATABASE), damaged_database, "*.db"
    ),
    Format("paddle log", samples.paddle_worker_logs, (*BYTES, *TEXT), nothing),
    Format(
        "paddle fleet", samples.paddle_fleet_records, (*BYTES, *TEXT, *JSON_LINES, *JSON_LINES), invalid_lines
    ),
    Format("paddle profiler", samples.paddle_profiles, (*BYTES, *TEXT, *JSON, *JSON), invalid_json),
    Format("primus", samples.primus_dumps, (*BYTES, *TEXT, *JSON, *JSON), invalid_json),
)
BY_NAME = {one.name: one for one in FORMATS}
