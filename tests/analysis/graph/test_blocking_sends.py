"""Blocking sends: dependencies inferred from the recorded waits equal those of the simulation that planted them."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from drawing import timeline_from_text
from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.graph.blocking_sends import NO_GATE, find_blocking_sends
from stagescope.analysis.graph.replay import replay
from stagescope.analysis.graph.replay_basis import find_replay_basis
from stagescope.analysis.intermediates import intermediates_of
from truth.causes import Place, slow_rank, uniform_latency
from truth.engine import simulate
from truth.plan import MS, Costs, Shape, make_plan
from truth.spans import timeline_of
from truth.true_paths import true_path
from waiting import added, message

LETTERS = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}
TWO_CHUNKS = {"interleaved": 2, "zb-v": 2, "dualpipev": 2}
SENDS = {
    "prompt": {},
    "one buffer": {"buffers": 1},
    "two buffers": {"buffers": 2},
    "rendezvous": {"rendezvous": True},
}


def blocking_plan(schedule, **rules):
    chunks = TWO_CHUNKS.get(schedule, 1)
    shape = Shape(schedule, microbatches=10 if schedule == "dualpipev" else 8, steps=2, chunks=chunks)
    plan = slow_rank(make_plan(shape, Costs(occupancy=0)), Place(2), 1.5)
    return plan.with_network(blocking=True, **rules)


def replayed_ends(timeline):
    actions = find_actions(timeline)
    basis = find_replay_basis(actions)
    table = actions.table
    duration_ns = (table["end_ns"] - table["start_ns"]).to_numpy()
    return replay(basis.plan, duration_ns, basis.lag_ns), table["end_ns"].to_numpy()


@pytest.mark.parametrize(
    ("schedule", "rules"),
    [
        ("gpipe", "prompt"),
        ("gpipe", "one buffer"),
        ("gpipe", "two buffers"),
        ("gpipe", "rendezvous"),
        ("1f1b", "one buffer"),
        ("interleaved", "prompt"),
        ("interleaved", "one buffer"),
        ("zb-h1", "prompt"),
        ("zb-v", "prompt"),
        ("dualpipev", "one buffer"),
    ],
)
def test_critical_path_and_slack_equal_those_of_the_simulation(schedule, rules):
    run = simulate(blocking_plan(schedule, **SENDS[rules]))
    found = intermediates_of(timeline_of(run))
    words = {
        action: (LETTERS[kind], stage, microbatch)
        for action, kind, stage, microbatch in found.actions.table.select(
            "action", "kind", "stage", "microbatch"
        ).iter_rows()
    }
    # Ranks of a V begin the next step before the others have ended this one, which the truth does not look at.
    for step in range(1 if schedule == "zb-v" else run.plan.shape.steps):
        truth = true_path(run, step)
        path = found.critical_path.filter((pl.col("step") == step) & (pl.col("part") == "compute"))
        assert {words[action] for action in path["action"]} == truth.path
        here = found.actions.table.filter(pl.col("step") == step).join(found.slack, on="action")
        slack = {
            words[action]: slack_ns for action, slack_ns in here.select("action", "slack_ns").iter_rows()
        }
        assert slack == truth.slack_ns


def test_critical_path_without_gaps_passes_from_a_blocked_sender_to_its_receiver():
    path = intermediates_of(timeline_of(simulate(blocking_plan("gpipe", buffers=1)))).critical_path
    for _, parts in path.group_by("step"):
        assert (parts["start_ns"][1:] == parts["end_ns"][:-1]).all()
    assert "send" in path["part"].unique()


def test_replay_of_blocking_sends_reproduces_the_run():
    plan = uniform_latency(blocking_plan("gpipe", buffers=1), 2 * MS)
    plan = plan.with_actions(plan.action_ns)
    ends, measured = replayed_ends(timeline_of(simulate(plan)))
    # Only launches are not in a replay of durations: 20 us before each of at most 24 actions on a path.
    steps = measured.reshape(plan.shape.steps, -1)
    first = steps.min(axis=1, keepdims=True) - ends.reshape(plan.shape.steps, -1).min(axis=1, keepdims=True)
    assert np.abs(steps - first - ends.reshape(plan.shape.steps, -1)).max() < 40 * 20_000


def test_send_that_ended_before_the_receive_was_posted_did_not_wait_for_it():
    sends = find_blocking_sends(find_actions(timeline_of(simulate(blocking_plan("gpipe")))))
    assert len(sends.need)
    assert (sends.gate == NO_GATE).all()


def test_send_that_ended_while_its_rank_computed_blocks_nothing():
    drawn = timeline_from_text("F0 F1 .  .\n.  F0 .  F1", cell_ns=10)
    sent, received = message(0, 1, 0, 10, 12)
    hidden = added(drawn, {**sent, "wait_start_ns": 10, "wait_end_ns": 12}, received)
    assert not len(find_blocking_sends(find_actions(hidden)).need)


def test_short_wait_at_the_end_of_an_idle_time_does_not_explain_it():
    drawn = timeline_from_text("F0 .  .  F1\n.  F0 .  .", cell_ns=10)
    sent, received = message(0, 1, 0, 10, 12)
    late = added(drawn, {**sent, "wait_start_ns": 28, "wait_end_ns": 29}, received)
    assert not len(find_blocking_sends(find_actions(late)).need)


def test_message_issued_after_a_blocked_send_leaves_after_that_send():
    """Rank 0 is blocked after F1 in the send of F0, until rank 1 receives at 60; only then it issues that of F1."""
    drawn = timeline_from_text("F0 F1 .  .  .  .  .  .  .\n.  .  .  .  .  .  F0 F1 .", cell_ns=10)
    first, first_received = message(0, 1, 0, 10, 60)
    second, second_received = message(0, 1, 1, 60, 68)
    blocked = {**first, "wait_start_ns": 20, "wait_end_ns": 60}
    waits = [
        {**received, "start_ns": start_ns, "wait_start_ns": start_ns, "wait_end_ns": received["end_ns"]}
        for received, start_ns in ((first_received, 55), (second_received, 60))
    ]
    actions = find_actions(added(drawn, blocked, {**second, "end_ns": 61}, *waits))
    sends, basis = find_blocking_sends(actions), find_replay_basis(actions)
    microbatch = actions.table["microbatch"].gather(actions.needs["action"].gather(sends.carried)).to_list()
    assert microbatch == [1]
    assert basis.lag_ns[sends.carried].tolist() == [8]


def test_one_slow_transfer_does_not_hide_that_all_other_sends_waited_for_their_receiver():
    """Of a busy machine: the first message takes 18, and all others 1 after their receiver got to receive them.

    The second one waits until rank 1 has ended a forward that takes six times as long as the others.
    """
    drawn = timeline_from_text(
        """
        F0 .  .  F1 .  .  .  .  .  .  F2 .  .  F3 .  .  .
        .  .  .  F0 -  -  -  -  -  .  F1 -  .  F2 -  F3 .
        """,
        cell_ns=10,
    )
    moments = ((10, 0, 28), (40, 90, 91), (110, 120, 121), (140, 150, 151))
    rows = []
    for microbatch, (free_ns, posted_ns, end_ns) in enumerate(moments):
        sent, received = message(0, 1, microbatch, free_ns, end_ns)
        rows += [
            {**sent, "wait_start_ns": free_ns, "wait_end_ns": end_ns},
            {**received, "start_ns": posted_ns, "wait_start_ns": posted_ns, "wait_end_ns": end_ns},
        ]
    actions = find_actions(added(drawn, *rows))
    sends = find_blocking_sends(actions)
    gates = actions.table.select("rank", "microbatch")[sends.gate[1:]].rows()
    assert gates == [(1, 0), (1, 1), (1, 2)]
    assert sends.lasting_ns.tolist() == [18, 1, 1, 1]
