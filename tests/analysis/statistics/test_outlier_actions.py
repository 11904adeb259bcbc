"""Single actions that took far longer than usual are found, with what they cost and what they have in common."""

from dataclasses import replace

import polars as pl
import pytest

import stagescope
from places import DATA
from stagescope.analysis.statistics.outlier_actions import OUTLIER_ACTIONS
from stagescope.analysis.statistics.outlier_patterns import find_outlier_pattern
from stagescope.model import empty_timeline
from truth.causes import (
    Excess,
    Place,
    collected_garbage,
    set_up,
    slow_actions,
    slow_rank,
    unequal_microbatches,
)
from truth.engine import simulate
from truth.plan import MS, Costs, Shape, make_plan
from truth.spans import timeline_of

BASE = make_plan(Shape(steps=12), Costs(), 3)


def report_of(plan):
    return stagescope.analyze(timeline_of(simulate(plan)))


def places(report):
    return report.outliers.select("step", "rank", "stage", "kind", "microbatch").sort("step", "rank").rows()


def finding(report):
    return report.findings.filter(code="action.outlier")["evidence"].to_list()


def test_a_hiccup_is_found_with_its_excess_and_its_cost():
    plan = slow_actions(BASE, [Excess(5, 0, 2, 4, 1_000 * MS)])
    report = report_of(plan)
    assert places(report) == [(5, 2, 2, "forward", 4)]
    row = report.outliers.row(0, named=True)
    assert row["excess_ns"] == pytest.approx(1_000 * MS, rel=0.01)
    lost_ns = (simulate(plan).iterations_ns - simulate(BASE).iterations_ns)[5]
    assert row["cost_ns"] == pytest.approx(lost_ns, rel=0.01)
    assert row["deviations"] > 100
    (sentence,) = finding(report)
    assert sentence.startswith("F2.4 on rank 2 in step 5 took 1.010 s instead of 10")


def test_a_hiccup_that_costs_nothing_is_listed_but_not_claimed():
    # The last forward of stage 0 can be late by what the gradients of the other micro-batches take to arrive.
    report = report_of(
        slow_actions(make_plan(Shape(ranks=8, steps=6), Costs(), 3), [Excess(2, 0, 0, 7, 20 * MS)])
    )
    assert places(report) == [(2, 0, 0, "forward", 7)]
    assert report.outliers["cost_ns"][0] < 0.005 * report.ledger["window_ns"].mean()
    assert finding(report) == []


def test_costs_of_a_step_sum_to_what_its_outliers_cost_together():
    plan = slow_actions(
        BASE, [Excess(5, 0, 2, 4, 300 * MS), Excess(5, 0, 1, 4, 200 * MS), Excess(5, 0, 0, 1, 100 * MS)]
    )
    report = report_of(plan)
    lost_ns = (simulate(plan).iterations_ns - simulate(BASE).iterations_ns)[5]
    assert report.outliers.height == 3
    assert report.outliers["cost_ns"].sum() == pytest.approx(lost_ns, rel=0.02)


@pytest.mark.parametrize(
    "plan",
    [
        BASE,
        make_plan(Shape(ranks=8, replicas=2), Costs(noise=0.05), 3),
        make_plan(Shape("dualpipev", microbatches=10, chunks=2), Costs(noise=0.05, normal=True), 3),
        unequal_microbatches(BASE, 0.4, 3),
        slow_rank(BASE, Place(2), 2.0, slice(4, 6)),
        set_up(BASE, 5.0),
    ],
    ids=["quiet", "noisy", "pairs", "unequal micro-batches", "a slow rank in two steps", "a set-up step"],
)
def test_nothing_is_found_where_no_single_action_is_slow(plan):
    assert report_of(plan).outliers.is_empty()


def test_one_long_micro_batch_is_no_outlier():
    stages = BASE.shape.stages
    long = [Excess(5, 0, stage, 4, 60 * MS, kind) for stage in range(stages) for kind in "FB"]
    assert report_of(slow_actions(BASE, long)).outliers.is_empty()


def patterns(excesses, shape=BASE.shape):
    plan = slow_actions(replace(make_plan(shape, Costs(), 3)), excesses)
    return finding(report_of(plan))[0]


@pytest.mark.parametrize(
    ("excesses", "text"),
    [
        ([Excess(step, 0, 1, (5 * step) % 7, 90 * MS) for step in (1, 4, 5, 10)], "always on rank 1"),
        ([Excess(step, 0, step % 4, 3, 90 * MS) for step in (1, 2, 5, 11)], "always micro-batch 3"),
        ([Excess(step, 0, step % 3, step % 8, 90 * MS) for step in (1, 3, 5, 7, 9, 11)], "in every 2nd step"),
        (
            [Excess(step, 0, 1, step % 8, 90 * MS) for step in (2, 5, 8, 11)],
            "always on rank 1, in every 3rd step",
        ),
        (
            [Excess(1 + 2 * rank, 0, rank, 5 - rank, 90 * MS) for rank in range(4)],
            "once per rank in rank order",
        ),
        (
            [Excess(step, 0, rank, rank, 90 * MS) for step, rank in ((1, 2), (2, 0), (5, 3), (9, 1))],
            "once per rank;",
        ),
    ],
)
def test_patterns_are_named(excesses, text):
    assert text in patterns(excesses)


def test_all_ranks_at_the_same_time():
    run = simulate(BASE)
    spans = timeline_of(run).spans.filter(pl.col("lane") == "compute", step=5, kind="forward", microbatch=3)
    spans = spans.with_columns(microbatch=pl.col("rank"))
    outliers = spans.with_columns(
        start_ns=pl.lit(0), duration_ns=pl.lit(90 * MS), excess_ns=pl.lit(80.0 * MS), stage=pl.col("rank"),
        activity=pl.lit(None, pl.String),
    )  # fmt: skip
    assert find_outlier_pattern(outliers, 4, 8, range(12)).text == "on all ranks at the same time"
    assert find_outlier_pattern(outliers.head(3), 4, 8, range(12)).text == "on most ranks at the same time"
    assert not find_outlier_pattern(outliers.head(1), 4, 8, range(12)).text


def test_no_pattern_in_random_places():
    excesses = [Excess(1, 0, 2, 4, 90 * MS), Excess(2, 0, 0, 6, 90 * MS), Excess(8, 0, 2, 1, 90 * MS)]
    assert patterns(excesses).endswith("2 other actions took more than 1.5x as long as usual.")


def test_garbage_collection_of_a_real_run_is_found_with_its_pattern():
    report = stagescope.analyze(stagescope.read(DATA / "public_runs" / "primus-pp8_vpp2.parquet"))
    longest = report.outliers.filter(pl.col("duration_ns") > 200 * MS)
    assert longest.sort("start_ns")["rank"].to_list() == list(range(8))
    assert set(longest["kind"]) == {"forward"}
    assert longest["usual_ns"].is_between(28 * MS, 36 * MS).all()
    (sentence,) = finding(report)
    assert sentence.startswith(
        "8 forwards took 234.8 ms to 363.3 ms instead of about 29.35 ms, once per rank in rank order"
    )
    # The steps with outliers are longer than the others by what the outliers cost.
    windows = report.steps.filter("in_totals")
    usual_ns = windows["window_ns"].median()
    for step, cost_ns in report.outliers.group_by("step").agg(pl.sum("cost_ns")).iter_rows():
        assert windows.filter(step=step)["window_ns"][0] - usual_ns == pytest.approx(
            cost_ns, abs=0.02 * usual_ns
        )


def test_garbage_collection_is_planted_and_found():
    base = make_plan(Shape("interleaved", ranks=8, microbatches=16, chunks=2), Costs(), 3)
    report = report_of(collected_garbage(base, 300 * MS, 3))
    assert report.outliers.height == 8
    assert "once per rank in rank order, as garbage collection does" in finding(report)[0]


def test_a_run_without_actions_has_no_outliers():
    report = stagescope.analyze(empty_timeline())
    assert dict(report.outliers.schema) == dict(OUTLIER_ACTIONS.schema)


def with_activity(timeline, name, place, part, *, kind="other", lane="host"):
    """Return a timeline with an activity in the middle of each action at a place, for a part of the action."""
    step, rank, microbatch = place
    chosen = (pl.col("rank") == rank) & (pl.col("microbatch") == microbatch) & (pl.col("kind") == "forward")
    if step is not None:
        chosen &= pl.col("step") == step
    begin = pl.col("start_ns") + ((pl.col("end_ns") - pl.col("start_ns")) * (1 - part) / 2).cast(pl.Int64)
    end = pl.col("end_ns") - (begin - pl.col("start_ns"))
    rows = timeline.spans.filter(chosen).with_columns(
        start_ns=begin, end_ns=end, wait_start_ns=begin, wait_end_ns=end, microbatch=None, stage=None,
        kind=pl.lit(kind).cast(pl.Enum(timeline.spans["kind"].dtype.categories)), name=pl.lit(name),
        lane=pl.lit(lane).cast(timeline.spans["lane"].dtype),
    )  # fmt: skip
    return timeline.with_spans(pl.concat([timeline.spans, rows.cast(timeline.spans.schema)]))


COLLECTION = "garbage collection of generation 2"


@pytest.mark.parametrize(
    ("name", "kind", "lane"),
    [(COLLECTION, "other", "host"), ("all_gather in dp 2,6 (3)", "collective", "comm")],
)
def test_what_a_rank_did_during_an_outlier_is_named(name, kind, lane):
    timeline = timeline_of(simulate(slow_actions(BASE, [Excess(5, 0, 2, 4, 1_000 * MS)])))
    report = stagescope.analyze(with_activity(timeline, name, (5, 2, 4), 0.9, kind=kind, lane=lane))
    assert report.outliers.select("activity").item() == name
    assert report.outliers.select("activity_ns").item() == pytest.approx(909 * MS, rel=0.01)
    (sentence,) = finding(report)
    assert sentence.startswith("F2.4 on rank 2 in step 5 took 1.010 s instead of 10")
    assert f" ms, during {name}; its step was " in sentence
    assert f"during {name}" in report.verdict.why


def test_an_activity_that_explains_less_than_half_of_an_outlier_is_not_named():
    timeline = timeline_of(simulate(slow_actions(BASE, [Excess(5, 0, 2, 4, 1_000 * MS)])))
    report = stagescope.analyze(with_activity(timeline, COLLECTION, (5, 2, 4), 0.4))
    assert report.outliers["activity"].to_list() == [None]
    assert "garbage" not in "".join(finding(report))


def test_a_pattern_names_what_all_its_actions_have_in_common():
    slow = [Excess(step, 0, 1, 4, 300 * MS) for step in range(3, 9)]
    timeline = timeline_of(simulate(slow_actions(BASE, slow)))
    report = stagescope.analyze(with_activity(timeline, COLLECTION, (None, 1, 4), 0.9))
    (sentence,) = finding(report)
    assert f", during {COLLECTION}, always on rank 1, always micro-batch 4; their 6 steps" in sentence
