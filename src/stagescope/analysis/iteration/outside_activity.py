"""What ranks did in their iterations that others wait for outside of the windows, summed over steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.iteration.activities import LOADING, OPTIMIZER, REDUCTION, name_activities
from stagescope.analysis.iteration.shared_reductions import list_reductions
from stagescope.model.coverage import BOUNDS, covered_ns, unite
from stagescope.model.large_tables import reduced
from stagescope.vocabulary.kinds import ACTION_KINDS, TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Iterable

KINDS = {OPTIMIZER: "optimizer", LOADING: "other"}
"""The kind of the spans that show an activity."""
ACTIVITIES = (REDUCTION, LOADING, OPTIMIZER)
AFTER = "after_windows"
"""The reductions after the last window of a step."""
RANK = ("pipeline", "rank")


class OutsideActivity(NamedTuple):
    """How long ranks were active in some steps, and which of them began the steps of their pipelines.

    `active` has pipeline, rank, and the nanoseconds of each of ACTIVITIES and of AFTER. `first` has pipeline, rank and
    in how many steps it was the first one. `shows_others`: more than actions and transfers was recorded.
    """

    active: pl.DataFrame
    first: pl.DataFrame
    shows_others: bool

    def lasting(self, activity: str) -> pl.DataFrame:
        """Return the time of an activity for every rank: pipeline, rank and active_ns."""
        return self.active.select(*RANK, active_ns=activity)


def measure_outside_activity(spans: pl.DataFrame, iterations: pl.DataFrame) -> OutsideActivity:
    """Return what ranks did in these iterations; `iterations` is the table ITERATIONS, `spans` are those of the run."""
    bounds = iterations.select("step", "pipeline", "rank", "start_ns", "end_ns")
    is_action = pl.col("kind").is_in(ACTION_KINDS)
    is_bounded = pl.col("step").is_in(bounds["step"].unique().implode())
    acting = spans.lazy().filter(is_action & is_bounded).select("step", *BOUNDS).collect()
    active = {name: _active(spans, name) for name in ACTIVITIES}
    times = {name: _covered_ns(bounds, union) for name, union in active.items()}
    times[AFTER] = _covered_ns(_after_windows(bounds, acting), active[REDUCTION])
    others = ~is_action & ~pl.col("kind").is_in(TRANSFERS)
    return OutsideActivity(
        _sum_active(bounds.select(RANK).with_columns(**times)),
        _first_ranks(bounds, acting),
        spans.select(others.any()).item(),
    )


def add_outside_activity(parts: Iterable[OutsideActivity]) -> OutsideActivity:
    """Return the sums of what ranks did in different steps. The parts are added one after the other."""
    kept = list(parts)
    return OutsideActivity(
        reduced((each.active for each in kept), _sum_active),
        reduced(
            (each.first for each in kept), lambda rows: rows.group_by(RANK).agg(pl.sum("steps")).sort(RANK)
        ),
        any(each.shows_others for each in kept),
    )


def _sum_active(times: pl.DataFrame) -> pl.DataFrame:
    return times.group_by(RANK).agg(pl.sum(*ACTIVITIES, AFTER)).sort(RANK)


def _active(spans: pl.DataFrame, activity: str) -> pl.DataFrame:
    """Return the union of the spans of an activity, per rank."""
    acting = list_reductions(spans) if activity == REDUCTION else spans.filter(kind=KINDS[activity])
    return unite(name_activities(acting).filter(pl.col("activity") == activity))


def _covered_ns(bounds: pl.DataFrame, active: pl.DataFrame) -> pl.Series:
    return covered_ns(bounds.select("rank", window_start_ns="start_ns", window_end_ns="end_ns"), active)


def _after_windows(bounds: pl.DataFrame, acting: pl.DataFrame) -> pl.DataFrame:
    """Return the bounds of iterations from the end of the last window on: until then, replicas are waited for."""
    of_ranks = pl.col("rank").is_in(bounds["rank"].unique().implode())
    ends = acting.lazy().filter(of_ranks).group_by("step").agg(ended_ns=pl.max("end_ns")).collect()
    start_ns = pl.min_horizontal(pl.coalesce("ended_ns", "start_ns"), "end_ns")
    return bounds.join(ends, on="step", how="left", maintain_order="left").with_columns(start_ns=start_ns)


def _first_ranks(bounds: pl.DataFrame, acting: pl.DataFrame) -> pl.DataFrame:
    """Return in how many steps a rank was the first of its pipeline: pipeline, rank and steps."""
    ranks = bounds.select("rank", "pipeline").unique()
    return (
        acting.lazy()
        .group_by("step", "rank")
        .agg(pl.min("start_ns"))
        .join(ranks.lazy(), on="rank")
        .sort("start_ns", "rank")
        .group_by("step", "pipeline", maintain_order=True)
        .agg(pl.first("rank"))
        .group_by("pipeline", "rank")
        .agg(steps=pl.len())
        .collect()
    )
