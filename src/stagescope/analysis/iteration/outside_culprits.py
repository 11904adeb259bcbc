"""Culprits of the idle time outside of the windows (culprits.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.iteration.activities import LOADING, OPTIMIZER, OTHER, REDUCTION
from stagescope.analysis.iteration.culprits import CULPRITS, DOMINANT, KEYS, declared
from stagescope.analysis.iteration.outside_activity import AFTER
from stagescope.model.large_tables import reduced, united_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.analysis.iteration.outside_activity import OutsideActivity


class _Iterations(NamedTuple):
    """The `bounds` of IterationTotals, and the ranks in them, with their pipelines: rank and pipeline."""

    bounds: Sequence[pl.DataFrame]
    ranks: pl.DataFrame


def find_outside_culprits(
    bounds: Sequence[pl.DataFrame],
    outside: pl.DataFrame,
    activity: OutsideActivity,
    between: pl.DataFrame,
    own_work: pl.DataFrame,
) -> pl.DataFrame:
    """Return rows of CULPRITS for time outside of the windows, summed over steps: of BEYOND, and unattributed.

    `bounds` are those of IterationTotals. `outside` is from outside_windows, `activity` from measure_outside_activity
    and `own_work` from measure_own_work, all for the same steps. The column `is_between` marks what was before the last
    collective between two steps.
    """
    iterations = _Iterations(bounds, united_rows(bounds, ["rank", "pipeline"]))
    if iterations.ranks.is_empty():
        return CULPRITS.empty().with_columns(is_between=pl.lit(value=False))
    met = _before_collectives(iterations, between)
    outside = _without_met(outside, met)
    itself, first = (
        outside.select(victim_rank="rank", culprit_rank="rank"),
        _first_ranks(iterations, activity),
    )
    own, waited = _own_and_waited(outside, own_work)
    parts = [
        *(_by(outside, name, _actors(activity, name)) for name in (REDUCTION, LOADING)),
        _by(_longer_optimizers(outside, activity), OPTIMIZER, _actors(activity, OPTIMIZER)),
        _by(own, OTHER, itself),
        _by(waited, OTHER, first),
        _by(outside, "unattributed", first),
    ]
    found = pl.concat(map(declared, parts)).with_columns(is_between=pl.lit(value=False))
    known = declared(met).with_columns(is_between=pl.lit(value=True))
    every = pl.concat([found, known]).filter(pl.col("idle_ns") != 0)
    return every.sort(*KEYS, "is_between", nulls_last=True)


def _before_collectives(iterations: _Iterations, between: pl.DataFrame) -> pl.DataFrame:
    """Return what all ranks waited for until the last collective between two steps, with who came last to it."""
    met = between.filter(pl.col("cause") != REDUCTION)
    keys = ["cause", "victim_rank", "culprit_rank"]
    waited = (
        met.rename({"rank": "culprit_rank", "ns": "idle_ns"}).join(
            rows.select("step", victim_rank="rank"), on="step"
        )
        for rows in iterations.bounds
    )
    return (
        reduced(waited, lambda rows: rows.group_by(keys).agg(pl.sum("idle_ns")))
        .join(
            iterations.ranks.rename({"pipeline": "culprit_pipeline"}),
            left_on="culprit_rank",
            right_on="rank",
            how="left",
        )
        .with_columns(culprit_peer=pl.lit(None))
    )


def _without_met(outside: pl.DataFrame, met: pl.DataFrame) -> pl.DataFrame:
    """Return the times outside of windows without those before collectives."""
    sums = met.group_by("victim_rank", "cause").agg(pl.sum("idle_ns"))
    for (cause,), part in sums.group_by("cause"):
        if cause in outside.columns:
            known = outside.select("rank").join(
                part, left_on="rank", right_on="victim_rank", how="left", maintain_order="left"
            )
            outside = outside.with_columns(
                (pl.col(str(cause)) - known["idle_ns"].fill_null(0)).alias(str(cause))
            )
    return outside


def _own_and_waited(outside: pl.DataFrame, own_work: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return `outside` with the other work of each rank itself, and with that of the rank that it waits for."""
    own_ns = outside.select("rank").join(own_work, on="rank", how="left", maintain_order="left")["own_ns"]
    own = outside.with_columns(pl.min_horizontal(OTHER, own_ns.fill_null(0)).alias(OTHER))
    return own, outside.with_columns(pl.col(OTHER) - own[OTHER])


def _actors(measured: OutsideActivity, activity: str) -> pl.DataFrame:
    """Return per rank (victim_rank) the rank whose activity it waits for.

    No rank for reductions and optimizer steps that take about as long on all.
    """
    enough = pl.col("active_ns") >= DOMINANT * pl.max("active_ns")
    lasting = measured.lasting(activity)
    if activity in (REDUCTION, OPTIMIZER) and lasting.select(enough.all()).item():
        return lasting.clear().select(culprit_rank="rank", victim_rank="rank")
    if activity == REDUCTION:
        # One inside of the window has its origin there.
        lasting = measured.lasting(AFTER)
    order = lasting.sort("active_ns", "rank", descending=[True, False])
    in_pipeline = (
        order.with_columns(enough=enough)
        .filter("enough")
        .unique("pipeline", keep="first")
        .select("pipeline", actor="rank")
    )
    return (
        lasting.with_columns(enough=enough)
        .join(in_pipeline, on="pipeline", how="left")
        .select(
            culprit_rank=pl.when("enough")
            .then("rank")
            .otherwise(pl.col("actor").fill_null(order["rank"].first())),
            victim_rank="rank",
        )
    )


def _longer_optimizers(outside: pl.DataFrame, activity: OutsideActivity) -> pl.DataFrame:
    """Return `outside` with the time of optimizer steps beyond the median of the ranks, which has no culprit."""
    usual_ns = activity.lasting(OPTIMIZER)["active_ns"].median()
    return outside.with_columns((pl.col(OPTIMIZER) - pl.lit(usual_ns)).clip(lower_bound=0))


def _first_ranks(iterations: _Iterations, activity: OutsideActivity) -> pl.DataFrame:
    """Return per rank (victim_rank) the one that begins the steps of its pipeline (culprit_rank).

    Empty if nothing was recorded between the steps: then it is unknown who was waited for.
    """
    pipelines = iterations.ranks
    if not activity.shows_others:
        return pipelines.clear().select(victim_rank="rank", culprit_rank="rank")
    usual = activity.first.sort("steps", "rank", descending=[True, False]).unique("pipeline", keep="first")
    first = usual.select("pipeline", culprit_rank="rank")
    return pipelines.join(first, on="pipeline").select("culprit_rank", victim_rank="rank")


def _by(outside: pl.DataFrame, cause: str, culprits: pl.DataFrame) -> pl.DataFrame:
    """Return a cause outside of windows, given the culprit of every victim."""
    of_rank = outside.select("rank", "pipeline")
    return (
        outside.select(victim_rank="rank", idle_ns=cause)
        .join(culprits, on="victim_rank")
        .join(of_rank, left_on="culprit_rank", right_on="rank")
        .select(
            "victim_rank",
            "idle_ns",
            "culprit_rank",
            culprit_pipeline="pipeline",
            cause=pl.lit(cause),
            culprit_peer=pl.lit(None),
        )
    )
