"""Building the folder of a timeline from which the server answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.viewer.kernel_data import MOST_KERNELS, kernel_facts, kernel_rows
from stagescope.viewer.run_data import data_without_spans, shown_ranks
from stagescope.viewer.span_data import viewer_spans
from stagescope.viewer.tiles.build import Chunk, Extent, build_levels
from stagescope.viewer.tiles.records import FACTS
from stagescope.viewer.tiles.run import BLOB_TYPE, JSON_TYPE, Section, json_bytes, save_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from stagescope.exporters.layers import AnalysisLayers
    from stagescope.model import Timeline
    from stagescope.viewer.run_data import ViewerData
    from stagescope.viewer.tiles.build import Progress


SPANS_AT_ONCE = 1_000_000
"""Approximate size of a chunk; a chunk has whole rows."""


def save_timeline(
    timeline: Timeline, folder: Path, extras: AnalysisLayers | None = None, on_done: Progress | None = None
) -> None:
    """Fill `folder` with the levels of a timeline and the sections of its panels."""
    ranks = shown_ranks(timeline)
    spans = viewer_spans(timeline.spans, ranks)
    data = data_without_spans(timeline, spans, extras)
    base_ns = int(data.meta["base_ns"])
    names = spans["name"].drop_nulls().unique(maintain_order=True)
    extent = Extent(len(ranks), spans.height, int(data.meta["end"]), _has_facts(spans), tuple(names))
    build_levels(_chunks(spans, extent, base_ns), extent, folder, on_done)
    idle = None if extras is None or extras.idle is None else _idle_rows(extras.idle, ranks, base_ns)
    kernels = None
    if timeline.kernels.height > MOST_KERNELS:
        kernels = kernel_rows(timeline.kernels, ranks).with_columns(pl.col("start") - base_ns)
        data.meta["kernels"] = kernel_facts(kernels, len(ranks))
    save_run(folder, data.meta, _sections(data), idle, kernels)


def _chunks(spans: pl.DataFrame, extent: Extent, base_ns: int) -> Iterator[Chunk]:
    """Yield the spans in chunks of whole rows, at least one."""
    first_of_row = np.searchsorted(spans["row"].to_numpy(), np.arange(extent.row_count + 1))
    begin = 0
    while True:
        past = int(np.searchsorted(first_of_row, first_of_row[begin] + SPANS_AT_ONCE, side="right")) - 1
        end = min(max(past, begin + 1), extent.row_count)
        part = spans.slice(int(first_of_row[begin]), int(first_of_row[end] - first_of_row[begin]))
        yield Chunk(begin, end, coded(part, extent.names, base_ns))
        begin = end
        if begin >= extent.row_count:
            return


def coded(spans: pl.DataFrame, names: Sequence[str], base_ns: int) -> pl.DataFrame:
    """Return spans with times from the base and numbers for names."""
    return spans.with_columns(
        start=pl.col("start") - base_ns,
        name=pl.col("name").cast(pl.Enum(names)).to_physical().cast(pl.Int32),
    )


def _has_facts(spans: pl.DataFrame) -> bool:
    return any(spans[name].null_count() < spans.height for name in FACTS.names or ())


def _sections(data: ViewerData) -> dict[str, Section]:
    objects = {name: Section(JSON_TYPE, json_bytes(value)) for name, value in data.objects.items()}
    return {**{name: Section(BLOB_TYPE, blob) for name, blob in data.tables.items()}, **objects}


def _idle_rows(idle: pl.DataFrame, ranks: Sequence[int], base_ns: int) -> pl.DataFrame:
    """Return the idle intervals in the form that the statistics of a selection need."""
    return idle.filter(pl.col("rank").is_in(ranks)).select(
        pl.col("rank").replace_strict(ranks, range(len(ranks)), return_dtype=pl.Int64).alias("row"),
        pl.col("start_ns").alias("start") - base_ns,
        (pl.col("end_ns") - pl.col("start_ns")).alias("duration"),
        pl.col("waiting_for").cast(pl.String),
    )
