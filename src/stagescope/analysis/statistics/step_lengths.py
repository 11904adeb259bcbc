"""How long every step took, and which steps were longer than chance explains: for lists and bars of steps."""

from __future__ import annotations

import polars as pl

from stagescope.model.tables import Column, Table

STEP_LENGTHS = Table(
    "step_lengths",
    "one training step over all measured ranks",
    ("step",),
    (
        Column("step", pl.Int32, "", "Training step."),
        Column("window_ns", pl.Int64, "ns", "Longest window of one pipeline: the length of the step."),
        Column("bubble_fraction", pl.Float64, "", "Idle time over window, both summed over all ranks."),
        Column("in_totals", pl.Boolean, "", "Whether the step counts toward the totals."),
        Column(
            "excess_ns",
            pl.Float64,
            "ns",
            "How much longer than usual an outlier is, the largest of its pipelines; null: it is no outlier.",
            nullable=True,
        ),
    ),
)


def measure_step_lengths(steps: pl.DataFrame, outliers: pl.DataFrame) -> pl.DataFrame:
    """Return the table STEP_LENGTHS; `steps` is the table REPORT_STEPS, `outliers` the table OUTLIER_STEPS."""
    longest = outliers.group_by("step").agg(pl.max("excess_ns"))
    found = steps.join(longest, on="step", how="left", maintain_order="left")
    return found.select(pl.col(name).cast(dtype) for name, dtype in STEP_LENGTHS.schema.items())


def slowest_steps(lengths: pl.DataFrame, most: int) -> pl.DataFrame:
    """Return at most `most` rows of STEP_LENGTHS, the longest first."""
    return lengths.sort("window_ns", "step", descending=[True, False]).head(most)
