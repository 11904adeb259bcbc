"""Planted differences between two simulated runs are found by comparing them, and nothing in runs of equal plans."""

from __future__ import annotations

from itertools import pairwise

import polars as pl
import pytest

import stagescope
from places import DATA
from stagescope.reports.comparison_sentences import comparison_sentences
from truth.cases import NULLS
from truth.causes import Excess, Place, slow_actions, slow_link, slow_rank, slow_replica, slow_stages
from truth.engine import simulate
from truth.plan import DOWN, MS, Costs, Shape, make_plan
from truth.spans import timeline_of

TWO = Shape(replicas=2)


def compared(before, after, **options):
    """Return the comparison of two plans, and how much longer the iteration of the second one is in truth."""
    runs = [simulate(plan) for plan in (before, after)]
    truth_ns = runs[1].iteration_ns - runs[0].iteration_ns
    return stagescope.compare(*map(timeline_of, runs), **options), truth_ns


def row_of(comparison, **where):
    return comparison.table.row(
        by_predicate=pl.all_horizontal(pl.col(k) == v for k, v in where.items()), named=True
    )


@pytest.mark.parametrize(
    ("change", "part", "place"),
    [
        (lambda plan: plan.with_end(reduce_ns=60 * MS), "gradient_reduction", None),
        (lambda plan: plan.with_end(optimizer_ns=33 * MS), "optimizer", None),
        (lambda plan: slow_rank(plan, Place(1, 1), 1.2), "straggler", {"subject": "rank", "rank": 5}),
        (lambda plan: slow_replica(plan, 1, 1.1), "straggler", {"subject": "rank", "rank": 4}),
        (lambda plan: slow_stages(plan, {2: 1.1}), "stage_imbalance", {"kind": "forward", "stage": 2}),
        (lambda plan: slow_link(plan, DOWN, 1, 4 * MS), "exposed_communication", {"rank": 1, "peer": 2}),
    ],
    ids=["reduction", "optimizer", "rank", "replica", "stage", "link"],
)
def test_planted_change_is_found_in_iteration_part_and_place(change, part, place):
    found, truth_ns = compared(make_plan(TWO, Costs(), 1), change(make_plan(TWO, Costs(), 2)))
    iteration = row_of(found, subject="iteration")
    assert iteration["is_claimed"]
    assert iteration["difference_ns"] == pytest.approx(truth_ns, abs=1.5 * MS)
    assert iteration["low_ns"] < truth_ns < iteration["high_ns"]
    largest = found.table.filter(pl.col("subject") == "part").row(0, named=True)
    assert (largest["part"], largest["is_claimed"]) == (part, True)
    if place is not None:
        assert row_of(found, **place)["is_claimed"]
    assert comparison_sentences(found)[-1].startswith(f"Most of it: {part.replace('_', ' ')}, +")


def test_longer_all_reduce_is_55_ms_of_gradient_reduction_and_not_in_the_window():
    found, _ = compared(make_plan(TWO, Costs(), 1), make_plan(TWO, Costs(reduce=60 * MS), 2))
    assert row_of(found, part="gradient_reduction")["difference_ns"] == pytest.approx(55 * MS, abs=MS)
    assert row_of(found, subject="iteration")["is_claimed"]
    assert not row_of(found, subject="step")["is_claimed"]


@pytest.mark.parametrize("steps", [6, 10])
def test_outlier_step_does_not_hide_a_shift_and_is_listed(steps):
    shape = Shape(steps=steps)
    after = slow_stages(make_plan(shape, Costs(), 2), {2: 1.05})
    with_outlier = slow_actions(after, [Excess(3, 0, 2, 4, 1_000 * MS)])
    found, _ = compared(make_plan(shape, Costs(), 1), with_outlier)
    _, truth_ns = compared(make_plan(shape, Costs(), 1), after)
    iteration = row_of(found, subject="iteration")
    assert iteration["is_claimed"]
    assert iteration["difference_ns"] == pytest.approx(truth_ns, rel=0.15)
    assert found.leaves_out
    assert found.long_steps.select("run", "step").rows() == [("second", 3)]
    assert any("1 outlier: step 3 of the second run" in one for one in comparison_sentences(found))
    assert found.other["difference_ns"] > iteration["difference_ns"] + 1_000 * MS / (steps + 1)


def test_outlier_alone_is_no_difference_of_the_other_steps():
    shape = Shape(steps=8)
    after = slow_actions(make_plan(shape, Costs(), 2), [Excess(3, 0, 2, 4, 1_000 * MS)])
    found, _ = compared(make_plan(shape, Costs(), 1), after)
    assert not found.table["is_claimed"].any()
    assert comparison_sentences(found)[0].startswith("Without outliers, the iteration did not change")


@pytest.mark.parametrize(
    ("shape", "first"),
    [
        (Shape("zb-h1", replicas=2), "The schedule changed from 1f1b to zb-h1."),
        (Shape(replicas=2, microbatches=16), "The number of micro-batches per step changed from 8 to 16."),
        (
            Shape(ranks=2, replicas=2),
            "The number of stages changed from 4 to 2, and the number of ranks from 8 to 4.",
        ),
        (
            Shape("interleaved", replicas=2, chunks=2),
            (
                "The schedule changed from 1f1b to interleaved with 2 chunks per rank, "
                "and the number of stages from 4 to 8."
            ),
        ),
    ],
    ids=["schedule", "micro-batches", "stages", "chunks"],
)
def test_what_the_runs_are_comes_first(shape, first):
    found, _ = compared(make_plan(TWO, Costs(), 1), make_plan(shape, Costs(), 2))
    assert comparison_sentences(found)[0] == first


def test_more_micro_batches_are_compared_per_micro_batch():
    shapes = TWO, Shape(replicas=2, microbatches=16)
    runs = [simulate(make_plan(shape, Costs(), seed)) for seed, shape in enumerate(shapes)]
    found = stagescope.compare(*map(timeline_of, runs))
    iteration = row_of(found, subject="iteration")
    assert found.per == "micro-batch"
    assert iteration["before_ns"] == pytest.approx(runs[0].iteration_ns / 8, rel=0.01)
    assert iteration["after_ns"] == pytest.approx(runs[1].iteration_ns / 16, rel=0.01)
    places = found.table.filter(~pl.col("subject").is_in(["iteration", "step", "part"]))
    assert set(places["subject"]) == {"actions", "rank", "link"}
    assert not places["is_claimed"].any()


def test_transfers_of_one_run_only_are_not_a_difference():
    runs = [timeline_of(simulate(make_plan(TWO, Costs(), seed))) for seed in (1, 2)]
    kinds = ["send_forward", "send_backward", "recv_forward", "recv_backward"]
    bare = runs[1].with_spans(runs[1].spans.filter(~pl.col("kind").is_in(kinds)))
    placed = stagescope.Timeline.from_spans(bare.spans, ranks=bare.ranks)
    found = stagescope.compare(runs[0], placed)
    assert not found.table["is_claimed"].any()
    assert any(
        "exposed communication was recorded in the first run only" in each.message
        for each in found.diagnostics
    )


def test_skipped_steps_are_left_out_of_both_runs():
    shape = Shape(steps=8)
    slow = slow_rank(make_plan(shape, Costs(), 2), Place(1), 1.5, slice(0, 3))
    runs = [timeline_of(simulate(plan)) for plan in (make_plan(shape, Costs(), 1), slow)]
    found = stagescope.compare(*runs, skip_steps=3)
    assert row_of(found, subject="iteration")["steps_after"] == 5
    assert not found.table["is_claimed"].any()
    report = stagescope.analyze(runs[1], explain=False, skip_steps=range(3))
    assert report.bubble.steps == (3, 4, 5, 6, 7)
    assert "steps.skipped" in {each.code for each in report.diagnostics}


def test_published_gain_of_interleaving_is_found_first_the_schedule():
    runs = [stagescope.read(DATA / "public_runs" / f"primus-{name}.parquet") for name in ("pp8", "pp8_vpp2")]
    found = stagescope.compare(*runs)
    sentences = comparison_sentences(found)
    assert sentences[0].startswith("The schedule changed from 1f1b to interleaved with 2 chunks per rank")
    for subject in ("iteration", "step"):
        row = row_of(found, subject=subject)
        assert row["is_claimed"]
        assert -0.109 < row["difference_ns"] / row["before_ns"] < -0.104
    assert set(found.long_steps.select("run", "step").rows()) == {
        ("first", 16), ("first", 18), ("second", 12), ("second", 14), ("second", 20),
    }  # fmt: skip


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, id=null.name, marks=pytest.mark.exhaustive if number % 4 else ())
        for number, null in enumerate(NULLS)
    ],
)
def test_equal_plans_do_not_differ(number):
    runs = [timeline_of(simulate(NULLS[number].plan(100 * number + seed))) for seed in range(3)]
    for before, after in pairwise(runs):
        claimed = stagescope.compare(before, after).table.filter("is_claimed")
        assert claimed.is_empty(), claimed
