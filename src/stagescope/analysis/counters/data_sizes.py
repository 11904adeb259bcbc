"""How much data each micro-batch and step had: tokens, or samples where no rank counted tokens.

Several ranks may count the data of one micro-batch: both ends of a pipeline, or all ranks of a training that calls
`record.tokens` everywhere. They count the same data, so the largest value is that of the pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.tables import Column, Table
from stagescope.vocabulary.counters import SAMPLES, TOKENS

if TYPE_CHECKING:
    from collections.abc import Collection

STEP_DATA = Table(
    "step_data",
    "one step whose data were counted",
    ("step",),
    (
        Column("step", pl.Int32, "", "Training step."),
        Column("unit", pl.String, "", "What was counted: tokens or samples."),
        Column("count", pl.Float64, "", "Data of the step, in all replicas or in one pipeline; see scope."),
        Column(
            "scope",
            pl.Enum(["run", "pipeline"]),
            "",
            "run: the sum over all data-parallel replicas; pipeline: the mean of the pipelines that counted, because "
            "it is unknown which of them share their data, or because not all of them counted.",
        ),
        Column(
            "iteration_ns",
            pl.Int64,
            "ns",
            "Length of its iteration; null: its end is unknown, because the next step was not recorded.",
            nullable=True,
        ),
        Column("per_second", pl.Float64, "1/s", "count over iteration_ns.", nullable=True),
    ),
)


def unit_of(counters: pl.DataFrame) -> str | None:
    """Return the counter that a run has: tokens, or else samples; None without any."""
    names = set(counters["name"].unique())
    return next((name for name in (TOKENS, SAMPLES) if name in names), None)


def microbatch_sizes(counters: pl.DataFrame, pipelines: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return one row per micro-batch with a value of a counter: pipeline, step, microbatch, size.

    Of several values that one rank counted for one micro-batch, the last one is used. `pipelines` is what
    find_pipelines returns.
    """
    own = counters.filter(pl.col("name") == name).drop_nulls(["step", "microbatch"])
    keys = ["pipeline", "step", "microbatch"]
    last = (
        own.join(pipelines, on="rank").group_by(*keys, "rank").agg(pl.col("value").sort_by("time_ns").last())
    )
    return last.group_by(keys).agg(size=pl.max("value")).sort(keys)


def measure_step_data(
    counters: pl.DataFrame, pipelines: pl.DataFrame, ranks: pl.DataFrame, iterations: pl.DataFrame
) -> pl.DataFrame:
    """Return the table STEP_DATA.

    Counts without a micro-batch are those of the whole step; they are added, and replace those of its micro-batches.
    `pipelines` is what find_pipelines returns, `ranks` has the data-parallel coordinates, `iterations` is the table
    ITERATION_STEPS.
    """
    unit = unit_of(counters)
    if unit is None:
        return STEP_DATA.empty()
    of_pipeline = _pipeline_data(counters, pipelines, unit)
    counted = _over_replicas(of_pipeline, _replicas(pipelines, ranks))
    length_ns = pl.when("is_whole").then(pl.col("end_ns") - pl.col("start_ns"))
    lengths = iterations.select("step", iteration_ns=length_ns)
    found = counted.join(lengths, on="step", how="left").with_columns(
        unit=pl.lit(unit), per_second=pl.col("count") / (pl.col("iteration_ns") / 1e9)
    )
    return found.select(pl.col(name).cast(dtype) for name, dtype in STEP_DATA.schema.items()).sort("step")


def throughput(step_data: pl.DataFrame, steps: Collection[int]) -> float | None:
    """Return the data of `steps` per second of their iterations; None if no whole iteration has any."""
    whole = step_data.filter(pl.col("step").is_in(list(steps)), pl.col("iteration_ns") > 0)
    if whole.is_empty() or whole["scope"].n_unique() > 1:
        return None
    return float(whole["count"].sum()) / (float(whole["iteration_ns"].sum()) / 1e9)


def _pipeline_data(counters: pl.DataFrame, pipelines: pl.DataFrame, unit: str) -> pl.DataFrame:
    """Return pipeline, step and size of every step with data."""
    of_microbatches = (
        microbatch_sizes(counters, pipelines, unit).group_by("pipeline", "step").agg(pl.sum("size"))
    )
    whole = counters.filter((pl.col("name") == unit) & pl.col("microbatch").is_null()).drop_nulls("step")
    of_ranks = whole.join(pipelines, on="rank").group_by("pipeline", "step", "rank").agg(pl.sum("value"))
    of_steps = of_ranks.group_by("pipeline", "step").agg(size=pl.max("value"))
    others = of_microbatches.join(of_steps, on=["pipeline", "step"], how="anti")
    return pl.concat([of_steps, others])


def _replicas(pipelines: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return pipeline and replica: its data-parallel coordinate, null if its ranks do not state the same one."""
    places = pipelines.join(ranks.select("rank", "dp"), on="rank", how="left")
    dp = pl.col("dp")
    same = pl.when((dp.n_unique() == 1) & (dp.null_count() == 0)).then(dp.first())
    return places.group_by("pipeline").agg(replica=same)


def _over_replicas(data: pl.DataFrame, replicas: pl.DataFrame) -> pl.DataFrame:
    """Return step, count and scope: the sum over replicas, of which pipelines of one replica count the same data."""
    is_known = replicas.height == 1 or not replicas["replica"].null_count()
    of_replica = (
        data.join(replicas, on="pipeline").group_by("step", "replica").agg(pl.max("size"))
        if is_known
        else data.group_by("step", "pipeline").agg(pl.max("size"))
    )
    added = of_replica.group_by("step").agg(total=pl.sum("size"), mean=pl.mean("size"), counted=pl.len())
    wanted = replicas["replica"].n_unique() if is_known else None
    # One scope for all steps: a sum and a mean in one table would be mistaken for each other.
    is_complete = is_known and bool((added["counted"] == wanted).all())
    scope, column = ("run", "total") if is_complete else ("pipeline", "mean")
    return added.select("step", count=column, scope=pl.lit(scope))
