"""A stored run: a directory of Parquet files that contains a Timeline, and the manifest that describes it.

    run.stagescope/
        stored-run.json                                  the manifest, written last
        ranks.parquet, clocks.parquet, diagnostics.parquet
        spans/pipeline=0/step_range=0/part.parquet       also steps, counters and kernels
        unfinished.jsonl                                 only while it is being written
        analysis/report.json, analysis/losses.parquet    the results of analysis, if they were computed
        page/4f2a...-7c1e.../page.json, ...              the tiles of the page, if they were prepared

A partition has the rows of one pipeline in a range of steps, sorted as the table declares. The pipeline is the smallest
rank of it; -1 is for ranks without one, and for rows without a step. docs/scale.md describes the format for other
programs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import polars as pl

from stagescope.model.tables import COUNTERS, KERNELS, SPANS, STEPS, TABLES

if TYPE_CHECKING:
    from stagescope.model.tables import Table

FORMAT = "stagescope stored run"
RESULTS_FORMAT = "stagescope analysis"
PAGE_FORMAT = "stagescope page"
VERSION = 1
SUFFIX = ".stagescope"
MANIFEST, JOURNAL, LOCK = "stored-run.json", "unfinished.jsonl", "lock"
RESULTS, RESULTS_INDEX = "analysis", "report.json"
PAGES, PAGE_INDEX = "page", "page.json"
CHECKSUM_BYTES = 16
"""Of the BLAKE2b checksums of parts and results; sources have a CRC-32."""
PAGE_DIGITS = 24
"""Of both parts of the name of a prepared page, as in the cache of pages: hexadecimal digits of checksums."""
NONE = -1
"""The pipeline of ranks without one, and the range of rows without a step."""

PARTITIONED: tuple[Table, ...] = (SPANS, STEPS, COUNTERS, KERNELS)
WHOLE: tuple[Table, ...] = tuple(table for table in TABLES if table not in PARTITIONED)
TABLE_OF = {table.name: table for table in TABLES}

RELATIVE = {"wait_start_ns": "start_ns", "wait_end_ns": "end_ns"}
"""Columns that are stored as the difference to another one, which is 0 for most receives, as `NAME_offset`."""


@dataclass(frozen=True)
class Source:
    """A file that the run was read from: absolute path, size, when it was modified, and checksum."""

    path: str
    size_bytes: int
    modified_ns: int
    checksum: str


@dataclass(frozen=True)
class Part:
    """A Parquet file: its table, its path in the directory, and what a reader can check.

    `pipeline`, `step_range`, `first_step` and `last_step` are None for tables that are not partitioned, and the steps
    are None for rows without a step.
    """

    table: str
    path: str
    rows: int
    size_bytes: int
    checksum: str
    pipeline: int | None = None
    step_range: int | None = None
    first_step: int | None = None
    last_step: int | None = None


@dataclass(frozen=True)
class Result:
    """A table of the results of analysis: `path` is that of its file in the directory RESULTS."""

    path: str
    rows: int
    checksum: str


@dataclass(frozen=True)
class Results:
    """The results of analysis of a stored run: facts as JSON text, and tables by name.

    `computed_by` is the version that computed them, with a checksum of its code, and `run` the checksum of the
    manifest: results of another run, or of another version, are not used. `steps` are the steps that were analyzed,
    such as ``10:20``; None for all.
    """

    format: str
    computed_by: str
    run: str
    steps: str | None
    report: str
    tables: dict[str, Result]


@dataclass(frozen=True)
class PageFile:
    """A file of a prepared page. The checksum is that of its beginning and end (ingest/stored_run/pages.py)."""

    size_bytes: int
    checksum: str


@dataclass(frozen=True)
class Page:
    """The tiles of the page of a stored run.

    `run` is the checksum of the manifest, and `made_by` states everything else on which they depend, such as the
    version that made them and whether clocks were aligned: those of another run, or made otherwise, are not used.
    """

    format: str
    run: str
    made_by: str
    files: dict[str, PageFile]

    @property
    def size_bytes(self) -> int:
        """Size of all files besides the index."""
        return sum(file.size_bytes for file in self.files.values())


@dataclass(frozen=True)
class Manifest:
    """What a stored run consists of.

    `facts` are the keywords of `read` with which its sources were read, `aligned` whether its timestamps are on one
    clock, and `alignment` the report of that as JSON (clocks/report.py). `code` is the checksum of the code that stored
    it; it is empty for runs that were stored before it was noted.
    """

    format: str
    version: int
    written_by: str
    sources: tuple[Source, ...]
    facts: dict[str, Any]
    aligned: bool
    parts: tuple[Part, ...] = ()
    alignment: dict[str, Any] | None = field(default=None)
    code: str = ""

    @property
    def size_bytes(self) -> int:
        """Size of all Parquet files."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def span_count(self) -> int:
        """Number of spans."""
        return sum(part.rows for part in self.parts if part.table == SPANS.name)


def page_name(run: str, made_by: str) -> str:
    """Return the name of the directory of a page: the first half identifies the run, the second how it was made."""
    way = blake2b(made_by.encode(errors="surrogatepass"), digest_size=PAGE_DIGITS // 2).hexdigest()
    return f"{run[:PAGE_DIGITS]}-{way}"


def manifest_text(facts: dict[str, Any]) -> str:
    """Return the text of a manifest, whose last key is the checksum of the others."""
    return json.dumps({**facts, "checksum": manifest_checksum(facts)}, indent=1)


def manifest_checksum(facts: dict[str, Any]) -> str:
    """Return the checksum of a manifest: without it, a part that is no longer listed would be missing silently."""
    others = {name: value for name, value in facts.items() if name != "checksum"}
    text = json.dumps(others, sort_keys=True)
    return blake2b(text.encode(), digest_size=CHECKSUM_BYTES).hexdigest()


def stored_columns(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows of a table as they are stored: text instead of enumerations, and the RELATIVE columns."""
    spelled = rows.with_columns(pl.col(pl.Enum).cast(pl.String))
    offsets = [
        (pl.col(name) - pl.col(base)).alias(f"{name}_offset")
        for name, base in RELATIVE.items()
        if name in rows.columns
    ]
    return spelled.with_columns(offsets).drop([name for name in RELATIVE if name in rows.columns])


def declared_columns(stored: pl.DataFrame) -> pl.DataFrame:
    """Return stored rows with the columns that the model declares: the reverse of `stored_columns`."""
    offsets = {name: f"{name}_offset" for name in RELATIVE if f"{name}_offset" in stored.columns}
    whole = [(pl.col(offset) + pl.col(RELATIVE[name])).alias(name) for name, offset in offsets.items()]
    return stored.with_columns(whole).drop(offsets.values())
