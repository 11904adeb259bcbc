"""Costs of actions per stage and rank."""

import polars as pl
from hypothesis import given, settings

from random_pipelines import arbitrary_timelines, timeline_of
from stagescope.analysis.statistics.stage_costs import (
    STAGE_COSTS,
    measure_stage_costs,
)
from stagescope.model import empty_timeline


def actions(lengths_ns: list[int], *, kind: str = "forward", **facts: int | None) -> list[dict]:
    """Return actions of these lengths, one micro-batch and one microsecond after the other."""
    start = {"rank": 0, "stage": 0, "step": 0, "lane": "compute", "kind": kind, **facts}
    return [
        {**start, "microbatch": number, "start_ns": 1_000 * number, "end_ns": 1_000 * number + length_ns}
        for number, length_ns in enumerate(lengths_ns)
    ]


def test_percentiles_are_measured_durations():
    lengths_ns = [*range(1, 100), 301]
    costs = measure_stage_costs(timeline_of(actions(lengths_ns), 1).spans)
    assert costs.select(STAGE_COSTS.names[5:]).row(0, named=True) == {
        "count": 100,
        "total_ns": 5251,
        "mean_ns": 53,
        "std_ns": 38,
        "min_ns": 1,
        "p10_ns": 11,
        "median_ns": 51,
        "p90_ns": 90,
        "p99_ns": 99,
        "max_ns": 301,
    }


def test_ranks_of_a_stage_are_listed_separately_and_together():
    rows = actions([10, 20]) + actions([40], rank=1)
    costs = measure_stage_costs(timeline_of(rows, 2).spans)
    assert costs.select("rank", "count", "mean_ns", "max_ns").rows() == [
        (0, 2, 15, 20),
        (1, 1, 40, 40),
        (None, 3, 23, 40),
    ]


def test_single_action_has_no_deviation():
    assert measure_stage_costs(timeline_of(actions([10]), 1).spans)["std_ns"].to_list() == [None, None]


def test_halves_of_pairs_are_listed_separately_with_the_whole_time():
    pair = [*actions([30], pair=7), *actions([50], kind="backward", stage=1, pair=7)]
    rows = actions([10]) + [
        {**row, "start_ns": row["start_ns"] + 100, "end_ns": row["end_ns"] + 100} for row in pair
    ]
    costs = measure_stage_costs(timeline_of(rows, 1).spans).filter(pl.col("rank") == 0)
    assert costs.select("stage", "kind", "is_pair", "mean_ns").rows() == [
        (0, "forward", False, 10),
        (0, "forward", True, 50),
        (1, "backward", True, 50),
    ]


def test_pair_id_of_a_single_action_makes_no_pair():
    assert measure_stage_costs(timeline_of(actions([10], pair=3), 1).spans)["is_pair"].to_list() == [
        False,
        False,
    ]


def test_actions_on_the_host_lane_or_without_stage_do_not_count():
    rows = actions([10]) + actions([90], lane="host") + actions([90], stage=None) + actions([90], kind="loss")
    assert measure_stage_costs(timeline_of(rows, 1).spans)["max_ns"].to_list() == [10, 10]


def test_timeline_without_actions_has_no_costs():
    bare = empty_timeline()
    found = measure_stage_costs(bare.spans)
    assert found.is_empty()
    assert dict(found.schema) == dict(STAGE_COSTS.schema)


@settings(max_examples=20, deadline=None)
@given(arbitrary_timelines())
def test_counts_and_sums_of_ranks_equal_those_of_the_stage(timeline):
    costs = measure_stage_costs(timeline.spans)
    key = ["stage", "chunk", "kind", "is_pair"]
    whole, parts = costs.filter(pl.col("rank").is_null()), costs.filter(pl.col("rank").is_not_null())
    sums = parts.group_by(key).agg(pl.sum("count", "total_ns"), pl.min("min_ns"), pl.max("max_ns"))
    joined = whole.join(sums, on=key, nulls_equal=True, suffix="_of_ranks")
    assert joined.height == whole.height
    for name in ("count", "total_ns", "min_ns", "max_ns"):
        assert joined[name].to_list() == joined[f"{name}_of_ranks"].to_list()
