"""Diagnostics for data that the metrics leave out."""

import polars as pl
import pytest

from drawing import timeline_from_text
from stagescope.analysis import build_report
from stagescope.analysis.completeness.missing_data import errors_first
from stagescope.model.diagnostics import Diagnostic, diagnostics_table


def test_rank_without_actions_is_left_out_and_reported():
    report = build_report(timeline_from_text("F0 B0\n. .\n. ."))
    assert report.ranks["rank"].to_list() == [0]
    assert report.diagnostics == (
        Diagnostic(
            "warning",
            "no forward or backward action of ranks 1-2; not in the totals",
            count=2,
            code="ranks.no_actions",
        ),
    )


def test_rank_without_a_step_is_not_idle_in_it():
    whole = timeline_from_text("F0 B0\nF0 B0")
    later = [timeline_from_text("F0 B0", step=step, origin_ns=step * 10_000).spans for step in (1, 2, 5)]
    report = build_report(whole.with_spans(pl.concat([whole.spans, *later])))
    assert report.bubble.fraction == 0.0
    assert report.diagnostics == (
        Diagnostic(
            "warning",
            "no forward or backward action in steps 1-2, 5; not counted in them",
            rank=1,
            count=3,
            code="ranks.missing_step",
        ),
    )


@pytest.mark.parametrize(("steps", "severity"), [((1,), "warning"), ((1, 2), "error")])
def test_cut_off_recording_of_a_pipeline_that_went_on_is_an_error(steps, severity):
    whole = timeline_from_text("F0 B0\nF0 B0")
    later = [timeline_from_text("F0 B0", step=step, origin_ns=step * 10_000).spans for step in steps]
    cut = whole.with_diagnostics([Diagnostic("warning", "no end frame", rank=1, code="recording.no_end")])
    report = build_report(cut.with_spans(pl.concat([whole.spans, *later])))
    found = {each.code: each.severity for each in report.diagnostics}
    assert found["ranks.missing_step"] == severity


def test_actions_without_a_step_are_counted():
    timeline = timeline_from_text("F0 F1 B0 B1")
    stepless = timeline.spans.with_columns(step=pl.when(pl.col("microbatch") == 0).then("step"))
    report = build_report(timeline.with_spans(stepless))
    assert report.diagnostics == (
        Diagnostic(
            "warning",
            "forward or backward actions have no step; they are not in any window",
            count=2,
            code="actions.no_step",
        ),
    )


def test_forwards_of_evaluations_are_no_fault():
    timeline = timeline_from_text("F0 F1 B0 B1")
    evaluated = timeline.spans.filter(kind="forward").with_columns(pl.lit(None, pl.Int32).alias("step"))
    report = build_report(
        timeline.with_spans(timeline.spans.vstack(evaluated.select(timeline.spans.columns)))
    )
    assert [(row.severity, row.code, row.count) for row in report.diagnostics] == [
        ("info", "actions.evaluation", 2)
    ]


def test_errors_are_first_and_the_order_is_stable():
    rows = [
        Diagnostic("info", "b", code="test.finding"),
        Diagnostic("warning", "z", code="test.finding"),
        Diagnostic("info", "a", code="test.finding"),
        Diagnostic("error", "e", code="test.finding"),
    ]
    assert [row.message for row in errors_first(diagnostics_table(rows))] == ["e", "z", "b", "a"]
