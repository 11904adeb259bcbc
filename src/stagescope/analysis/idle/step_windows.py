"""The window of every pipeline in every step: from its first action to its last, as in the bubble."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.tables import Column, Table
from stagescope.vocabulary.kinds import ACTION_KINDS, COMPUTE

if TYPE_CHECKING:
    from collections.abc import Iterable

STEP_WINDOWS = Table(
    "step_windows",
    "one pipeline in one step",
    ("pipeline", "step"),
    (
        Column("pipeline", pl.Int32, "", "Smallest rank of the pipeline."),
        Column("step", pl.Int32, "", "Training step."),
        Column("ranks", pl.UInt32, "", "Ranks of the pipeline that ran an action."),
        Column("start_ns", pl.Int64, "ns", "First start of an action."),
        Column("end_ns", pl.Int64, "ns", "Last end of an action."),
        Column("window_ns", pl.Int64, "ns", "end_ns - start_ns."),
    ),
)


def windows_of_bubbles(bubbles: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return the table STEP_WINDOWS, given the rows of step_bubbles, some steps after the others."""
    return pl.concat(map(_windows_of, bubbles)).sort(STEP_WINDOWS.order)


def _windows_of(bubbles: pl.DataFrame) -> pl.DataFrame:
    windows = bubbles.group_by("pipeline", "step").agg(
        pl.len().alias("ranks"),
        pl.first("window_ns"),
        start_ns=pl.first("window_start_ns"),
        end_ns=pl.first("window_end_ns"),
    )
    return windows.select(pl.col(name).cast(dtype) for name, dtype in STEP_WINDOWS.schema.items())


def count_microbatches(spans: pl.DataFrame, pipelines: pl.DataFrame) -> pl.DataFrame:
    """Return how many micro-batches, and kinds of actions, every pipeline ran in every step.

    The columns are step, pipeline, microbatches and kinds.
    """
    is_action = pl.col("kind").is_in(ACTION_KINDS) & pl.col("step").is_not_null()
    actions = spans.lazy().filter(is_action).join(pipelines.lazy(), on="rank")
    counts = actions.group_by("step", "pipeline").agg(
        microbatches=pl.col("microbatch").drop_nulls().n_unique(), kinds=pl.col("kind").n_unique()
    )
    return counts.sort("step", "pipeline").collect()


def windows_alike(windows: pl.DataFrame, counts: pl.DataFrame) -> pl.DataFrame:
    """Return the windows of the steps that did as much as most steps of their pipeline: only these can be compared.

    `windows` is the table STEP_WINDOWS, `counts` is from count_microbatches. Steps differ in the number of
    micro-batches where batches grow or are accumulated differently, and in the kinds of actions in evaluations.
    """
    work = ["pipeline", "microbatches", "kinds"]
    each = windows.join(counts, on=["pipeline", "step"], how="left", maintain_order="left")
    sizes = each.group_by(work).agg(size=pl.len()).sort("size", *work)
    most = sizes.unique("pipeline", keep="last", maintain_order=True)
    alike = each.join(most, on=work, how="semi", nulls_equal=True, maintain_order="left")
    return alike.select(windows.columns)


def find_step_windows(spans: pl.DataFrame, pipelines: pl.DataFrame) -> pl.DataFrame:
    """Return the table STEP_WINDOWS; `pipelines` is the result of find_pipelines."""
    is_action = (
        pl.col("kind").is_in(ACTION_KINDS) & (pl.col("lane") == COMPUTE) & pl.col("step").is_not_null()
    )
    return (
        spans.lazy()
        .filter(is_action)
        .group_by("rank", "step")
        .agg(pl.min("start_ns"), pl.max("end_ns"))
        .join(pipelines.lazy(), on="rank")
        .group_by("pipeline", "step")
        .agg(pl.len().alias("ranks"), pl.min("start_ns"), pl.max("end_ns"))
        .with_columns(window_ns=pl.col("end_ns") - pl.col("start_ns"))
        .select(pl.col(name).cast(dtype) for name, dtype in STEP_WINDOWS.schema.items())
        .sort(STEP_WINDOWS.order)
        .collect()
    )
