"""What a rank does outside its pipeline windows, by name: the activities that an iteration is divided among."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.coverage import unite
from stagescope.vocabulary.kinds import ACTION_KINDS, COLLECTIVE, COMPUTE, TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Collection

OPTIMIZER, LOADING, REDUCTION, OTHER = "optimizer", "data_loading", "gradient_reduction", "other_work"
ACTIVITIES = (OPTIMIZER, LOADING, REDUCTION, OTHER)
"""In the order of precedence, where spans of one rank overlap: a reduction may run during an optimizer step."""

LOADING_NAMES = r"(?i)data.?(load|iterator)|load.?(micro.?)?batch|batch.?generator|(get|next).?batch"
"""Names of spans of kind ``other`` that load data: DeepSpeed's LoadMicroBatch, Megatron's timer batch-generator, and
what people write by hand.
"""


def shows_activity() -> pl.Expr:
    """Return whether a span between steps shows what its rank did.

    A collective does not: its rank may have waited for the others.
    """
    is_action = pl.col("kind").is_in(ACTION_KINDS) & pl.col("step").is_not_null()
    return ~is_action & ~pl.col("kind").is_in([*TRANSFERS, COLLECTIVE])


def name_activities(spans: pl.DataFrame) -> pl.DataFrame:
    """Return rank, start_ns, end_ns, lane and activity of the spans that show one."""
    named = pl.col("name").fill_null("")
    activity = (
        pl.when(pl.col("kind") == "optimizer")
        .then(pl.lit(OPTIMIZER))
        .when((pl.col("kind") == "other") & named.str.contains(LOADING_NAMES))
        .then(pl.lit(LOADING))
        .when(pl.col("kind") == "grad_reduce")
        .then(pl.lit(REDUCTION))
        .otherwise(pl.lit(OTHER))
    )
    return spans.select("rank", "start_ns", "end_ns", "lane", activity.cast(pl.String).alias("activity"))


def without_waits(named: pl.DataFrame, meetings: pl.DataFrame) -> pl.DataFrame:
    """Return what name_activities does, without the time in which a rank waited for the last one at a collective.

    The norm of the gradients is reduced within the optimizer step or the clipping of many trainings. A rank that waits
    there for a late one does not optimize. `meetings` is the table MEETINGS.
    """
    came_ns = pl.min_horizontal("last_ns", "done_ns")
    waited = meetings.filter("waited", came_ns > pl.col("arrived_ns"))
    waits = unite(waited.select("rank", start_ns="arrived_ns", end_ns=came_ns)).select(
        "rank", wait_ns="start_ns", came_ns="end_ns"
    )
    rows = named.with_row_index("row")
    of_spans = [
        waits.sort("wait_ns")
        .join_asof(
            rows.filter(pl.col("activity") == activity).sort("start_ns"),
            left_on="wait_ns",
            right_on="start_ns",
            by="rank",
            check_sortedness=False,
        )
        .filter(pl.col("came_ns") <= pl.col("end_ns"))
        .select("row", "wait_ns", "came_ns")
        for activity in (OPTIMIZER, OTHER)
    ]
    found = pl.concat(of_spans).sort("row", "wait_ns").group_by("row", maintain_order=True).all()
    pieces = (
        rows.join(found, on="row")
        .with_columns(
            start_ns=pl.concat_list("start_ns", "came_ns"), end_ns=pl.concat_list("wait_ns", "end_ns")
        )
        .explode("start_ns", "end_ns")
    )
    return pl.concat(
        [each.select(named.columns) for each in (rows.join(found, on="row", how="anti"), pieces)]
    )


def unite_activities(named: pl.DataFrame, wanted: Collection[str]) -> pl.DataFrame:
    """Return the union of the spans of some activities, per rank."""
    return unite(named.filter(pl.col("activity").is_in(list(wanted))))


def unite_with_others(named: pl.DataFrame, wanted: Collection[str], ranks: pl.Series) -> pl.DataFrame:
    """Return, for every one of `ranks`, the union of all its own spans and the spans of all ranks with some activities.

    A rank that does nothing outside the windows waits for the ranks that do something.
    """
    of_all = unite_of_all(named, wanted, ranks).select("rank", "start_ns", "end_ns")
    return unite(pl.concat([named.select("rank", "start_ns", "end_ns"), of_all]))


def unite_of_all(named: pl.DataFrame, wanted: Collection[str], ranks: pl.Series) -> pl.DataFrame:
    """Return, for every one of `ranks`, the union of the spans of all ranks with some activities."""
    every = named.filter(pl.col("activity").is_in(list(wanted)))
    merged = unite(every.with_columns(rank=pl.lit(0, named.schema["rank"]))).select("start_ns", "end_ns")
    return unite(ranks.unique().to_frame("rank").join(merged, how="cross"))


def without_reductions(named: pl.DataFrame) -> pl.DataFrame:
    """Return the union of what a rank computes or loads, per rank: what it does although it may be waited for."""
    computes = (pl.col("lane") == COMPUTE) | (pl.col("activity") == LOADING)
    return unite(named.filter(computes))
