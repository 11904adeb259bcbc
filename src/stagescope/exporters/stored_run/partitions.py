"""Divide a Timeline into the partitions of a stored run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.model.pipelines import find_pipelines
from stagescope.model.stored_run import NONE, PARTITIONED, WHOLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.model import Timeline
    from stagescope.model.tables import Table

MOST_SPANS = 1_000_000
"""Of one partition, unless one step has more: a worker needs about 100 bytes of memory for each."""


class Partition(NamedTuple):
    """Rows of one table, and the pipeline and the range of steps that they belong to; None for a whole table."""

    table: Table
    rows: pl.DataFrame
    pipeline: int | None = None
    step_range: int | None = None

    @property
    def path(self) -> str:
        """The path of its file in the directory of the run, in the layout of Hive."""
        if self.pipeline is None:
            return f"{self.table.name}.parquet"
        return f"{self.table.name}/pipeline={self.pipeline}/step_range={self.step_range}/part.parquet"


def divide(timeline: Timeline, most_spans: int = MOST_SPANS) -> Iterator[Partition]:
    """Yield the partitions of every table, in a fixed order; rows keep their order."""
    for table in WHOLE:
        yield Partition(table, getattr(timeline, table.name))
    pipelines = find_pipelines(timeline.spans, timeline.ranks)
    first, length = _step_ranges(timeline.spans, pipelines, most_spans)
    place = {
        "pipeline": pl.col("pipeline").fill_null(NONE),
        "step_range": ((pl.col("step") - first) // length).cast(pl.Int32).fill_null(NONE),
    }
    for table in PARTITIONED:
        rows: pl.DataFrame = getattr(timeline, table.name)
        placed = rows.join(pipelines, on="rank", how="left", maintain_order="left").with_columns(**place)
        parts = placed.partition_by(*place, as_dict=True, include_key=False, maintain_order=True)
        for (pipeline, step_range), part in sorted(parts.items()):
            yield Partition(table, part, int(str(pipeline)), int(str(step_range)))


def _step_ranges(spans: pl.DataFrame, pipelines: pl.DataFrame, most_spans: int) -> tuple[int, int]:
    """Return the first step, and the number of steps of a range: with them, no partition has too many spans."""
    stepped = spans.select("rank", "step").drop_nulls("step").join(pipelines, on="rank", how="left")
    if stepped.is_empty():
        return 0, 1
    first, largest = stepped.select(
        pl.col("step").min(),
        largest=pl.struct("pipeline", "step").value_counts(name="n").struct.field("n").max(),
    ).row(0)
    return first, max(1, most_spans // largest)
