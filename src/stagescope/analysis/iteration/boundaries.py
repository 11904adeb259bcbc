"""When each iteration begins and ends: from the first action of a step to the first action of the next one.

All ranks share these boundaries, because data-parallel replicas and pipeline stages wait for each other in every
iteration. What happens between two steps (data loading, gradient reduction, optimizer, logging) therefore belongs to
the iteration before. The end of an iteration is unknown if the next step was not recorded.
"""

from __future__ import annotations

import polars as pl

from stagescope.model.tables import Column, Table

MOST_OVERLAP_FRACTION = 0.1
"""How much of an iteration the windows of its successor may overlap."""

ITERATION_STEPS = Table(
    "iteration_steps",
    "one step whose successor was recorded",
    ("step",),
    (
        Column("step", pl.Int32, "", "Training step."),
        Column("start_ns", pl.Int64, "ns", "First start of an action of the step, over all pipelines."),
        Column("end_ns", pl.Int64, "ns", "First start of an action of the next step."),
        Column("last_end_ns", pl.Int64, "ns", "Last end of an action of the step, over all pipelines."),
        Column(
            "last_pipeline", pl.Int32, "", "The pipeline that ended then; the smallest one if several did."
        ),
        Column("pipelines", pl.UInt32, "", "Pipelines that ran the step."),
    ),
)


def find_iteration_steps(bubbles: pl.DataFrame) -> pl.DataFrame:
    """Return the table ITERATION_STEPS; `bubbles` is what step_bubbles returns.

    Steps that do not follow each other in time have no iteration: those of several runs in one timeline, or of ranks
    whose clocks are so far apart that their steps overlap. A short overlap is left: a schedule may begin the next step
    on one rank while another finishes this one.
    """
    windows = bubbles.group_by("step", "pipeline").agg(pl.first("window_start_ns", "window_end_ns"))
    steps = (
        windows.sort("window_end_ns", "pipeline", descending=[True, False])
        .group_by("step", maintain_order=True)
        .agg(
            pl.min("window_start_ns").alias("start_ns"),
            pl.first("window_end_ns").alias("last_end_ns"),
            pl.first("pipeline").alias("last_pipeline"),
            pl.len().alias("pipelines"),
        )
        .sort("step")
        .with_columns(following=pl.col("step").shift(-1), end_ns=pl.col("start_ns").shift(-1))
    )
    length_ns = pl.col("end_ns") - pl.col("start_ns")
    overlap_ns = pl.col("last_end_ns") - pl.col("end_ns")
    follows = (pl.col("following") == pl.col("step") + 1) & (length_ns > 0)
    return steps.filter(follows & (overlap_ns <= MOST_OVERLAP_FRACTION * length_ns)).select(
        pl.col(name).cast(dtype) for name, dtype in ITERATION_STEPS.schema.items()
    )
