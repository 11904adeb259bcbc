"""Costs of the actions of each stage, and their spread.

All metrics are of the given spans: pass only the steps that count. Only actions on the compute lane with a known stage
count. The two actions of an overlapped pair share one interval, from the earlier start to the later end. Their costs
are listed separately from those of actions that ran alone, each with the whole time of the pair.
"""

from __future__ import annotations

import polars as pl

from stagescope.analysis.statistics.timed_actions import time_actions
from stagescope.model.tables import Column, KindType, Table

STAGE_COSTS = Table(
    "stage_costs",
    "one kind of action of one stage and chunk, on one rank or on all its ranks",
    ("stage", "chunk", "kind", "is_pair", "rank"),
    (
        Column("stage", pl.Int32, "", "Global stage."),
        Column("chunk", pl.Int32, "", "Local model chunk.", nullable=True),
        Column("kind", KindType, "", "Kind of the actions."),
        Column("is_pair", pl.Boolean, "", "Whether they ran as halves of overlapped pairs."),
        Column("rank", pl.Int32, "", "Global rank; null: all ranks together.", nullable=True),
        Column("count", pl.UInt32, "", "How many actions."),
        Column("total_ns", pl.Int64, "ns", "Sum of their durations."),
        Column("mean_ns", pl.Int64, "ns", "total_ns / count, to the nearest nanosecond."),
        Column(
            "std_ns", pl.Int64, "ns", "Sample standard deviation; null for a single action.", nullable=True
        ),
        Column("min_ns", pl.Int64, "ns", "Shortest."),
        Column("p10_ns", pl.Int64, "ns", "10th percentile: a duration that occurred."),
        Column("median_ns", pl.Int64, "ns", "50th percentile, likewise."),
        Column("p90_ns", pl.Int64, "ns", "90th percentile, likewise."),
        Column("p99_ns", pl.Int64, "ns", "99th percentile, likewise."),
        Column("max_ns", pl.Int64, "ns", "Longest."),
    ),
)

PERCENTILES = {"p10_ns": 0.10, "median_ns": 0.50, "p90_ns": 0.90, "p99_ns": 0.99}


def measure_stage_costs(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the table STAGE_COSTS: the distribution of the durations of each stage's actions, per rank and total."""
    key = ["stage", "chunk", "kind", "is_pair"]
    actions = time_actions(spans).drop("step", "microbatch").filter(pl.col("stage").is_not_null())
    together = actions.group_by(key).agg(_spread()).with_columns(rank=pl.lit(None, pl.Int32))
    per_rank = actions.group_by(*key, "rank").agg(_spread())
    rows = pl.concat([each.select(STAGE_COSTS.names) for each in (per_rank, together)])
    return _as_declared(rows, STAGE_COSTS)


def _spread() -> list[pl.Expr]:
    duration_ns = pl.col("duration_ns")
    return [
        pl.len().alias("count"),
        duration_ns.sum().alias("total_ns"),
        duration_ns.mean().round().alias("mean_ns"),
        duration_ns.std().round().alias("std_ns"),
        duration_ns.min().alias("min_ns"),
        duration_ns.max().alias("max_ns"),
        *(duration_ns.quantile(fraction, "nearest").alias(name) for name, fraction in PERCENTILES.items()),
    ]


def _as_declared(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    columns = (pl.col(column.name).cast(column.dtype) for column in table.columns)
    return frame.select(*columns).sort(table.order, nulls_last=True)
