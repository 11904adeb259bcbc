from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayed_runs import run
from drawing import timeline_from_text
from random_pipelines import arbitrary_timelines, one_f_one_b, simulated_timelines, timeline_of
from stagescope import schedules
from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.graph.replay import plan_replay, ready_times, replay
from stagescope.analysis.graph.transfer_lags import find_transfer_lags
from stagescope.ingest.simulation import timeline_of_simulation
from stagescope.model import empty_timeline

SHAPES = {
    "gpipe": (4, 6), "1f1b": (4, 8), "interleaved": (4, 8), "zb-h1": (4, 8), "zb-v": (3, 6),
    "dualpipe": (4, 8), "dualpipev": (3, 8), "chimera": (4, 8), "1f1b-overlap": (3, 9),
}  # fmt: skip


def replayed(actions, duration_ns=None, lag_ns=None):
    duration_ns = (
        actions.table.select(pl.col("end_ns") - pl.col("start_ns")).to_series().to_numpy()
        if duration_ns is None
        else duration_ns
    )
    lag_ns = find_transfer_lags(actions).lag_ns if lag_ns is None else lag_ns
    return replay(plan_replay(actions), duration_ns, lag_ns)


@pytest.mark.parametrize("name", [name for name in SHAPES if name in schedules.NAMES])
def test_simulated_step_is_replayed_to_the_nanosecond(name):
    ranks, microbatches = SHAPES[name]
    order = schedules.order(name, ranks=ranks, microbatches=microbatches)
    costs = schedules.Costs(forward=1_000, backward_input=1_300, backward_weight=700, hop=90)
    simulation = schedules.simulate(order, costs)
    actions = find_actions(timeline_of_simulation(simulation))
    assert replayed(actions).tolist() == actions.table["end_ns"].to_list()


@settings(deadline=None, max_examples=20)
@given(simulated_timelines(), st.integers(0, 2**32))
def test_replay_of_changed_costs_equals_their_simulation(timeline, seed):
    actions = find_actions(timeline)
    table = actions.table
    duration_ns = np.random.default_rng(seed).integers(0, 50, table.height)
    cost = {
        kind: {
            (stage, microbatch): int(lasts)
            for k, stage, microbatch, lasts in zip(
                table["kind"], table["stage"], table["microbatch"], duration_ns, strict=True
            )
            if k == kind
        }
        for kind in ("forward", "backward")
    }
    stages, microbatches = table["stage"].max() + 1, table["microbatch"].max() + 1
    costs = schedules.Costs(**cost, hop=5)
    simulation = schedules.simulate(one_f_one_b(stages, microbatches), costs)
    ends = {(a.rank, str(a)): a.end_ns for a in simulation.actions}
    lag_ns = np.where(actions.needs["is_remote"], 5, 0)
    found = replayed(actions, duration_ns, lag_ns)
    letters = {"forward": "F", "backward": "B"}
    expected = [
        ends[rank, f"{letters[kind]}{stage}.{m}"]
        for rank, kind, stage, m in table.select("rank", "kind", "stage", "microbatch").iter_rows()
    ]
    assert found.tolist() == expected


def test_steps_with_different_orders_are_replayed_together():
    one = timeline_from_text("F0 F1 . . B0 B1\n. F0 F1 B0 B1", step=0)
    two = timeline_from_text("F0 F1 . B0 . B1\n. F0 B0 F1 B1", step=1, origin_ns=50_000)
    together = one.with_spans(pl.concat([one.spans, two.spans]).sort("rank", "start_ns"))
    actions = find_actions(together)
    ends = pl.DataFrame({"step": actions.table["step"], "end_ns": replayed(actions)})
    for step, alone in ((0, one), (1, two)):
        assert (
            ends.filter(pl.col("step") == step)["end_ns"].to_list() == replayed(find_actions(alone)).tolist()
        )


def test_fractions_of_a_nanosecond_are_kept():
    actions = find_actions(timeline_from_text("F0 F1 F2"))
    ends = replay(plan_replay(actions), np.full(3, 0.5), np.zeros(0, dtype=np.int64))
    assert ends.tolist() == [0.5, 1.0, 1.5]


def test_longer_transfers_never_make_a_step_shorter():
    actions = find_actions(run(one_f_one_b(3, 5), lambda action, rank: 10 + rank, hop_ns=4))
    lag_ns = find_transfer_lags(actions).lag_ns
    makespans = [replayed(actions, lag_ns=lag_ns * factor).max() for factor in (0, 1, 2, 3)]
    assert makespans == sorted(makespans)


def test_cyclic_needs_are_cut_and_reported():
    # Each rank ran a backward before the forward that the other backward needs: no real run can do that.
    actions = find_actions(timeline_from_text("B0 F0\nB0 F0"))
    plan = plan_replay(actions)
    assert [row.count for row in plan.diagnostics] == [2]
    assert sorted(plan.order.tolist()) == [0, 1, 2, 3]
    assert replayed(actions).max() > 0


def test_cycle_that_starts_at_one_time_is_cut():
    row = {"lane": "compute", "step": 0, "microbatch": 0, "start_ns": 7, "end_ns": 7}
    rows_of = [(0, 0, "backward"), (0, 0, "forward"), (1, 1, "backward"), (1, 1, "forward")]
    rows = [{**row, "rank": rank, "stage": stage, "kind": kind} for rank, stage, kind in rows_of]
    actions = find_actions(timeline_of(rows, 2))
    plan = plan_replay(actions)
    assert sorted(plan.order.tolist()) == [0, 1, 2, 3]
    assert replayed(actions).tolist() == [0, 0, 0, 0]


def test_cycle_in_unsorted_actions_is_cut():
    actions = find_actions(timeline_from_text("B0 F0 . .\n. . B0 F0"))
    # Starts in reverse order: no edge of the cycle goes backwards in time.
    reversed_starts = replace(actions, table=actions.table.with_columns(start_ns=-pl.col("start_ns")))
    plan = plan_replay(reversed_starts)
    assert sorted(plan.order.tolist()) == [0, 1, 2, 3]
    assert len(plan.diagnostics) == 1


@settings(deadline=None, max_examples=30)
@given(arbitrary_timelines())
def test_replay_of_random_timelines_keeps_the_order_of_every_rank(timeline):
    actions = find_actions(timeline)
    plan = plan_replay(actions)
    assert sorted(plan.order.tolist()) == list(range(actions.table.height + len(plan.sends.need)))
    ends = actions.table.select("pipeline", "step", "rank").with_columns(end_ns=replayed(actions))
    groups = ends.group_by("pipeline", "step", "rank", maintain_order=True).agg(
        sorted=pl.col("end_ns").diff().drop_nulls().min().fill_null(0) >= 0
    )
    assert groups["sorted"].all()


def test_ready_time_is_when_rank_and_inputs_are_available():
    order = {0: ["F0.0", "B0.0"], 1: ["F1.0", "B1.0"]}
    actions = find_actions(run(order, lambda action, rank: 100, hop_ns=7, launch_delay_ns=3))
    ready_ns = ready_times(
        plan_replay(actions), actions.table["end_ns"].to_numpy(), find_transfer_lags(actions).lag_ns
    )
    gaps = actions.table["start_ns"].to_numpy() - ready_ns
    assert gaps[1:].tolist() == [3, 3, 3]


def test_replay_of_empty_input_is_empty():
    assert replayed(find_actions(empty_timeline())).tolist() == []
