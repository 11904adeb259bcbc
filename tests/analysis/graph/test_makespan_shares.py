"""What makes a step longer is divided among the actions and transfers of its critical path."""

import numpy as np
import pytest

from delayed_runs import run
from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.graph.makespan_shares import ReplayCosts, share_makespan
from stagescope.analysis.graph.replay import replay
from stagescope.analysis.graph.replay_basis import find_replay_basis
from stagescope.analysis.graph.step_groups import group_actions

ORDER = {0: ["F0.0", "F0.1", "B0.0", "B0.1"], 1: ["F1.0", "B1.0", "F1.1", "B1.1"]}


@pytest.fixture(name="measured")
def measured_fixture():
    actions = find_actions(run(ORDER, lambda action, rank: 100, hop_ns=10, steps=2))
    basis = find_replay_basis(actions)
    return actions, basis, group_actions(actions.table)


def shares_of(measured, more, less):
    _, basis, groups = measured
    lengths = [groups.makespan_ns(replay(basis.plan, *costs)) for costs in (more, less)]
    return share_makespan(basis.plan, groups, more, less, lengths[0] - lengths[1]), lengths[0] - lengths[1]


def costs_of(measured, **longer):
    """Return the costs with some actions of step 1 longer; `F0_1` is the forward of stage 0, micro-batch 1."""
    actions, basis, _ = measured
    table = actions.table
    duration_ns = (table["end_ns"] - table["start_ns"]).to_numpy().copy()
    for name, more_ns in longer.items():
        kind = {"F": "forward", "B": "backward"}[name[0]]
        stage, microbatch = map(int, name[1:].split("_"))
        chosen = (table["kind"] == kind) & (table["stage"] == stage) & (table["microbatch"] == microbatch)
        duration_ns[(chosen & (table["step"] == 1)).to_numpy()] += more_ns
    return ReplayCosts(duration_ns, basis.lag_ns)


def test_all_of_the_difference_is_at_the_action_that_makes_it(measured):
    shares, change_ns = shares_of(measured, costs_of(measured, F0_0=70), costs_of(measured))
    assert change_ns.tolist() == [0, 70]
    table = measured[0].table[shares.action]
    assert set(table.select("step", "rank", "stage", "microbatch").rows()) == {(1, 0, 0, 0)}
    assert shares.share_ns.sum() == pytest.approx(70)


def test_an_action_with_slack_has_no_share(measured):
    shares, change_ns = shares_of(measured, costs_of(measured, F0_1=5, F0_0=70), costs_of(measured))
    assert change_ns.tolist() == [0, 70]
    assert set(measured[0].table[shares.action]["microbatch"]) == {0}


def test_two_actions_on_the_path_share_by_their_length(measured):
    shares, _ = shares_of(measured, costs_of(measured, F0_0=30, B0_1=60), costs_of(measured))
    table = measured[0].table[shares.action].with_columns(share_ns=shares.share_ns)
    by_kind = {kind: table.filter(kind=kind)["share_ns"].sum() for kind in ("forward", "backward")}
    assert by_kind == pytest.approx({"forward": 30, "backward": 60})


def test_transfers_are_shared_by_need(measured):
    basis = measured[1]
    costs = costs_of(measured)
    shares, change_ns = shares_of(measured, costs, ReplayCosts(costs.duration_ns, basis.free_ns))
    assert (shares.need >= 0).all()
    assert np.bincount(shares.step, weights=shares.share_ns).tolist() == pytest.approx(change_ns.tolist())
    assert set(measured[0].needs[shares.need]["is_remote"]) == {True}


def test_nothing_is_shared_without_actions():
    timeline = run(ORDER, lambda action, rank: 100)
    actions = find_actions(timeline.with_spans(timeline.spans.clear()))
    basis, nothing = find_replay_basis(actions), np.empty(0, dtype=np.int64)
    costs = ReplayCosts(nothing, nothing)
    assert len(share_makespan(basis.plan, group_actions(actions.table), costs, costs, nothing).step) == 0
