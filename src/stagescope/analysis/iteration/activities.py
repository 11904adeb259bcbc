"""What a rank does outside its pipeline windows, by name: the activities that an iteration is divided among."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.coverage import BOUNDS, covered_ns, unite
from stagescope.vocabulary.kinds import ACTION_KINDS, COLLECTIVE, COMPUTE, TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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


class ActivityUnions:
    """Unions of what name_activities returns; each is computed once, since several intervals are looked at with it."""

    def __init__(self, named: pl.DataFrame) -> None:
        self.named = named
        self._known: dict[tuple[str, tuple[str, ...]], pl.DataFrame] = {}

    def of_each(self, wanted: Sequence[str]) -> pl.DataFrame:
        """Return the union of the spans of some activities, per rank."""
        return self._once("each", wanted, lambda: unite(self._rows(wanted)))

    def first_of_each(self) -> list[pl.DataFrame]:
        """Return the unions of the first of ACTIVITIES, of the first two, and so on."""
        return [self.of_each(ACTIVITIES[: count + 1]) for count in range(len(ACTIVITIES))]

    def of_all(self, wanted: Sequence[str], ranks: pl.Series) -> pl.DataFrame:
        """Return, for every one of `ranks`, the union of the spans of all ranks with some activities.

        `ranks` are the same in all calls.
        """

        def united() -> pl.DataFrame:
            every = self._rows(wanted).with_columns(rank=pl.lit(0, self.named.schema["rank"]))
            merged = unite(every).select("start_ns", "end_ns")
            return unite(ranks.unique().to_frame("rank").join(merged, how="cross"))

        return self._once("all", wanted, united)

    def with_others(self, wanted: Sequence[str], ranks: pl.Series) -> pl.DataFrame:
        """Return, for every one of `ranks`, the union of all its own spans and of what `of_all` returns.

        A rank that does nothing outside the windows waits for the ranks that do something.
        """

        def united() -> pl.DataFrame:
            both = (self.of_each(ACTIVITIES), self.of_all(wanted, ranks))
            return unite(pl.concat([each.select(BOUNDS) for each in both]))

        return self._once("others", wanted, united)

    def _rows(self, wanted: Sequence[str]) -> pl.DataFrame:
        return self.named.filter(pl.col("activity").is_in(list(wanted)))

    def _once(self, how: str, wanted: Sequence[str], united: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        key = (how, tuple(wanted))
        if key not in self._known:
            self._known[key] = united()
        return self._known[key]


def without_reductions(named: pl.DataFrame) -> pl.DataFrame:
    """Return the union of what a rank computes or loads, per rank: what it does although it may be waited for."""
    computes = (pl.col("lane") == COMPUTE) | (pl.col("activity") == LOADING)
    return unite(named.filter(computes))


def covered_with_awaited(
    interval: pl.DataFrame, awaited: pl.Series, own: pl.DataFrame, work: pl.DataFrame
) -> pl.Series:
    """Return how many ns of each interval `own` covers for its rank, or `work` for the rank that is waited for then.

    `interval` is as covered_ns expects it, `awaited` has the rank for each row, null if it is unknown; `own` and `work`
    are unions.
    """
    keyed = interval.with_columns(awaited=awaited)
    pairs = keyed.select("rank", "awaited").unique().sort("rank", "awaited")
    done = pairs.join(work.select(BOUNDS), left_on="awaited", right_on="rank")
    if done.is_empty():
        return covered_ns(interval, own)
    # Who is waited for may change from step to step, so a pair of ranks counts as a rank here.
    pairs = pairs.with_columns(pair=pl.int_range(pl.len(), dtype=pl.Int64))
    every = [
        each.join(pairs, on=on).select("start_ns", "end_ns", rank="pair")
        for each, on in ((own, ["rank"]), (done, ["rank", "awaited"]))
    ]
    of_pair = keyed.join(pairs, on=["rank", "awaited"], how="left", nulls_equal=True, maintain_order="left")
    return covered_ns(interval.with_columns(rank=of_pair["pair"]), unite(pl.concat(every)))
