"""How much data each micro-batch and step had: tokens, or samples where no rank counted tokens.

Several ranks may count the data of one micro-batch: both ends of a pipeline, or all ranks of a training that calls
`record.tokens` everywhere. They count the same data, so the largest value is that of the pipeline.

Tables of counters may have some of those of a run: all of a pipeline in a step, each rank's in the order of time.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.tables import Column, Table
from stagescope.vocabulary.counters import SAMPLES, TOKENS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

UNITS = (TOKENS, SAMPLES)
"""Counters of data: a run is measured by the first one that it has."""

OF_PIPELINES = {"name": pl.String, "pipeline": pl.Int32, "step": pl.Int32, "size": pl.Float64}
"""The columns of pipeline_data."""

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


def units_in(counters: pl.DataFrame) -> frozenset[str]:
    """Return the counters of data that a table of counters has."""
    return frozenset(UNITS).intersection(counters["name"].unique())


def unit_of(names: Collection[str]) -> str | None:
    """Return which of these counters of data is used: tokens, or else samples; None without any."""
    return next((name for name in UNITS if name in names), None)


def microbatch_sizes(counters: pl.DataFrame, pipelines: pl.DataFrame, names: Collection[str]) -> pl.DataFrame:
    """Return one row per micro-batch with a value of a counter: name, pipeline, step, microbatch, size.

    Of several values that one rank counted for one micro-batch, the last one is used. `pipelines` is what
    find_pipelines returns, `names` are the counters.
    """
    cell = ["name", "step", "microbatch"]
    own = counters.filter(pl.col("name").is_in(list(names))).drop_nulls(cell)
    last = own.group_by("rank", *cell).agg(pl.last("value")).join(pipelines, on="rank")
    keys = ["name", "pipeline", "step", "microbatch"]
    return last.group_by(keys).agg(size=pl.max("value")).sort(keys)


def measure_step_data(
    counters: pl.DataFrame, pipelines: pl.DataFrame, ranks: pl.DataFrame, iterations: pl.DataFrame
) -> pl.DataFrame:
    """Return the table STEP_DATA.

    `pipelines` is what find_pipelines returns, `ranks` has the data-parallel coordinates, `iterations` is the table
    ITERATION_STEPS.
    """
    parts, unit = [pipeline_data(counters, pipelines)], unit_of(units_in(counters))
    return data_of_iterations(count_data(parts, unit, pipelines, ranks), iterations)


def data_of_iterations(counted: pl.DataFrame | None, iterations: pl.DataFrame) -> pl.DataFrame:
    """Return the table STEP_DATA, given the result of count_data and the table ITERATION_STEPS."""
    if counted is None:
        return STEP_DATA.empty()
    length_ns = pl.when("is_whole").then(pl.col("end_ns") - pl.col("start_ns"))
    lengths = iterations.select("step", iteration_ns=length_ns)
    found = counted.join(lengths, on="step", how="left").with_columns(
        per_second=pl.col("count") / (pl.col("iteration_ns") / 1e9)
    )
    return found.select(pl.col(name).cast(dtype) for name, dtype in STEP_DATA.schema.items()).sort("step")


def throughput(step_data: pl.DataFrame, steps: Collection[int]) -> float | None:
    """Return the data of `steps` per second of their iterations; None if no whole iteration has any."""
    whole = step_data.filter(pl.col("step").is_in(list(steps)), pl.col("iteration_ns") > 0)
    if whole.is_empty() or whole["scope"].n_unique() > 1:
        return None
    return float(whole["count"].sum()) / (float(whole["iteration_ns"].sum()) / 1e9)


def pipeline_data(counters: pl.DataFrame, pipelines: pl.DataFrame) -> pl.DataFrame:
    """Return how much data every pipeline had, by the name of the counter: the columns OF_PIPELINES, sorted by step.

    Counts without a micro-batch are those of the whole step; they are added, and replace those of its micro-batches.
    """
    keys = ["name", "pipeline", "step"]
    own = counters.filter(pl.col("name").is_in(UNITS)).drop_nulls("step")
    of_microbatches = microbatch_sizes(own, pipelines, UNITS).group_by(keys).agg(pl.sum("size"))
    whole = own.filter(pl.col("microbatch").is_null()).group_by("rank", "name", "step").agg(pl.sum("value"))
    of_steps = whole.join(pipelines, on="rank").group_by(keys).agg(size=pl.max("value"))
    others = of_microbatches.join(of_steps, on=keys, how="anti")
    return pl.concat([of_steps, others]).select(*OF_PIPELINES).sort("step", "pipeline", "name")


def count_data(
    parts: Iterable[pl.DataFrame], unit: str | None, pipelines: pl.DataFrame, ranks: pl.DataFrame
) -> pl.DataFrame | None:
    """Return step, unit, count and scope of every step with data of this unit; see STEP_DATA. None without a unit.

    `parts` are rows of pipeline_data, some steps after the others, each with all its pipelines.
    """
    if unit is None:
        return None
    replicas = _replicas(pipelines, ranks)
    is_known = replicas.height == 1 or not replicas["replica"].null_count()
    added = pl.concat(
        _over_replicas(rows.filter(pl.col("name") == unit), replicas, is_known=is_known)
        for rows in chain([pl.DataFrame(schema=OF_PIPELINES)], parts)
    )
    wanted = replicas["replica"].n_unique() if is_known else None
    # One scope for all steps: a sum and a mean in one table would be mistaken for each other.
    is_complete = is_known and bool((added["counted"] == wanted).all())
    scope, column = ("run", "total") if is_complete else ("pipeline", "mean")
    return added.select("step", unit=pl.lit(unit), count=column, scope=pl.lit(scope))


def _replicas(pipelines: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return pipeline and replica: its data-parallel coordinate, null if its ranks do not state the same one."""
    places = pipelines.join(ranks.select("rank", "dp"), on="rank", how="left")
    dp = pl.col("dp")
    same = pl.when((dp.n_unique() == 1) & (dp.null_count() == 0)).then(dp.first())
    return places.group_by("pipeline").agg(replica=same)


def _over_replicas(data: pl.DataFrame, replicas: pl.DataFrame, *, is_known: bool) -> pl.DataFrame:
    """Return step, total, mean and counted: over the replicas, of which pipelines of one replica count the same data.

    Over the pipelines, if the replicas are not known.
    """
    of_replica = (
        data.join(replicas, on="pipeline").group_by("step", "replica").agg(pl.max("size"))
        if is_known
        else data.rename({"pipeline": "replica"})
    )
    in_order = of_replica.sort("step", "replica").group_by("step", maintain_order=True)
    return in_order.agg(total=pl.sum("size"), mean=pl.mean("size"), counted=pl.len())
