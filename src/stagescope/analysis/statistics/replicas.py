"""Data-parallel replicas: which pipeline finished a step last, and what the others lost by waiting for it.

Replicas meet where they reduce their gradients. Where that was recorded, a rank waits from when it entered a
reduction to when the last of its peers did, as far as it computes nothing meanwhile. Where it was not, all ranks of a
pipeline are taken to wait from the end of its window to the end of the last one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from scipy.special import betainc  # type: ignore[import-untyped]

from stagescope.analysis.idle.step_windows import find_step_windows
from stagescope.analysis.statistics.estimates import discoveries
from stagescope.model.coverage import covered_ns, unite
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.pipelines import find_pipelines
from stagescope.model.tables import Column, Table
from stagescope.vocabulary.kinds import ACTION_KINDS, COMPUTE

if TYPE_CHECKING:
    from stagescope.model import Timeline

RATE = 0.05
FEWEST_REPLICAS = 2
EVIDENCE = ("reduction", "window end")
EvidenceType = pl.Enum(list(EVIDENCE))

REPLICA_STEPS = Table(
    "replica_steps",
    "one pipeline in one step that another pipeline ran too",
    ("step", "pipeline"),
    (
        Column("step", pl.Int32, "", "Training step."),
        Column("pipeline", pl.Int32, "", "Smallest rank of the pipeline."),
        Column("group", pl.Int32, "", "Smallest pipeline among its replicas."),
        Column("ranks", pl.Int64, "", "Ranks of the pipeline."),
        Column("end_ns", pl.Int64, "ns", "Last end of one of its actions."),
        Column("is_last", pl.Boolean, "", "Whether it alone ended later than all its replicas."),
        Column("lead_ns", pl.Int64, "ns", "By how much the last one ended later."),
        Column("wait_ns", pl.Int64, "ns", "How long its ranks waited for others, summed over them."),
        Column("evidence", EvidenceType, "", "What tells that: the reduction, or the window's end."),
    ),
)

REPLICAS = Table(
    "replicas",
    "one pipeline that has replicas",
    ("pipeline",),
    (
        Column("pipeline", pl.Int32, "", "Smallest rank of the pipeline."),
        Column("group", pl.Int32, "", "Smallest pipeline among its replicas."),
        Column("replicas", pl.Int64, "", "Pipelines in the group."),
        Column("steps", pl.Int64, "", "Steps that it shared with another one."),
        Column("last_count", pl.Int64, "", "Steps in which it was last."),
        Column("last_fraction", pl.Float64, "of the steps", "The same as a fraction."),
        Column(
            "wait_ns", pl.Int64, "ns", "How long its ranks waited for others, summed over ranks and steps."
        ),
        Column(
            "caused_wait_ns", pl.Int64, "ns", "How long ranks of others waited in steps in which it was last."
        ),
        Column("p_value", pl.Float64, "", "Chance to be last as often if it were drawn by lot in each step."),
        Column("is_claimed", pl.Boolean, "", "Whether it counts as the slow one."),
    ),
)


@dataclass(frozen=True)
class Replicas:
    """The tables REPLICAS and REPLICA_STEPS, and what could not be told."""

    table: pl.DataFrame
    steps: pl.DataFrame
    diagnostics: tuple[Diagnostic, ...]


def find_replicas(timeline: Timeline, pipelines: pl.DataFrame | None = None) -> Replicas:
    """Return which pipeline was last in every step, what the others waited, and which one is last too often.

    `pipelines` is what find_pipelines returns; it is asked when None is given. Pipelines are replicas when their
    tensor- and context-parallel coordinates agree; where there are no coordinates, all are. Both tables are empty
    where a run has no replicas. At most 5 % of the claims are expected to be false. Never raises.
    """
    if pipelines is None:
        pipelines = find_pipelines(timeline.spans, timeline.ranks)
    windows = find_step_windows(timeline.spans, pipelines).join(
        _groups(pipelines, timeline.ranks), on="pipeline"
    )
    shared = windows.filter(pl.len().over("group", "step") >= FEWEST_REPLICAS)
    if shared.is_empty():
        return Replicas(REPLICAS.empty(), REPLICA_STEPS.empty(), ())
    steps = _steps(shared, _reduction_waits(timeline.spans, shared, pipelines))
    return Replicas(_totals(steps), steps, tuple(_clock_doubt(timeline)))


def _groups(pipelines: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return pipeline and group: the smallest pipeline with the same tensor- and context-parallel coordinates."""
    first = pl.col("pipeline").min()
    placed = pipelines.filter(pl.col("rank") == pl.col("pipeline")).join(ranks, on="rank", how="left")
    if placed["dp"].null_count():
        return placed.select("pipeline", group=first)
    return placed.select("pipeline", group=first.over("tp", "cp"))


def _steps(windows: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Return the table REPLICA_STEPS."""
    alike = ["group", "step"]
    last_ns = pl.col("end_ns").max().over(alike)
    tied = (pl.col("end_ns") == last_ns).sum().over(alike)
    table = windows.join(waits, on=["pipeline", "step"], how="left", maintain_order="left").with_columns(
        lead_ns=last_ns - pl.col("end_ns"), is_last=(pl.col("end_ns") == last_ns) & (tied == 1)
    )
    # Within one step all are told by the same evidence: two sorts of waits do not compare.
    whole = pl.col("wait_ns").is_not_null().all().over(alike)
    by_window = pl.col("lead_ns") * pl.col("ranks").cast(pl.Int64)
    table = table.with_columns(
        wait_ns=pl.when(whole).then("wait_ns").otherwise(by_window),
        evidence=pl.when(whole).then(pl.lit(EVIDENCE[0])).otherwise(pl.lit(EVIDENCE[1])),
    )
    return table.select(pl.col(name).cast(dtype) for name, dtype in REPLICA_STEPS.schema.items()).sort(
        REPLICA_STEPS.order
    )


def _reduction_waits(spans: pl.DataFrame, windows: pl.DataFrame, pipelines: pl.DataFrame) -> pl.DataFrame:
    """Return pipeline, step and wait_ns of the pipelines that recorded reductions which a replica took part in."""
    reductions = spans.filter((pl.col("kind") == "grad_reduce") & pl.col("step").is_not_null())
    if reductions.is_empty():
        return windows.select("pipeline", "step").clear().with_columns(wait_ns=pl.lit(0, pl.Int64))
    groups = windows.select("pipeline", "group").unique()
    entered = (
        reductions.select("rank", "step", "start_ns", "end_ns")
        .sort("start_ns", maintain_order=True)
        .with_columns(turn=pl.int_range(pl.len()).over("rank", "step"))
        .join(pipelines, on="rank")
        .join(groups, on="pipeline")
        .join(_first_stages(spans), on="rank")
    )
    together = ["group", "stage", "step", "turn"]
    entered = entered.with_columns(
        # A reduction cannot wait for longer than it took, whatever clocks say.
        window_start_ns="start_ns",
        window_end_ns=pl.min_horizontal(pl.col("start_ns").max().over(together), "end_ns"),
    ).filter(pl.col("pipeline").n_unique().over(together) >= FEWEST_REPLICAS)
    # Reductions of one rank may run at the same time, and beside its backwards.
    waits = unite(entered.select("rank", start_ns="window_start_ns", end_ns="window_end_ns"))
    waits = waits.rename({"start_ns": "window_start_ns", "end_ns": "window_end_ns"})
    busy = unite(spans.filter(pl.col("lane") == COMPUTE))
    length_ns = pl.col("window_end_ns") - pl.col("window_start_ns")
    named = waits.with_columns(wait_ns=length_ns - covered_ns(waits, busy)).join(
        entered.select("rank", "pipeline", "step", "window_start_ns").unique(["rank", "window_start_ns"]),
        on=["rank", "window_start_ns"],
    )
    sums = named.group_by("pipeline", "step").agg(pl.col("wait_ns").sum())
    took_part = entered.select("pipeline", "step").unique().join(sums, on=["pipeline", "step"], how="left")
    return took_part.with_columns(pl.col("wait_ns").fill_null(0))


def _first_stages(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the smallest stage of every rank: ranks that hold the same stages reduce together."""
    actions = spans.lazy().filter(pl.col("kind").is_in(ACTION_KINDS))
    return actions.group_by("rank").agg(pl.min("stage")).collect()


def _totals(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the table REPLICAS."""
    alike = ["group", "step"]
    of_others = pl.col("wait_ns").sum().over(alike) - pl.col("wait_ns")
    table = (
        steps.with_columns(replicas=pl.len().over(alike), caused=of_others * pl.col("is_last"))
        .group_by("pipeline", "group")
        .agg(
            pl.col("replicas").max(),
            steps=pl.len(),
            last_count=pl.col("is_last").sum(),
            last_fraction=pl.col("is_last").mean(),
            wait_ns=pl.col("wait_ns").sum(),
            caused_wait_ns=pl.col("caused").sum(),
        )
        .sort("pipeline")
    )
    count, all_steps = table["last_count"].to_numpy().astype(float), table["steps"].to_numpy().astype(float)
    by_lot = 1 / table["replicas"].to_numpy().astype(float)
    # The binomial tail as an incomplete beta function.
    p_values = np.where(count > 0, betainc(np.maximum(count, 1), all_steps - count + 1, by_lot), 1.0)
    claimed = discoveries(p_values, RATE)
    table = table.with_columns(p_value=pl.Series(p_values), is_claimed=pl.Series(claimed))
    return table.select(pl.col(name).cast(dtype) for name, dtype in REPLICAS.schema.items())


def _clock_doubt(timeline: Timeline) -> list[Diagnostic]:
    """Return a warning where replicas are on clocks that are off against each other by nobody knows how much."""
    clocks = timeline.ranks["clock"].drop_nulls().unique()
    known = timeline.clocks.filter(
        pl.col("clock").is_in(clocks.implode()) & pl.col("error_lo_ns").is_not_null()
    )
    unknown = len(clocks) - known["clock"].n_unique()
    if len(clocks) < FEWEST_REPLICAS or not unknown:
        return []
    message = "clocks may be off by an unknown time; which replica was last is no better known than that"
    return [Diagnostic("warning", message, count=unknown)]
