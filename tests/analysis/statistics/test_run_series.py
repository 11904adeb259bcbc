"""A run as series with one value per step."""

import polars as pl
import pytest

from planted_runs import Shape, random_times, run
from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.idle.ledger import build_ledger
from stagescope.analysis.statistics.run_series import (
    ACTION,
    KEY,
    action_series,
    find_action_costs,
    link_series,
    rank_series,
    step_series,
)

SHAPE = Shape(pipelines=2, stages=2, steps=3)


def test_parts_sum_to_the_step():
    series = step_series(build_ledger(find_actions(run(random_times(SHAPE)))).steps)
    whole = series.filter(pl.col("subject") == "step").sort("step")["value_ns"]
    parts = (
        series.filter(pl.col("subject") == "part")
        .group_by("step")
        .agg(pl.sum("value_ns"))
        .sort("step")["value_ns"]
    )
    assert parts.to_list() == pytest.approx(whole.to_list())
    assert list(series.columns) == [*KEY, "step", "value_ns", "clock_error_ns"]


def test_actions_average_over_replicas_and_ranks_do_not():
    times = random_times(SHAPE)
    actions = find_action_costs(run(times))
    shared = actions.select(ACTION).unique()
    of_stage = (
        action_series(actions, shared)
        .filter((pl.col("stage") == 1) & (pl.col("kind") == "forward"))
        .sort("step")
    )
    assert of_stage["value_ns"].to_list() == pytest.approx(
        times.action_ns[0, :, :, 1].sum(axis=-1).mean(axis=0)
    )
    of_rank = rank_series(actions, shared).filter(pl.col("rank") == 3).sort("step")
    assert of_rank["value_ns"].to_list() == pytest.approx(times.action_ns[:, 1, :, 1].sum(axis=(0, 2)))


def test_unshared_actions_do_not_count():
    actions = find_action_costs(run(random_times(SHAPE)))
    shared = actions.select(ACTION).unique().filter(pl.col("microbatch") < 4)
    assert (
        rank_series(actions, shared)["value_ns"].sum()
        == actions.filter(pl.col("microbatch") < 4)["duration_ns"].sum()
    )


def test_link_costs_its_median_times_its_messages():
    times = random_times(SHAPE)
    times.message_ns[0, 0, :, 1] = 300_000
    forward = link_series(run(times)).filter((pl.col("kind") == "forward") & (pl.col("rank") == 0))
    assert forward["value_ns"].to_list() == [8 * 300_000.0] * 3
    assert forward["clock_error_ns"].to_list() == [0.0] * 3
