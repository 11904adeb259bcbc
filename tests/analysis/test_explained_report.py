"""Reports with an explanation."""

from dataclasses import replace

import polars as pl

from drawing import timeline_from_text
from explained_runs import schedule_run
from machines import on_machines
from stagescope.analysis import build_explained_report, build_report
from stagescope.analysis.findings import FINDINGS
from stagescope.analysis.graph.critical_path import CRITICAL_PATH
from stagescope.analysis.graph.slack import SLACK
from stagescope.analysis.idle.intervals import IDLE_INTERVALS
from stagescope.analysis.idle.ledger import LEDGER
from stagescope.analysis.iteration.culprits import CULPRITS
from stagescope.analysis.prediction.improvements import IMPROVEMENTS
from stagescope.analysis.statistics.outlier_actions import OUTLIER_ACTIONS
from stagescope.analysis.statistics.stage_work import STAGE_WORK
from stagescope.analysis.totals import REPORT_RANKS, REPORT_STEPS
from stagescope.model import empty_timeline
from stagescope.model.diagnostics import Diagnostic


def test_explained_report_has_the_same_metrics():
    timeline = schedule_run(slower={3: 1.3})
    whole, figures = build_explained_report(timeline), build_report(timeline)
    assert whole.steps.equals(figures.steps)
    assert whole.ranks.equals(figures.ranks)
    assert whole.bubble == figures.bubble
    assert figures.explanation is None
    assert whole.verdict is not None


def test_earlier_diagnostics_are_kept_once_and_errors_come_first():
    timeline = timeline_from_text("F0 B0\n. F0 B0").with_diagnostics(
        [Diagnostic("error", "lost", code="test.finding")]
    )
    diagnostics = build_explained_report(timeline).diagnostics
    assert diagnostics[0] == Diagnostic("error", "lost", code="test.finding")
    assert len(diagnostics) == len(set(diagnostics))


def test_every_table_has_its_declared_columns():
    report = build_explained_report(schedule_run(slower={3: 1.3}, hop_ns=1_000))
    declared = {
        "steps": REPORT_STEPS, "ranks": REPORT_RANKS, "stages": STAGE_WORK, "ledger": LEDGER,
        "idle": IDLE_INTERVALS, "critical_path": CRITICAL_PATH, "slack": SLACK, "findings": FINDINGS,
        "improvements": IMPROVEMENTS, "culprits": CULPRITS, "outliers": OUTLIER_ACTIONS,
    }  # fmt: skip
    for name, table in declared.items():
        frame = getattr(report, name)
        assert dict(frame.schema) == dict(table.schema), name
        assert getattr(report, name) is frame, f"{name} is computed again"


def test_tables_refer_to_rows_of_the_given_timeline_if_pipelines_are_left_out():
    text = "F0.0 . . B0.0\n. F1.0 B1.0 ."
    both = timeline_from_text(f"{text}\n{text}")
    coordinates = {"dp": [0, 0, 1, 1], "pp": [0, 1, 0, 1], "tp": [0] * 4, "cp": [0] * 4}
    placed = [pl.Series(name, values, pl.Int32) for name, values in coordinates.items()]
    replicas = replace(both, ranks=both.ranks.with_columns(placed))
    machines = {0: "a", 1: "c", 2: "a", 3: "b"}
    timeline = on_machines(replicas, machines, {"a": (0, 0), "b": (-5, 5), "c": None})
    report = build_explained_report(timeline)
    for table, column in ((report.critical_path, "row"), (report.slack, "row"), (report.idle, "before_row")):
        spans = timeline.spans[table[column].drop_nulls().to_list()]
        assert set(spans["rank"]) == {2, 3}


def test_repr_is_the_verdict_and_a_small_table():
    report = build_explained_report(schedule_run(ranks=16, microbatches=16))
    lines = repr(report).splitlines()
    assert str(report.verdict) in lines[0]
    assert lines[-1] == "... 8 more ranks"
    assert len(lines) == 11
    assert repr(build_report(empty_timeline())) == "Report: 0 ranks, no steps"
