"""The verdict."""

import re
from dataclasses import replace

import polars as pl
import pytest

from drawing import timeline_from_text
from explained_runs import explained
from planted_runs import Shape, random_times, run
from stagescope import api as workflow
from stagescope.analysis import build_explained_report
from stagescope.analysis.finding_sentences import straggler_sentence
from stagescope.analysis.verdict import give_verdict
from stagescope.model import empty_timeline
from stagescope.model.simulated import COST_UNIT_NS
from stagescope.reports.ledger_bars import ledger_bars
from stagescope.schedules import order
from stagescope.schedules.simulator import Costs
from stagescope.vocabulary.ratios import percent_text
from truth.causes import Place, slow_rank
from truth.engine import simulate
from truth.plan import Costs as PlannedCosts
from truth.plan import Shape as PlannedShape
from truth.plan import make_plan
from truth.spans import timeline_of


def points(sentence):
    causes = re.sub(r"\([^)]*\)", "", re.split(r" is (?:not compute|lost): ", sentence)[1])
    return [float(number) for number in re.findall(r"(?:^|, )(-?[\d.]+) ", causes)]


def lost_percent(sentence):
    return float(re.search(r"([\d.]+) % of the iteration", sentence)[1])


def test_textbook_run_has_a_schedule_bubble_only():
    verdict = explained().verdict
    assert verdict.why == (
        "1f1b, 4 stages x 8 micro-batches: 27.3 % of the iteration (330.0 ms) is not compute: "
        "27.3 points schedule bubble."
    )
    assert verdict.improvement.startswith("With more memory: schedule ")
    assert str(verdict) == f"{verdict.why} {verdict.improvement}"


def test_simulation_with_relative_costs_is_in_cost_units():
    actions = order("1f1b", ranks=4, microbatches=8)
    step = workflow.simulate(
        actions, Costs(forward=COST_UNIT_NS, backward=2 * COST_UNIT_NS), in_cost_units=True
    )
    improvement = workflow.analyze(step.timeline).verdict.improvement
    assert re.search(r"from 33 to between [\d.]+ and [\d.]+ cost units per step, ", improvement)


def test_slowest_stage_is_named_with_its_excess():
    why = explained(slower={2: 1.12}).verdict.why
    assert " stage imbalance (stage 2 takes 12.0 % longer, or rank 2 is slow)" in why


def test_transfers_and_launch_delays_have_points():
    why = explained(hop_ns=2_000_000, launch_delay_ns=300_000).verdict.why
    assert " exposed communication" in why
    assert " launch overhead" in why


@pytest.mark.parametrize("seed", range(4))
def test_points_are_the_values_of_the_table_and_leave_out_less_than_half_a_point_each(seed):
    slower = {seed % 4: 1 + 0.07 * seed}
    report = explained(slower=slower, hop_ns=700_000 * seed, launch_delay_ns=90_000)
    lost, why = report.explanation.lost_time, report.verdict.why
    fractions = [lost.fraction(name) for name in lost.causes_ns]
    shown = sorted((fraction for fraction in fractions if abs(fraction) >= 0.005), reverse=True)
    assert [f"{each:.1f} %" for each in points(why)] == [percent_text(each) for each in shown]
    assert f"{lost_percent(why):.1f} %" == percent_text(lost.lost_fraction)
    assert any(f"{points(why)[0]} %" in line for line in ledger_bars(lost))


def test_cause_that_saves_idle_time_is_negative():
    report = explained(slower={1: 1.2})
    lost = report.explanation.lost_time
    imbalance_ns = lost.causes_ns["stage_imbalance_ns"] + lost.causes_ns["jitter_ns"] + 30_000_000
    causes_ns = lost.causes_ns | {"jitter_ns": -30_000_000, "stage_imbalance_ns": imbalance_ns}
    shifted = replace(report.explanation, lost_time=lost._replace(causes_ns=causes_ns))
    verdict = give_verdict(report, shifted)
    assert re.search(r", -\d\.\d jitter\.$", verdict.why)
    assert sum(points(verdict.why)) == pytest.approx(lost_percent(verdict.why), abs=0.3)


def test_declared_name_in_another_spelling_is_kept():
    report = with_schedule("1F1B")
    assert report.verdict.why.startswith("1F1B, 2 stages")


def test_recognized_schedule_precedes_a_different_declared_one():
    report = with_schedule("gpipe")
    assert report.verdict.why.startswith("1f1b (declared: gpipe), 2 stages")


def with_schedule(name):
    timeline = timeline_from_text("F0 F1 B0 - F2 B1 - F3 B2 - B3 -\n. F0 B0 - F1 B1 - F2 B2 - F3 B3 -")
    ranks = timeline.ranks.with_columns(pl.lit(name).alias("schedule"))
    return build_explained_report(replace(timeline, ranks=ranks))


def test_redesign_that_needs_memory_is_stated_with_the_ranks_that_need_it():
    report = explained(slower={2: 1.2})
    redesigns = report.explanation.improvements.filter(pl.col("kind") == "redesign")
    free = redesigns.filter(~pl.col("needs_more_memory")).row(0, named=True)
    larger = redesigns.filter("needs_more_memory").row(0, named=True)
    assert f"Redesign: {free['change']}" in report.verdict.improvement
    assert f"With more memory: {larger['change']}" in report.verdict.improvement
    assert "pipeline ranks 1-3 hold more activations" in larger["memory"]
    alone = explained().verdict.improvement
    assert re.search(r"; pipeline ranks? .* instead of .* micro-batches \(rank \d\)\.$", alone)


def test_slow_replica_is_a_finding_with_its_confidence_interval():
    times = random_times(Shape(steps=8), seed=3)
    times.action_ns[:, 1, :, 2, :] *= 1.2
    findings = build_explained_report(run(times)).verdict.findings
    assert any(
        re.match(r"Rank 6 is (19|20)\.\d % slower than .* \(95 % CI 1\d\.\d to 2\d\.\d %, n = 8\)\.", each)
        for each in findings
    )


def test_long_step_is_a_finding():
    times = random_times(Shape(steps=12), seed=4)
    times.action_ns[:, 0, 7, 1, :] *= 2
    findings = build_explained_report(run(times)).verdict.findings
    assert any(each.startswith("Step 7 took ") and "rank 1" in each for each in findings)


def test_verdict_has_at_most_five_findings():
    times = random_times(Shape(pipelines=4, steps=8), seed=5)
    for pipeline in range(1, 4):
        times.action_ns[:, pipeline, :, :2, :] *= 1 + 0.1 * pipeline
    assert len(build_explained_report(run(times)).verdict.findings) <= 5


def test_straggler_without_replicas_has_two_possible_reasons():
    row = {
        "subject": "stage", "stage": 3, "finding": "imbalance or slow device",
        "compared_with": "the mean of the other stages", "excess_fraction": 0.15,
        "low_fraction": 0.1, "high_fraction": 0.2, "samples": 12, "rank": None, "machine": None, "peer": None,
    }  # fmt: skip
    assert straggler_sentence(row) == (
        "Stage 3 takes 15.0 % longer than the mean of the other stages (95 % CI 10.0 to 20.0 %, n = 12). "
        "It has more work or a slower device: no replica runs the same stage."
    )


def test_timeline_without_actions_has_nothing_to_explain():
    verdict = build_explained_report(empty_timeline()).verdict
    assert (
        verdict.why == "No step with a forward or backward action was recorded; there is nothing to explain."
    )
    assert verdict.improvement == ""


@pytest.mark.parametrize(("missing", "receiver"), [(0, "rank 2 with stage 2"), (2, "rank 2")])
def test_receiver_without_recorded_actions_is_named_without_a_stage(missing, receiver):
    """Sends wait for their receiver, of which the first case has a recording and the second has none."""
    planned = make_plan(PlannedShape("gpipe", microbatches=8, steps=2), PlannedCosts(occupancy=0))
    plan = slow_rank(planned, Place(2), 1.5)
    timeline = timeline_of(simulate(plan.with_network(blocking=True, rendezvous=True)))
    report = build_explained_report(timeline.with_spans(timeline.spans.filter(pl.col("rank") != missing)))
    assert f"(until {receiver} receives)" in report.verdict.why
