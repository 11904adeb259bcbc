"""The rank whose optimizer step, or whatever it does after that, holds up the others is named with what it costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from stagescope.analysis import build_explained_report
from truth.causes import Place, loading, pausing_rank, slow_optimizer, slow_rank
from truth.engine import simulate
from truth.plan import MS, Costs, Shape, make_plan
from truth.spans import timeline_of

EXTRA_NS = 40 * MS


def base_plan(replicas, *, barrier=False):
    return make_plan(Shape(replicas=replicas), Costs(), 0).with_end(barrier=barrier, records_norm=barrier)


def caused_ns(report, cause):
    """Return by culprit the idle time of the ranks of the first pipeline, per rank."""
    rows = report.culprits.filter(pl.col("victim_rank") < Shape().ranks, cause=cause)
    summed = rows.group_by("culprit_rank").agg(pl.sum("idle_ns") / Shape().ranks)
    return dict(summed.rows())


@pytest.mark.parametrize("rank", [0, 2, 3])
def test_rank_with_a_long_optimizer_step_is_named_with_what_it_costs(rank):
    base = base_plan(1, barrier=True)
    run = simulate(slow_optimizer(base, Place(rank), EXTRA_NS))
    report = build_explained_report(timeline_of(run))
    found = caused_ns(report, "optimizer")
    assert found[rank] == pytest.approx(run.iteration_ns - simulate(base).iteration_ns, rel=0.01)
    assert found[None] == pytest.approx(base.end.optimizer_ns, rel=0.01)
    assert f" optimizer (rank {rank}, " in report.verdict.why


def test_rank_is_named_among_replicas():
    report = build_explained_report(timeline_of(simulate(slow_optimizer(base_plan(2), Place(0), EXTRA_NS))))
    assert "optimizer (rank 0, " in report.verdict.why
    assert "optimizer (rank 0, 43.00 ms)" in report.verdict.slowest


@pytest.mark.parametrize("replicas", [1, 2])
def test_optimizer_steps_that_take_as_long_on_all_ranks_have_no_culprit(replicas):
    plan = base_plan(replicas).with_end(optimizer_ns=EXTRA_NS)
    report = build_explained_report(timeline_of(simulate(plan)))
    assert set(caused_ns(report, "optimizer")) == {None}
    assert " optimizer (40." in report.verdict.why


def test_optimizer_step_that_no_rank_waits_for_costs_nothing():
    run = simulate(slow_optimizer(base_plan(1), Place(2), EXTRA_NS))
    assert run.iteration_ns == simulate(base_plan(1)).iteration_ns
    found = caused_ns(build_explained_report(timeline_of(run)), "optimizer")
    assert found.get(2, 0.0) < MS / 10


@pytest.mark.parametrize("barrier", [False, True])
@pytest.mark.parametrize(("place", "extra_ns"), [(Place(0), EXTRA_NS), (Place(2, 1), 3 * EXTRA_NS)])
def test_long_optimizer_step_among_replicas_is_the_first_fix_with_its_gain(place, extra_ns, barrier):
    base = base_plan(2, barrier=barrier)
    run = simulate(slow_optimizer(base, place, extra_ns))
    report = build_explained_report(timeline_of(run))
    first = report.improvements.row(0, named=True)
    rank = 4 * place.replica + place.rank
    assert first["change"] == f"the optimizer step of rank {rank} as short as on its replicas"
    true_ns = run.iteration_ns - simulate(base).iteration_ns
    assert first["gain_ns"] == pytest.approx(true_ns, abs=0.01 * run.iteration_ns)


@pytest.mark.parametrize("rank", [0, 2])
def test_long_optimizer_step_without_replicas_is_a_fix_on_a_condition(rank):
    base = base_plan(1, barrier=True)
    run = simulate(slow_optimizer(base, Place(rank), EXTRA_NS))
    report = build_explained_report(timeline_of(run))
    assert (
        f"Fix first: the optimizer step of rank {rank} as short as on other ranks "
        "(if no more parameters are updated there), from "
    ) in report.verdict.improvement
    first = report.improvements.row(0, named=True)
    assert first["high_step_ns"] == first["measured_step_ns"]
    true_ns = run.iteration_ns - simulate(base).iteration_ns
    assert first["gain_ns"] == pytest.approx(true_ns, abs=0.01 * run.iteration_ns)


def assert_gain(base, plan, rank):
    """Assert that a shorter optimizer step of a rank is predicted to gain what it does, within 2 %."""
    slowed = simulate(plan)
    true_ns = slowed.iteration_ns - simulate(base).iteration_ns
    gains = dict(build_explained_report(timeline_of(slowed)).improvements.select("change", "gain_ns").rows())
    gain_ns = gains[f"the optimizer step of rank {rank} as short as on its replicas"]
    assert gain_ns == pytest.approx(true_ns, abs=0.02 * slowed.iteration_ns)


def test_fix_gains_only_what_loading_meanwhile_leaves():
    base = loading(base_plan(2), per_step_ns=40 * MS, recorded=True)
    assert_gain(base, slow_optimizer(base, Place(1, 1), 60 * MS), rank=5)


def test_fix_where_steps_overlap_gains_no_more_than_until_another_pipeline_is_the_last():
    base = slow_rank(make_plan(Shape("zb-v", replicas=2, chunks=2), Costs(), 0), Place(1, 1), 1.2)
    assert_gain(base, slow_optimizer(base, Place(0), 60 * MS), rank=0)


def test_optimizer_steps_of_two_ranks_are_one_fix():
    plan = slow_optimizer(base_plan(2), Place(0), EXTRA_NS)
    extra_ns = plan.optimizing_ns.copy()
    extra_ns[1, 1] = EXTRA_NS
    report = build_explained_report(timeline_of(simulate(replace(plan, optimizing_ns=extra_ns))))
    change = "the optimizer steps of ranks 0 and 5 as short as on their replicas"
    assert report.improvements["change"][0] == change


def test_optimizer_steps_of_a_stage_with_more_parameters_are_no_fix():
    plan = slow_optimizer(base_plan(2), Place(0), EXTRA_NS)
    extra_ns = np.broadcast_to(plan.optimizing_ns.max(axis=1, keepdims=True), plan.optimizing_ns.shape)
    report = build_explained_report(timeline_of(simulate(replace(plan, optimizing_ns=extra_ns))))
    assert not any("as short as" in change for change in report.improvements["change"])


@pytest.mark.parametrize("activity", ["checkpoint", "evaluation"])
def test_rank_that_does_something_else_before_the_next_step_is_named_with_that(activity):
    base = base_plan(1)
    run = simulate(pausing_rank(base, Place(0), EXTRA_NS, activity))
    report = build_explained_report(timeline_of(run))
    assert f"other work (rank 0: {activity})" in report.verdict.why
    cost_ns = run.iteration_ns - simulate(base).iteration_ns
    assert caused_ns(report, "other_work")[0] == pytest.approx(
        cost_ns, rel=0.11
    )  # the last step has no next one
