"""Culprits of the idle time outside of the windows (culprits.py)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.iteration.activities import LOADING, OPTIMIZER, OTHER, REDUCTION
from stagescope.analysis.iteration.attendance import find_attendance
from stagescope.analysis.iteration.culprits import CULPRIT, CULPRITS, DOMINANT, KEYS, declared
from stagescope.analysis.iteration.outside_activity import AFTER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagescope.analysis.iteration.outside_activity import OutsideActivity


class Participants(NamedTuple):
    """The `ranks` of IterationTotals, and the parts of the table ITERATIONS."""

    ranks: pl.DataFrame
    iterations: Iterable[pl.DataFrame]


@dataclass(frozen=True)
class OutsideCulprits:
    """Culprits of time outside of the windows, summed over steps.

    `named` has rows of CULPRITS, a few for each victim. `met` is what all ranks wait for before the last collective
    between two steps: one table of all victims might have a row for every two ranks, so it has a `group` of victims
    instead, and idle_ns is that of each of them. `groups` has the ranks of each group (group and rank).
    """

    named: pl.DataFrame
    met: pl.DataFrame
    groups: pl.DataFrame

    def rows(self) -> pl.DataFrame:
        """Return all rows of CULPRITS, with what several victims wait for."""
        shared = self.met.join(self.groups.rename({"rank": "victim_rank"}), on="group")
        return pl.concat([self.named, shared.select(self.named.columns)])

    def row_count(self) -> int:
        """Return how many rows `rows` returns."""
        sizes = self.groups.group_by("group").len()
        return self.named.height + int(self.met.join(sizes, on="group")["len"].sum())

    def only(self, is_chosen: pl.Expr) -> OutsideCulprits:
        """Return some causes, or some culprits."""
        return replace(self, named=self.named.filter(is_chosen), met=self.met.filter(is_chosen))

    def per_culprit(self, is_chosen: pl.Expr) -> pl.DataFrame:
        """Return the sums over all victims: culprit_rank, is_between (whether it is of `met`), and idle_ns."""
        sizes = self.groups.group_by("group").len()
        shared = self.met.filter(is_chosen).join(sizes, on="group")
        parts = [
            self.named.filter(is_chosen).select("culprit_rank", "idle_ns", is_between=pl.lit(value=False)),
            shared.select("culprit_rank", pl.col("idle_ns") * pl.col("len"), is_between=pl.lit(value=True)),
        ]
        return (
            pl.concat(parts)
            .group_by("culprit_rank", "is_between", maintain_order=True)
            .agg(pl.sum("idle_ns"))
        )


NO_GROUPS = pl.DataFrame(schema={"group": pl.UInt32, "rank": pl.Int32})
NOTHING_MET = CULPRITS.empty().drop("victim_rank").with_columns(group=pl.lit(None, pl.UInt32))
NO_CULPRITS = OutsideCulprits(CULPRITS.empty(), NOTHING_MET, NO_GROUPS)


def find_outside_culprits(
    participants: Participants,
    outside: pl.DataFrame,
    activity: OutsideActivity,
    between: pl.DataFrame,
    own_work: pl.DataFrame,
) -> OutsideCulprits:
    """Return the culprits of time outside of the windows, summed over steps: of BEYOND, and unattributed.

    `outside` is from outside_windows, `activity` from measure_outside_activity and `own_work` from measure_own_work,
    all for the same steps.
    """
    ranks = participants.ranks
    if ranks.is_empty():
        return NO_CULPRITS
    met, groups = _before_collectives(participants, between)
    outside = _without_met(outside, met, groups)
    itself, first = (
        outside.select(victim_rank="rank", culprit_rank="rank"),
        _first_ranks(ranks, activity),
    )
    own, waited = _own_and_waited(outside, own_work)
    parts = [
        *(_by(outside, name, _actors(activity, name)) for name in (REDUCTION, LOADING)),
        _by(_longer_optimizers(outside, activity), OPTIMIZER, _actors(activity, OPTIMIZER)),
        _by(own, OTHER, itself),
        _by(waited, OTHER, first),
        _by(outside, "unattributed", first),
    ]
    named = pl.concat(map(declared, parts)).filter(pl.col("idle_ns") != 0)
    return OutsideCulprits(named.sort(KEYS, nulls_last=True), met, groups)


def _before_collectives(
    participants: Participants, between: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return what all ranks waited for until the last collective between two steps, with who came last to it.

    The two tables are `met` and `groups` of OutsideCulprits.
    """
    met = between.filter(pl.col("cause") != REDUCTION)
    if met.is_empty():
        return NOTHING_MET, NO_GROUPS
    ranks = participants.ranks
    groups, steps = find_attendance(participants.iterations, ranks["rank"], met["step"])
    sums = (
        met.join(steps, on="step").group_by("cause", "group", culprit_rank="rank").agg(idle_ns=pl.sum("ns"))
    )
    places = ranks.rename({"rank": "culprit_rank", "pipeline": "culprit_pipeline"})
    placed = sums.join(places, on="culprit_rank", how="left").with_columns(culprit_peer=pl.lit(None))
    named = placed.select(pl.col(name).cast(dtype) for name, dtype in NOTHING_MET.schema.items())
    shown = named.filter(pl.col("idle_ns") != 0)
    return shown.sort("cause", *CULPRIT, "group", nulls_last=True), groups


def _without_met(outside: pl.DataFrame, met: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """Return the times outside of windows without those before collectives."""
    sums = met.group_by("group", "cause").agg(pl.sum("idle_ns"))
    for (cause,), part in sums.group_by("cause"):
        if cause in outside.columns:
            of_ranks = groups.join(part, on="group").select("rank", "idle_ns")
            known = outside.select("rank").join(of_ranks, on="rank", how="left", maintain_order="left")
            met_ns = known["idle_ns"].fill_null(0).cast(outside.schema[str(cause)])
            outside = outside.with_columns((pl.col(str(cause)) - met_ns).alias(str(cause)))
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


def _first_ranks(ranks: pl.DataFrame, activity: OutsideActivity) -> pl.DataFrame:
    """Return per rank (victim_rank) the one that begins the steps of its pipeline (culprit_rank).

    Empty if nothing was recorded between the steps: then it is unknown who was waited for.
    """
    if not activity.shows_others:
        return ranks.clear().select(victim_rank="rank", culprit_rank="rank")
    usual = activity.first.sort("steps", "rank", descending=[True, False]).unique("pipeline", keep="first")
    first = usual.select("pipeline", culprit_rank="rank")
    return ranks.join(first, on="pipeline").select("culprit_rank", victim_rank="rank")


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
