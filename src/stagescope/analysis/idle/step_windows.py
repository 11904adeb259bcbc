"""The window of every pipeline in every step: from its first action to its last, as in the bubble."""

from __future__ import annotations

import polars as pl

from stagescope.model.tables import Column, Table
from stagescope.vocabulary.kinds import ACTION_KINDS, COMPUTE

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


def windows_of_bubbles(bubbles: pl.DataFrame) -> pl.DataFrame:
    """Return the table STEP_WINDOWS, given rows of step_bubbles of whole pipelines in some steps."""
    return _windows_of(bubbles).sort(STEP_WINDOWS.order)


def windows_with_work(bubbles: pl.DataFrame, counts: pl.DataFrame) -> pl.DataFrame:
    """Return the same with microbatches and kinds, null if unknown; `counts` is from count_microbatches."""
    windows = windows_of_bubbles(bubbles)
    return windows.join(counts, on=["pipeline", "step"], how="left", maintain_order="left")


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


def windows_alike(windows: pl.DataFrame) -> pl.DataFrame:
    """Return the windows of the steps that did as much as most steps of their pipeline: only these can be compared.

    `windows` is from windows_with_work, with all steps of its pipelines. Steps differ in the number of micro-batches
    where batches grow or are accumulated differently, and in the kinds of actions in evaluations.
    """
    work = ["pipeline", "microbatches", "kinds"]
    sizes = windows.group_by(work).agg(size=pl.len()).sort("size", *work)
    most = sizes.unique("pipeline", keep="last", maintain_order=True)
    alike = windows.join(most, on=work, how="semi", nulls_equal=True, maintain_order="left")
    return alike.select(STEP_WINDOWS.names)


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
