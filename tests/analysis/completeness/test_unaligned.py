"""Pipelines across unaligned clocks."""

from dataclasses import replace

import polars as pl

from drawing import timeline_from_text
from machines import on_machines
from stagescope.analysis import build_explained_report, build_report
from stagescope.analysis.completeness.unaligned import (
    find_unaligned_ranks,
    keep_aligned_pipelines,
    unaligned_diagnostics,
)
from stagescope.model.pipelines import find_pipelines

TEXT = """
F0 . . B0
. F0 B0 .
"""
TWO = timeline_from_text(TEXT)
UNALIGNED = on_machines(TWO, {0: "a", 1: "b"}, {"a": (0, 0), "b": None})
TOGETHER = on_machines(TWO, {0: "a", 1: "b"}, {"a": (0, 0), "b": (-5, 5)})


def unaligned(timeline):
    return find_unaligned_ranks(timeline, find_pipelines(timeline.spans, timeline.ranks))


def test_pipeline_on_one_clock_is_measured():
    assert unaligned(TWO) == unaligned(TOGETHER) == []
    assert keep_aligned_pipelines(TOGETHER) is TOGETHER
    assert build_report(TOGETHER).bubble.fraction == 0.5


def test_pipeline_across_clocks_is_not_measured():
    assert unaligned(UNALIGNED) == [0, 1]
    report = build_report(UNALIGNED)
    assert report.bubble.fraction is None
    assert report.steps.is_empty()
    assert report.ranks.is_empty()
    assert report.unaligned == (0, 1)
    assert [row.count for row in report.diagnostics if row.code == "clock.pipeline_unaligned"] == [2]


def test_verdict_states_that_clocks_are_unaligned():
    verdict = build_explained_report(UNALIGNED).verdict
    assert verdict.why == "No pipeline has all its machines on one clock; there is nothing to explain."


def test_other_pipelines_are_still_measured():
    four = timeline_from_text("F0.0 . . B0.0\n. F1.0 B1.0 .\nF0.0 . . B0.0\n. F1.0 B1.0 .")
    coordinates = {"dp": [0, 0, 1, 1], "pp": [0, 1, 0, 1], "tp": [0] * 4, "cp": [0] * 4}
    placed = [pl.Series(name, values, pl.Int32) for name, values in coordinates.items()]
    replicas = replace(four, ranks=four.ranks.with_columns(placed))
    timeline = on_machines(replicas, dict(enumerate("aabc")), {"a": (0, 0), "b": (-5, 5), "c": None})
    report = build_report(timeline)
    assert report.unaligned == (2, 3)
    assert report.ranks["rank"].to_list() == [0, 1]
    assert set(keep_aligned_pipelines(timeline).spans["rank"]) == {0, 1}


def test_aligned_run_has_no_diagnostic():
    assert unaligned_diagnostics([]) == []
