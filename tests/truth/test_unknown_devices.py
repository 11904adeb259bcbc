"""Slow devices are named with what they cost; without replicas, that it may be the work of their stages is stated."""

from __future__ import annotations

import re

import pytest

from stagescope.analysis import build_explained_report
from truth.causes import Place, slow_link, slow_rank, slow_stages
from truth.engine import simulate
from truth.plan import DOWN, MS, Costs, Shape, make_plan
from truth.spans import timeline_of

UNKNOWN = "which no replica can show"


def report_of(plan):
    return build_explained_report(timeline_of(simulate(plan)))


def gain_ns(base, plan):
    return simulate(plan).iteration_ns - simulate(base).iteration_ns


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("ranks", [(1, 2), (1, 3)])
def test_two_slow_devices_of_one_pipeline_are_named_and_fixed_together(replicas, ranks):
    base = make_plan(Shape(replicas=replicas), Costs(), 0)
    plan = slow_rank(slow_rank(base, Place(ranks[0]), 1.25), Place(ranks[1]), 1.25)
    report = report_of(plan)
    names = f"ranks {ranks[0]} and {ranks[1]}"
    assert f"straggler ({names} are " in report.verdict.why
    assert report.verdict.improvement.startswith(f"Fix first: {names} as fast as their replicas, ")
    first = report.improvements.row(0, named=True)
    assert first["gain_ns"] == pytest.approx(gain_ns(base, plan), rel=0.02)
    assert UNKNOWN not in str(report.verdict)


@pytest.mark.parametrize("ranks", [(1,), (1, 2), (1, 3)])
def test_without_replicas_the_devices_or_the_layers_are_the_cause(ranks):
    base = make_plan(Shape(), Costs(), 0)
    plan = base
    for rank in ranks:
        plan = slow_rank(plan, Place(rank), 1.25)
    report = report_of(plan)
    names = " and ".join(map(str, ranks))
    several = "s" * (len(ranks) > 1)
    assert f", or rank{several} {names} {'are' if several else 'is'} slow)" in report.verdict.why
    assert f"stage imbalance (stage{several} {names} take" in report.verdict.why
    verdict = report.verdict.improvement
    assert verdict.startswith("Redesign: layers moved from stage")
    assert f" Fix: rank{several} {names} as fast as the ranks of other stages (if " in verdict
    assert UNKNOWN in verdict
    (row,) = (row for row in report.improvements.to_dicts() if UNKNOWN in row["condition"])
    assert row["high_step_ns"] == row["measured_step_ns"]
    assert row["gain_ns"] == pytest.approx(gain_ns(base, plan), rel=0.02)


def test_a_stage_with_more_work_in_all_replicas_has_no_slow_device():
    report = report_of(slow_stages(make_plan(Shape(replicas=2), Costs(), 0), {1: 1.25, 2: 1.25}))
    assert "stage imbalance (stages 1 and 2 take 15." in report.verdict.why
    assert " slow" not in str(report.verdict).replace("slower", "")
    assert UNKNOWN not in str(report.verdict)


def test_of_a_single_step_it_is_stated_as_well():
    base = make_plan(Shape(steps=1), Costs(), 0)
    report = report_of(slow_rank(base, Place(2), 1.25))
    assert "% longer, or rank 2 is slow)" in report.verdict.why


def test_it_is_stated_beside_a_layout_although_there_is_a_fix_of_a_known_cause():
    base = make_plan(Shape(), Costs(), 0)
    report = report_of(slow_link(slow_stages(base, {3: 1.3}), DOWN, 1, 4 * MS))
    heads = re.findall(r"(?:^|\. )([A-Z][a-z ]+): ([a-z ]+)", report.verdict.improvement)
    assert [(head, text.split()[0]) for head, text in heads[:3]] == [
        ("Redesign", "layers"),
        ("Fix", "the"),
        ("Fix", "rank"),
    ]
    assert UNKNOWN in report.verdict.improvement
