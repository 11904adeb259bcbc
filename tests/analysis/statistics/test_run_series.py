"""A run as series with one value per step."""

import polars as pl
import pytest

from planted_runs import Shape, random_times, run
from stagescope.analysis.report import build_report
from stagescope.analysis.statistics.compared_spans import measure_compared, sum_actions, with_whole_backwards
from stagescope.analysis.statistics.run_series import (
    KEY,
    action_series,
    fold_unrecorded,
    iteration_series,
    link_series,
    rank_series,
    window_series,
)
from stagescope.model.pipelines import find_pipelines

SHAPE = Shape(pipelines=2, stages=2, steps=3)


def iterations(timeline):
    report = build_report(timeline)
    return iteration_series(report.step_losses, report.intermediates.unrecorded)


def test_parts_sum_to_the_iteration():
    series = iterations(run(random_times(SHAPE)))
    whole = series.filter(pl.col("subject") == "iteration").sort("step")["value_ns"]
    parts = (
        series.filter(pl.col("subject") == "part")
        .group_by("step")
        .agg(pl.sum("value_ns"))
        .sort("step")["value_ns"]
    )
    assert len(whole) == SHAPE.steps
    assert parts.to_list() == pytest.approx(whole.to_list())
    assert list(series.columns) == [*KEY, "step", "value_ns", "clock_error_ns"]


def test_the_step_is_the_longest_window_of_all_pipelines():
    report = build_report(run(random_times(SHAPE)))
    windows = report.intermediates.windows.bubbles.group_by("step").agg(pl.max("window_ns")).sort("step")
    assert window_series(report.steps)["value_ns"].to_list() == windows["window_ns"].to_list()


def test_actions_average_over_replicas_and_ranks_do_not():
    times = random_times(SHAPE)
    actions = sum_actions(run(times).spans)
    of_stage = (
        action_series(actions).filter((pl.col("stage") == 1) & (pl.col("kind") == "forward")).sort("step")
    )
    assert of_stage["value_ns"].to_list() == pytest.approx(
        times.action_ns[0, :, :, 1].sum(axis=-1).mean(axis=0)
    )
    of_rank = rank_series(actions).filter(pl.col("rank") == 3).sort("step")
    assert of_rank["value_ns"].to_list() == pytest.approx(times.action_ns[:, 1, :, 1].sum(axis=(0, 2)))


def test_both_halves_of_a_backward_count_as_one():
    actions = sum_actions(run(random_times(SHAPE)).spans)
    halves = actions.filter(pl.col("kind") == "backward").with_columns(pl.col("duration_ns") // 2)
    split = pl.concat([
        actions.filter(pl.col("kind") == "forward"),
        halves.with_columns(kind=pl.lit("backward_input")),
        halves.with_columns(kind=pl.lit("backward_weight")),
    ])  # fmt: skip
    united = action_series(with_whole_backwards(split)).sort("stage", "kind", "step")
    whole = action_series(actions).sort("stage", "kind", "step")
    assert united["kind"].to_list() == whole["kind"].to_list()
    assert united["value_ns"].to_list() == pytest.approx(whole["value_ns"].to_list(), abs=SHAPE.microbatches)


def test_a_part_that_only_one_run_recorded_is_unattributed_in_both():
    series = iterations(run(random_times(SHAPE)))
    without = series.filter(pl.col("part").ne_missing("exposed_communication"))
    (before, after), messages = fold_unrecorded((series, without))
    assert [message.split(" was ")[0] for message in messages] == ["exposed communication"]
    assert set(before["part"].drop_nulls()) == set(after["part"].drop_nulls())
    assert before["value_ns"].sum() == pytest.approx(series["value_ns"].sum())


def test_a_link_costs_its_median_message():
    times = random_times(SHAPE)
    times.message_ns[0, 0, :, 1] = 300_000
    timeline = run(times)
    links = measure_compared(timeline.spans, find_pipelines(timeline.spans, timeline.ranks), range(3)).links
    every = link_series(timeline, links, range(3))
    forward = every.filter((pl.col("kind") == "forward") & (pl.col("rank") == 0))
    assert forward["value_ns"].to_list() == [300_000.0] * 3
    assert forward["clock_error_ns"].to_list() == [0.0] * 3
