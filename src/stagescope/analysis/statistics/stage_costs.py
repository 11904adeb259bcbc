"""Costs of the actions of each stage, their spread, and how evenly the work is divided among stages.

All metrics are of the given spans: pass only the steps that count. Only actions on the compute lane with a known stage
count. The two actions of an overlapped pair share one interval, from the earlier start to the later end. Their costs
are listed separately from those of actions that ran alone, each with the whole time of the pair. Where work is summed,
each of the two is charged half, so that the sum over a rank is what the rank worked; how much each half really took is
unknown.
"""

from __future__ import annotations

import polars as pl

from stagescope.model.tables import Column, KindType, Table
from stagescope.vocabulary.kinds import ACTION_KINDS, COMPUTE

ACTIONS_OF_A_PAIR = 2

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

STAGE_WORK = Table(
    "stage_work",
    "one stage, over all ranks that hold it",
    ("stage",),
    (
        Column("stage", pl.Int32, "", "Global stage."),
        Column(
            "microbatches",
            pl.UInt32,
            "",
            "Forwards, or backwards if there are more: the divisor of the times.",
        ),
        Column("forward_ns", pl.Int64, "ns", "Forward work per micro-batch."),
        Column("backward_ns", pl.Int64, "ns", "Full and input-gradient backward work per micro-batch."),
        Column("weight_ns", pl.Int64, "ns", "Weight-gradient work of split backwards per micro-batch."),
        Column("work_ns", pl.Int64, "ns", "All work per micro-batch."),
        Column(
            "work_to_mean",
            pl.Float64,
            "",
            "work_ns / mean of work_ns over all stages; the largest is the imbalance of the stages.",
            nullable=True,
        ),
    ),
)

PERCENTILES = {"p10_ns": 0.10, "median_ns": 0.50, "p90_ns": 0.90, "p99_ns": 0.99}


def measure_stage_costs(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the table STAGE_COSTS: the distribution of the durations of each stage's actions, per rank and total."""
    key = ["stage", "chunk", "kind", "is_pair"]
    actions = _actions(spans).drop("step", "charged_ns")
    together = actions.group_by(key).agg(_spread()).with_columns(rank=pl.lit(None, pl.Int32))
    per_rank = actions.group_by(*key, "rank").agg(_spread())
    rows = pl.concat([each.select(STAGE_COSTS.names) for each in (per_rank, together)])
    return _as_declared(rows, STAGE_COSTS)


def measure_stage_work(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the table STAGE_WORK: the cost of one micro-batch on each stage, and its ratio to the mean.

    Stages are compared whatever their ranks: the imbalance (largest / mean) is that of dividing the model. A stage of
    which only some actions were recorded is divided by those.
    """
    kind, charged_ns = pl.col("kind"), pl.col("charged_ns")
    halves = {"forward_ns": ("forward",), "backward_ns": ("backward", "backward_input")}
    halves["weight_ns"] = ("backward_weight",)
    sums = (
        _actions(spans)
        .group_by("stage")
        .agg(
            pl.max_horizontal((kind == "forward").sum(), kind.is_in(halves["backward_ns"]).sum()).alias(
                "microbatches"
            ),
            *(charged_ns.filter(kind.is_in(kinds)).sum().alias(name) for name, kinds in halves.items()),
            charged_ns.sum().alias("work_ns"),
        )
        # Weight gradients alone do not show how many micro-batches ran.
        .filter(pl.col("microbatches") > 0)
    )
    means = sums.with_columns(pl.col(*halves, "work_ns") / pl.col("microbatches"))
    return _finish(means.with_columns(_to_mean(pl.col("work_ns").mean())), STAGE_WORK)


def _actions(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the actions of known stages: stage, chunk, kind, rank, step, is_pair, duration_ns and charged_ns."""
    actions = spans.filter(
        pl.col("kind").is_in(ACTION_KINDS) & (pl.col("lane") == COMPUTE) & pl.col("stage").is_not_null()
    ).select("stage", "chunk", "kind", "rank", "step", "pair", "start_ns", "end_ns")
    # A clock that was set back can make a span end before it starts: it counts as having no length.
    duration_ns = (pl.col("end_ns") - pl.col("start_ns")).clip(lower_bound=0)
    actions = actions.with_columns(is_pair=pl.lit(value=False), duration_ns=duration_ns)
    if actions["pair"].null_count() < actions.height:
        actions = _with_times_of_pairs(actions)
    charged_ns = pl.when("is_pair").then(pl.col("duration_ns") / ACTIONS_OF_A_PAIR).otherwise("duration_ns")
    return actions.with_columns(charged_ns=charged_ns).drop("pair", "start_ns", "end_ns")


def _with_times_of_pairs(actions: pl.DataFrame) -> pl.DataFrame:
    """Return actions with each half of a pair lasting as long as the pair."""
    key = ["rank", "step", "pair"]
    is_pair = pl.col("pair").is_not_null() & (pl.len().over(key) == ACTIONS_OF_A_PAIR)
    together_ns = (pl.max("end_ns").over(key) - pl.min("start_ns").over(key)).clip(lower_bound=0)
    return actions.with_columns(is_pair=is_pair).with_columns(
        duration_ns=pl.when("is_pair").then(together_ns).otherwise("duration_ns")
    )


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


def _to_mean(mean_ns: pl.Expr) -> pl.Expr:
    return pl.when(mean_ns > 0).then(pl.col("work_ns") / mean_ns).alias("work_to_mean")


def _finish(means: pl.DataFrame, table: Table) -> pl.DataFrame:
    """Return means as the declared table, rounded to whole nanoseconds."""
    return _as_declared(means.with_columns(pl.col("^.*_ns$").round()), table)


def _as_declared(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    columns = (pl.col(column.name).cast(column.dtype) for column in table.columns)
    return frame.select(*columns).sort(table.order, nulls_last=True)
