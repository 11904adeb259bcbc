"""Incomplete steps."""

import polars as pl
import pytest

import planted_runs
from drawing import timeline_from_text
from explained_runs import schedule_run
from stagescope import api as workflow
from stagescope.analysis import build_explained_report, build_report
from stagescope.analysis.completeness.incomplete_steps import (
    find_incomplete_steps,
    find_steps_without_ranks,
    incomplete_step_diagnostics,
)
from stagescope.model.bubbles import step_bubbles
from stagescope.model.pipelines import find_pipelines
from stagescope.schedules import NAMES, Costs, order


def incomplete(timeline):
    return find_incomplete_steps(timeline.spans, find_pipelines(timeline.spans, timeline.ranks))


def cut(timeline, rank, step, actions):
    """Return a timeline of which the last actions of a rank in a step, and all later ones, are lost."""
    own = timeline.spans.filter((pl.col("rank") == rank) & (pl.col("step") == step)).sort("start_ns")
    end_ns = own["start_ns"][-actions]
    return timeline.with_spans(
        timeline.spans.filter((pl.col("rank") != rank) | (pl.col("start_ns") < end_ns))
    )


def without(timeline, rank, *steps):
    """Return a timeline of which everything that a rank did in some steps is lost."""
    return timeline.with_spans(timeline.spans.filter((pl.col("rank") != rank) | ~pl.col("step").is_in(steps)))


def lacking(timeline):
    pipelines = find_pipelines(timeline.spans, timeline.ranks)
    return find_steps_without_ranks([step_bubbles(timeline.spans, pipelines)])


@pytest.mark.parametrize("name", NAMES)
def test_no_schedule_has_incomplete_steps(name):
    run = workflow.simulate(order(name, ranks=4, microbatches=8), Costs())
    assert incomplete(run.timeline) == set()


def test_truncated_file_makes_its_last_step_incomplete():
    assert incomplete(cut(schedule_run(), rank=0, step=1, actions=5)) == {1}


def test_incomplete_step_is_listed_and_not_in_totals():
    whole = build_report(schedule_run())
    report = build_report(cut(schedule_run(), rank=0, step=2, actions=5))
    assert report.steps["in_totals"].to_list() == [True, True, False]
    assert report.bubble.fraction == whole.bubble.fraction
    found = [row for row in report.diagnostics if row.code == "steps.incomplete"]
    assert [row.severity for row in found] == ["warning"]


def test_steps_count_if_all_are_incomplete_with_a_diagnostic():
    report = build_report(timeline_from_text("F0 F1 B0 B1\nF0 B0 . ."))
    assert report.steps["in_totals"].to_list() == [True]
    assert any(row.message.endswith("missing actions count as idle time") for row in report.diagnostics)


def test_stages_without_backwards_are_complete():
    assert incomplete(timeline_from_text("F0 F1 . . .\n. F0 F1 B0 B1")) == set()


def test_complete_steps_have_no_diagnostic():
    assert incomplete_step_diagnostics(set(), left_out=True) == []


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("lost", [{1}, {3, 4}, {1, 3, 6}])
def test_step_without_a_rank_that_usually_runs_is_incomplete(rank, lost):
    assert lacking(without(schedule_run(steps=8), rank, *lost)) == lost


@pytest.mark.parametrize("lost", [(0,), (7,), (0, 1, 2, 3, 4), (5, 6, 7), (1, 3, 5, 7), (1, 2, 3, 4, 5, 6)])
def test_rank_that_joins_or_ends_or_rarely_runs_lost_nothing(lost):
    assert lacking(without(schedule_run(steps=8), 2, *lost)) == set()


def test_steps_that_no_rank_recorded_are_not_missing_on_any():
    spans = schedule_run(steps=8).spans
    assert lacking(schedule_run().with_spans(spans.filter(~pl.col("step").is_in([2, 3, 4, 5])))) == set()


def test_replica_without_a_step_that_others_ran_is_not_incomplete():
    timeline = planted_runs.run(planted_runs.random_times(planted_runs.Shape(stages=2, steps=6), 0))
    spans = timeline.spans.filter(~pl.col("rank").is_in([0, 1]) | (pl.col("step") != 2))
    assert lacking(timeline.with_spans(spans)) == set()


def test_lost_step_of_a_rank_is_no_idle_time():
    whole = build_explained_report(schedule_run(steps=8))
    report = build_explained_report(without(schedule_run(steps=8), 2, 3, 4))
    assert report.steps.filter(~pl.col("in_totals"))["step"].to_list() == [3, 4]
    assert report.verdict.why == whole.verdict.why
    assert "unrecorded" not in report.verdict.improvement


def test_lost_step_of_a_rank_is_missing_data_and_a_cut_last_step_is_not():
    for timeline, severity in (
        (without(schedule_run(), 2, 1), "error"),
        (cut(schedule_run(), rank=0, step=2, actions=5), "warning"),
    ):
        [found] = [row for row in build_report(timeline).diagnostics if row.code == "steps.incomplete"]
        assert found.severity == severity
