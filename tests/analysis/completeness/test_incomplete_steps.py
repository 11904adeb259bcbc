"""Incomplete steps."""

import polars as pl
import pytest

from drawing import timeline_from_text
from explained_runs import schedule_run
from stagescope import api as workflow
from stagescope.analysis import build_report
from stagescope.analysis.completeness.incomplete_steps import (
    find_incomplete_steps,
    incomplete_step_diagnostics,
)
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
