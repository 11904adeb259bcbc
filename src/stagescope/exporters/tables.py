"""CSV and Parquet: the spans table without changes, for notebooks and spreadsheets.

Neither has a column for the accuracy of clocks. If machines have different clocks, a Parquet file lists them in its
metadata as JSON; a CSV file has no place for metadata.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl

from stagescope.exporters.writer import Writer, Written
from stagescope.model.clock_groups import clock_summary

if TYPE_CHECKING:
    from pathlib import Path

    from stagescope.model import Timeline


CLOCKS_KEY = "stagescope.clocks"


def write_csv(timeline: Timeline, path: Path) -> Written:
    """Write one line per span after a header line, null as an empty field, and return what was written."""
    spans = _spelled(timeline)
    with path.open("wb") as file:
        spans.write_csv(file)
        return _written(path, spans, file.tell())


def write_parquet(timeline: Timeline, path: Path) -> Written:
    """Write one row per span, compressed with zstd, and return what was written."""
    spans = _spelled(timeline)
    clocks = clock_summary(timeline)
    metadata = {CLOCKS_KEY: json.dumps(clocks.to_dicts())} if clocks.height > 1 else None
    with path.open("wb") as file:
        spans.write_parquet(file, metadata=metadata)
        return _written(path, spans, file.tell())


CSV = Writer("csv", ".csv", "the spans table as text, one line per span", write_csv)
PARQUET = Writer("parquet", ".parquet", "the spans table, typed and compressed", write_parquet)


def _spelled(timeline: Timeline) -> pl.DataFrame:
    """Return the spans table with kinds and lanes as plain strings, which every reader understands."""
    return timeline.spans.with_columns(pl.col("lane", "kind").cast(pl.String))


def _written(path: Path, spans: pl.DataFrame, size_bytes: int) -> Written:
    return Written(path, size_bytes, slice_count=spans.height, flow_count=0, track_names=(), diagnostics=())
