"""Findings as a table."""

import re

import numpy as np
import polars as pl
import pytest

from planted_runs import Shape, random_times, run
from stagescope.analysis import build_explained_report
from stagescope.analysis.findings import FINDINGS, one_per_link
from stagescope.model import empty_timeline


def test_slow_replica_is_a_row_with_cost_share_and_confidence():
    times = random_times(Shape(steps=8), seed=3)
    times.action_ns[:, 1, :, 2, :] *= 1.2
    report = build_explained_report(run(times))
    row = report.findings.row(by_predicate=pl.col("subject") == "rank 6", named=True)
    assert row["code"] == "rank.slow"
    assert row["evidence"] in report.verdict.findings
    assert row["cost_ns"] == pytest.approx(0.2 * 8 * 30e6, rel=0.1)
    assert row["share"] == pytest.approx(row["cost_ns"] / report.iterations["iteration_ns"].mean())
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
    assert re.search(r"straggler \(rank 6 is (19.\d|20.\d) % slower\)", report.verdict.slowest)


def evidence(times):
    findings = build_explained_report(run(times)).findings
    return dict(findings.select("code", "evidence").rows())


def test_intermittent_rank_is_named_with_its_steps_instead_of_a_slow_rank():
    times = random_times(Shape(pipelines=2, steps=10))
    times.action_ns[:, 1, 4:7, 2] *= 1.2
    found = evidence(times)
    assert re.match(
        r"Rank 6 is (19|20)\.\d % slower than ranks of the same stage in 3 of 10 steps \(4-6\)\.",
        found["rank.intermittent"],
    )
    assert "rank.slow" not in found


def test_drifting_rank_is_named_instead_of_a_trend():
    times = random_times(Shape(pipelines=3, steps=20))
    times.action_ns[:, 2, :, 1] *= np.linspace(1, 1.09, 20)[:, None]
    found = evidence(times)
    assert re.match(
        r"Rank 9 drifts relative to ranks of the same stage: from [+-]0\.\d % in the first step to "
        r"\+[89]\.\d % in the last \(n = 20\)\.",
        found["rank.drifting"],
    )
    assert not {"rank.slow", "step.trend"} & set(found)


def test_small_imbalances_of_stages_are_one_finding_with_the_largest_first():
    times = random_times(Shape(pipelines=2, stages=6, steps=12, noise=0.005))
    for stage, factor in ((1, 1.07), (4, 1.05), (5, 1.09)):
        times.action_ns[:, :, :, stage] *= factor
    (sentence,) = evidence(times).values()
    assert re.match(
        r"Stages 5, 1 and 4 take \d\.\d to \d\.\d % longer than the mean of the other stages", sentence
    )


def test_one_stage_has_one_figure_everywhere():
    times = random_times(Shape(pipelines=2, steps=12))
    times.action_ns[:, :, :, 3] *= 1.237
    report = build_explained_report(run(times))
    text = f"{100 * (report.stages['work_to_others'][3] - 1):.1f} % longer"
    assert f"stage 3 takes {text}" in report.verdict.why
    assert f"Stage 3 takes {text}" in evidence(times)["stage.imbalance"]


def test_what_costs_less_than_half_a_percent_is_no_finding():
    times = random_times(Shape(pipelines=2, steps=20, noise=0.001))
    times.message_ns[0, 1, :, 2] *= 1.3
    times.action_ns[:, 1, :, 1] *= 1.004
    report = build_explained_report(run(times))
    table = report.explanation.stragglers.table
    assert table.filter(pl.col("p_value") < 1e-6).height
    assert report.findings.is_empty()


def test_link_with_slow_forwards_and_backwards_is_one_finding():
    link = {"subject": "link", "finding": "slow", "rank": 1, "peer": 2}
    rank = {"subject": "rank", "finding": "slow", "rank": 1, "peer": None, "extra_ns_per_step": 5.0}
    found = one_per_link(
        [
            {**link, "kind": "forward", "extra_ns_per_step": 3.0},
            rank,
            {**link, "kind": "backward", "extra_ns_per_step": 2.0},
            {**link, "peer": 0, "kind": "backward", "extra_ns_per_step": 1.0},
        ]
    )
    assert [(row["rank"], row["peer"], row["extra_ns_per_step"]) for row in found] == [
        (1, 2, 5.0), (1, None, 5.0), (1, 0, 1.0)
    ]  # fmt: skip
