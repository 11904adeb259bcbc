"""Divide a Timeline into the partitions of a stored run."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.model.pipelines import find_pipelines
from stagescope.model.stored_run import NONE, PARTITIONED, WHOLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stagescope.model import Timeline
    from stagescope.model.tables import Table

MOST_SPANS = 1_000_000
"""Of one partition, unless one step has more: a worker needs about 100 bytes of memory for each."""


PLACE = ("pipeline", "step_range")
LEAST_STRETCH = 64
"""Shorter stretches of rows of one partition take longer to copy, one by one, than it takes to group all rows."""


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


class StepRanges(NamedTuple):
    """The first step of a run, and the number of steps of each range."""

    first: int
    length: int


def divide(timeline: Timeline, most_spans: int = MOST_SPANS) -> Iterator[Partition]:
    """Yield the partitions of every table, in a fixed order; rows keep their order."""
    yield from whole_tables(timeline)
    pipelines = find_pipelines(timeline.spans, timeline.ranks)
    ranges = step_ranges(timeline.spans.select("rank", "step"), pipelines, most_spans)
    yield from divide_tables(timeline, pipelines, ranges)


def whole_tables(timeline: Timeline) -> Iterator[Partition]:
    """Yield the tables that are not divided."""
    for table in WHOLE:
        yield Partition(table, getattr(timeline, table.name))


def divide_tables(timeline: Timeline, pipelines: pl.DataFrame, ranges: StepRanges) -> Iterator[Partition]:
    """Yield the partitions of the other tables: of a whole run, or of some of its pipelines."""
    for table in PARTITIONED:
        rows: pl.DataFrame = getattr(timeline, table.name)
        placed = with_places(rows, pipelines, ranges)
        for (pipeline, step_range), part in sorted(_by_place(placed).items()):
            yield Partition(table, part, pipeline, step_range)


def _by_place(placed: pl.DataFrame) -> dict[tuple[int, int], pl.DataFrame]:
    """Return the rows of each pipeline and range of steps, in their order and without these columns.

    Rows of a partition are next to each other for each rank, so that copying these stretches takes a fifth of the time
    of grouping all rows, unless tables are in another order.
    """
    keys = [placed[name].to_numpy() for name in PLACE]
    is_first = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    starts = np.append(0, np.flatnonzero(is_first) + 1) if len(placed) else np.empty(0, np.int64)
    if len(placed) < LEAST_STRETCH * len(starts):
        grouped = placed.partition_by(PLACE, as_dict=True, include_key=False, maintain_order=True)
        return {(int(key[0]), int(key[1])): part for key, part in grouped.items()}
    rows = placed.drop(PLACE)
    stretches: dict[tuple[int, int], list[pl.DataFrame]] = {}
    for start, stop in pairwise([*starts.tolist(), len(placed)]):
        place = int(keys[0][start]), int(keys[1][start])
        stretches.setdefault(place, []).append(rows.slice(start, stop - start))
    return {place: pl.concat(pieces, rechunk=True) for place, pieces in stretches.items()}


def with_places(rows: pl.DataFrame, pipelines: pl.DataFrame, ranges: StepRanges) -> pl.DataFrame:
    """Return rows with the columns pipeline and step_range."""
    placed = rows.join(pipelines, on="rank", how="left", maintain_order="left")
    return with_step_range(placed.with_columns(pl.col("pipeline").fill_null(NONE)), ranges)


def with_step_range(rows: pl.DataFrame, ranges: StepRanges) -> pl.DataFrame:
    """Return rows with the column step_range."""
    number = (pl.col("step") - ranges.first) // ranges.length
    return rows.with_columns(step_range=number.cast(pl.Int32).fill_null(NONE))


def of_range(ranges: StepRanges, number: int) -> pl.Expr:
    """Return whether rows are in a range of steps, NONE for rows without a step."""
    if number == NONE:
        return pl.col("step").is_null()
    first = ranges.first + number * ranges.length
    return (pl.col("step") >= first) & (pl.col("step") < first + ranges.length)


def step_ranges(counted: pl.DataFrame, pipelines: pl.DataFrame, most_spans: int = MOST_SPANS) -> StepRanges:
    """Return the ranges of steps with which no partition has too many spans.

    `counted` has rank and step of each span.
    """
    placed = counted.join(pipelines, on="rank", how="left")
    return ranges_of_counts([placed.group_by("pipeline", "step").agg(n=pl.len())], most_spans)


def ranges_of_counts(counts: Iterable[pl.DataFrame], most_spans: int = MOST_SPANS) -> StepRanges:
    """Return the same, given the number of spans, n, of each pipeline and step, of some ranks and of others.

    `counts` are iterated twice, one after the other: those of all pipelines are not in memory together.
    """
    known = pl.concat([_reach(each.drop_nulls("step")) for each in counts])
    if known.is_empty():
        return StepRanges(0, 1)
    in_several = pl.col("pipeline").is_in(
        known.filter(pl.col("pipeline").is_duplicated())["pipeline"].implode()
    )
    shared = pl.concat([each.drop_nulls("step").filter(in_several) for each in counts])
    together = shared.group_by("pipeline", "step").agg(pl.sum("n"))["n"].max()
    largest = max(known["largest"].max(), together or 0)  # type: ignore[type-var]  # integers
    first = known["first"].min()
    return StepRanges(int(first), max(1, most_spans // int(largest)))  # type: ignore[arg-type]  # integers


def _reach(counts: pl.DataFrame) -> pl.DataFrame:
    """Return the first step of each pipeline, and the most spans that it has in a step."""
    return counts.group_by("pipeline").agg(first=pl.min("step"), largest=pl.max("n"))
