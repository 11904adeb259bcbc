"""Findings as a table."""

import polars as pl
import pytest

from planted_runs import Shape, random_times, run
from stagescope.analysis import build_explained_report
from stagescope.analysis.findings import FINDINGS
from stagescope.model import empty_timeline


def test_slow_replica_is_a_row_with_cost_share_and_confidence():
    times = random_times(Shape(steps=8), seed=3)
    times.action_ns[:, 1, :, 2, :] *= 1.2
    report = build_explained_report(run(times))
    row = report.findings.row(by_predicate=pl.col("subject") == "rank 6", named=True)
    assert row["code"] == "rank.slow"
    assert row["evidence"] in report.verdict.findings
    assert row["cost_ns"] == pytest.approx(0.2 * 8 * 30e6, rel=0.1)
    step_ns = report.steps.filter("in_totals")["window_ns"].mean()
    assert row["share"] == pytest.approx(row["cost_ns"] / step_ns)
    assert 0.95 < row["confidence"] <= 1


def test_outlier_step_has_a_cost_and_no_confidence():
    times = random_times(Shape(steps=12), seed=4)
    times.action_ns[:, 0, 7, 1, :] *= 2
    findings = build_explained_report(run(times)).findings
    row = findings.row(by_predicate=pl.col("subject") == "step 7", named=True)
    assert (row["code"], row["confidence"]) == ("step.outlier", None)
    assert row["cost_ns"] > 0


def test_empty_timeline_has_no_findings():
    findings = build_explained_report(empty_timeline()).findings
    assert findings.is_empty()
    assert dict(findings.schema) == dict(FINDINGS.schema)


def test_slow_replica_is_one_finding_and_named_in_the_verdict():
    times = random_times(Shape(pipelines=2, steps=12))
    times.action_ns[:, 1] *= 1.2
    report = build_explained_report(run(times))
    assert report.findings["code"].to_list() == ["replica.slow", "replica.last"]
    assert report.findings["evidence"][0].startswith("All 4 ranks of the pipeline of rank 4 are ")
    assert "straggler (all ranks of the pipeline of rank 4)" in report.verdict.slowest
    assert report.verdict.findings == tuple(report.findings["evidence"])


def test_slow_rank_is_named_in_the_verdict():
    times = random_times(Shape(pipelines=2, steps=12))
    times.action_ns[:, 1, :, 2] *= 1.2
    report = build_explained_report(run(times))
    assert "replica.slow" not in report.findings["code"]
    assert "straggler (rank 6 is 20 % slower)" in report.verdict.slowest
