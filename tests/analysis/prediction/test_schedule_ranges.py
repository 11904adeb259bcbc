"""Predicted ranges of other schedules, against runs of an independent simulator and against public runs."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import stagescope as ss
from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.graph.replay_basis import find_replay_basis
from stagescope.analysis.prediction.planned_order import OrderCosts, plan_order
from stagescope.analysis.prediction.reduction import plan_reduction
from stagescope.analysis.prediction.schedule_ranges import predict_schedules
from stagescope.analysis.prediction.what_if import measure_replays
from stagescope.schedules import Costs as TheoryCosts
from stagescope.schedules import order
from stagescope.schedules import simulate as simulate_theory
from stagescope.schedules.catalog import NAMES
from truth.engine import simulate
from truth.plan import MS, Costs, Shape, make_plan
from truth.spans import timeline_of

PUBLIC_RUNS = Path(__file__).parents[2] / "data" / "public_runs"
CHUNKS = {"interleaved": 2, "zb-v": 2}
LAYERS_PER_RANK, LAYER_MS = 8, 2.5


def simulated(schedule, *, head_ms=4.0, weight_share=0.4, slow=None, noise=0.01, seed=0):
    """Return a run of the same model in a schedule: 8 layers per rank, an embedding, and an output layer."""
    shape = Shape(schedule, 4, 1, 8, 8, CHUNKS.get(schedule, 1))
    plan = make_plan(shape, Costs(noise=noise), seed)
    usual = make_plan(shape, Costs(noise=0), seed).action_ns
    forward = np.full(shape.stages, LAYERS_PER_RANK * LAYER_MS * shape.ranks / shape.stages)
    forward[0] += 1.0
    forward[-1] += head_ms
    kinds = np.array([1, 2, 2 * (1 - weight_share), 2 * weight_share])
    action_ns = kinds[:, None, None, None, None] * forward[:, None] * MS * plan.action_ns / usual
    for stage in shape.placement[slow[0]] if slow else ():
        action_ns[:, :, :, stage] *= slow[1]
    return simulate(plan.with_actions(action_ns))


def window_ns(run):
    """Return the mean time from the first start to the last end, without the first step."""
    return float((run.end.max(axis=(1, 2)) - run.start.min(axis=(1, 2)))[1:].mean())


def predictions_for(timeline, schedule):
    actions = find_actions(timeline)
    steps = actions.table["step"].unique().to_list()
    found = predict_schedules(measure_replays(actions, find_replay_basis(actions), steps), schedule)
    return {each.name: each for each in found.found}, found.untested


@pytest.mark.parametrize("shorter", [0, 1])
def test_no_schedule_is_tested_if_some_steps_have_fewer_micro_batches(shorter):
    timeline = timeline_of(simulated("1f1b"))
    is_lost = (pl.col("step") % 2 == shorter) & (pl.col("microbatch") >= 4)
    found, untested = predictions_for(timeline.with_spans(timeline.spans.filter(~is_lost)), "1f1b")
    assert found == {}
    assert list(untested) == ["steps differ in their stages or micro-batches"]


@pytest.mark.parametrize(
    "planted",
    [{}, {"head_ms": 12.0, "weight_share": 0.25}, {"head_ms": 0.0, "slow": (1, 1.25), "weight_share": 0.5}],
    ids=["head", "large head", "slow rank"],
)
@pytest.mark.parametrize("ran", ["1f1b", "gpipe", "interleaved"])
def test_run_of_another_schedule_is_in_the_predicted_range(ran, planted):
    predicted, _ = predictions_for(timeline_of(simulated(ran, **planted)), ran)
    for name in {"1f1b", "gpipe", "interleaved", "zb-h1", "zb-v"} - {ran}:
        really_ns = window_ns(simulated(name, seed=100, **planted))
        low_ns, high_ns = predicted[name].low_ns, predicted[name].high_ns
        assert low_ns * 0.995 <= really_ns <= high_ns * 1.005, name
        assert high_ns - low_ns < 0.2 * really_ns


def test_measured_gain_of_a_real_interleaved_run_is_in_the_predicted_range():
    before, after = (
        ss.analyze(ss.read(PUBLIC_RUNS / f"primus-{name}.parquet")) for name in ("pp8", "pp8_vpp2")
    )
    windows_ns = [
        run.ledger.filter(pl.col("step").is_in(run.bubble.steps))["window_ns"].mean()
        for run in (before, after)
    ]
    gain_ns = windows_ns[0] - windows_ns[1]
    row = before.improvements.row(by_predicate=pl.col("change") == "schedule interleaved", named=True)
    least_ns, most_ns = (row["measured_step_ns"] - row[f"{end}_step_ns"] for end in ("high", "low"))
    assert gain_ns == pytest.approx(352e6, rel=0.01)
    assert least_ns < gain_ns < most_ns
    assert most_ns - least_ns < 0.1 * row["measured_step_ns"]


def test_no_step_is_shorter_than_the_work_of_the_last_stage():
    report = ss.analyze(ss.read(PUBLIC_RUNS / "bytedance-ST.parquet"))
    predicted, _ = predictions_for(report.timeline, "1f1b")
    actions = find_actions(report.timeline).table.filter(pl.col("stage") == 3)
    works = actions.group_by("pipeline", "step").agg(work_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    least_ns = works.group_by("step").agg(pl.col("work_ns").min())["work_ns"].mean()
    shared = {name for name, each in predicted.items() if "two ranks" in each.assumptions}
    assert shared == {"chimera"}
    assert all(each.low_ns >= least_ns for name, each in predicted.items() if name not in shared)


@pytest.mark.parametrize("name", NAMES)
def test_planned_order_takes_as_long_as_its_simulation(name):
    actions = order(name, ranks=4, microbatches=8)
    planned = plan_order(actions)
    forward, of_input, of_weight, hop = np.random.default_rng(3).integers(5, 20, (4, planned.stages))
    times = np.stack([forward, of_input + of_weight, of_input, of_weight])
    costs = OrderCosts(
        np.broadcast_to(times[:, :, None, None], (4, planned.stages, 8, 2)).astype(float),
        np.broadcast_to(hop[:, None], (planned.stages, 2)).astype(float),
    )
    named = {"forward": forward, "backward_input": of_input, "backward_weight": of_weight, "hop": hop}
    expected = simulate_theory(actions, TheoryCosts(**{key: value.tolist() for key, value in named.items()}))
    assert planned.makespans_ns(costs).tolist() == [expected.makespan_ns] * 2


def test_reduced_pipeline_predicts_nearly_the_same(monkeypatch):
    timeline = timeline_of(simulate(make_plan(Shape(ranks=32, microbatches=34, steps=1), Costs(noise=0.005))))
    reduced, _ = predictions_for(timeline, "1f1b")
    assert plan_reduction(32, 34).group == 2
    assert "2 ranks and 2 micro-batches are simulated as one" in reduced["zb-h1"].assumptions
    monkeypatch.setattr("stagescope.analysis.prediction.reduction.MOST_CELLS", 1 << 20)
    exact, _ = predictions_for(timeline, "1f1b")
    for name in ("gpipe", "zb-h1", "interleaved"):
        assert reduced[name].low_ns <= exact[name].low_ns * 1.005
        assert reduced[name].high_ns >= exact[name].high_ns * 0.995


def test_schedules_that_are_not_tested_are_named_with_the_reason():
    timeline = timeline_of(simulate(make_plan(Shape(ranks=31, microbatches=37, steps=1), Costs())))
    predicted, untested = predictions_for(timeline, "1f1b")
    assert not predicted
    assert "zb-h1" in untested["ranks and micro-batches are too many to simulate"]
