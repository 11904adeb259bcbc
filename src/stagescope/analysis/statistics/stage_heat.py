"""The heat map of stages by steps: how long each stage worked, waited and was idle in every step."""

from __future__ import annotations

import polars as pl

from stagescope.model.tables import Column, Table
from stagescope.vocabulary.kinds import ACTION_KINDS

STAGE_HEAT = Table(
    "stage_heat",
    "one stage in one step",
    ("step", "stage"),
    (
        Column("step", pl.Int32, "", "Training step."),
        Column("stage", pl.Int32, "", "Stage of the model."),
        Column("action_ns", pl.Int64, "ns", "Sum of the durations of its actions, over all ranks."),
        Column("wait_ns", pl.Int64, "ns", "Time in which the host was blocked on its transfers."),
        Column(
            "idle_ns",
            pl.Int64,
            "ns",
            "Idle time of the ranks that hold it; a rank with several stages counts for each. Null: not measured.",
            nullable=True,
        ),
        Column("action_count", pl.Int64, "", "Actions of the stage in the step."),
    ),
)


def measure_stage_heat(spans: pl.DataFrame, bubbles: pl.DataFrame) -> pl.DataFrame:
    """Return the table STAGE_HEAT of a spans table; `bubbles` is what `step_bubbles` returns.

    Stages without an action in a step have no row. Never raises.
    """
    known = spans.filter(pl.col("step").is_not_null() & pl.col("stage").is_not_null())
    is_action = pl.col("kind").is_in(ACTION_KINDS)
    wait_ns = (pl.col("wait_end_ns") - pl.col("wait_start_ns")).clip(0)
    sums = known.group_by("step", "stage").agg(
        (pl.col("end_ns") - pl.col("start_ns")).clip(0).filter(is_action).sum().alias("action_ns"),
        wait_ns.sum().alias("wait_ns"),
        is_action.sum().cast(pl.Int64).alias("action_count"),
    )
    holders = known.filter(is_action).select("step", "stage", "rank").unique()
    idle = (
        holders.join(bubbles.select("step", "rank", "idle_ns"), on=["step", "rank"])
        .group_by("step", "stage")
        .agg(pl.sum("idle_ns"))
    )
    rows = sums.filter(pl.col("action_count") > 0).join(idle, on=["step", "stage"], how="left")
    return rows.select(STAGE_HEAT.names).sort("step", "stage")
