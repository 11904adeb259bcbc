"""When ranks wait for reductions of gradients, and which messages they hold."""

import polars as pl

from drawing import timeline_from_text
from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.graph.reduction_waits import find_actions_before_waits, find_reduction_waits
from stagescope.analysis.graph.replay_basis import find_replay_basis
from waiting import added, idle_of, message, path_of

PIPELINE = timeline_from_text(
    """
F0 .  .  .  .  .  .  B0
.  F0 B0 .  .  .  .  .
""",
    cell_ns=10,
)
NAMED = {"name": "all_reduce in replicas", "pair": 3}


def reduction(rank, start_ns, end_ns, waits_ns=None, **columns):
    """Return a reduction; its rank waits for it from `waits_ns` on, None: not recorded."""
    waits = {} if waits_ns is None else {"wait_start_ns": waits_ns, "wait_end_ns": end_ns}
    same = {"rank": rank, "lane": "comm", "kind": "grad_reduce", "step": 0, "stage": 1}
    return {**same, "start_ns": start_ns, "end_ns": end_ns, **waits, **columns}


def waits_of(*reductions):
    waits = find_reduction_waits(added(PIPELINE, *reductions).spans)
    return [each.select("rank", "start_ns", "end_ns").rows() for each in (waits.every, waits.reducing)]


def test_wait_is_the_reduction_from_when_the_last_replica_has_come():
    first, last = reduction(1, 25, 60, 30, **NAMED), reduction(3, 40, 60, 45, **NAMED)
    assert waits_of(first, last) == [[(1, 30, 60), (3, 45, 60)], [(1, 45, 60), (3, 45, 60)]]


def test_reductions_without_a_number_have_no_replicas():
    assert waits_of(reduction(1, 30, 60, 30), reduction(3, 45, 60, 45))[1] == [(1, 30, 60), (3, 45, 60)]


def test_unrecorded_wait_begins_with_the_end_of_the_last_computation():
    assert waits_of(reduction(1, 15, 60))[0] == [(1, 30, 60)]


def test_reduction_that_ends_during_compute_is_not_waited_for():
    assert waits_of(reduction(1, 15, 25))[0] == []
    assert waits_of(reduction(0, 15, 70))[0] == [(0, 15, 70)]  # B0.0 begins only then


def test_held_message_travels_from_the_end_of_the_reduction_on():
    timeline = added(PIPELINE, *message(1, 0, 0, 60, 68), reduction(1, 30, 60, 30))
    actions = find_actions(timeline)
    basis = find_replay_basis(actions)
    [need] = actions.held.need
    assert actions.held.waits.reduction_ns.tolist() == [30]
    assert [each[need] for each in (basis.lag_ns, basis.joined_ns, basis.apart_ns)] == [38, 38, 8]
    assert [each[need] for each in (basis.async_ns, basis.travel_ns, basis.free_ns)] == [8, 8, 0]
    assert basis.reduced(basis.free_ns)[need] == 30


def test_message_that_left_before_the_reduction_is_not_held():
    actions = find_actions(added(PIPELINE, *message(1, 0, 0, 30, 68), reduction(1, 31, 60, 31)))
    assert not len(actions.held.need)


def test_message_without_a_recorded_send_is_held_by_a_wait_that_ended_before_it_was_needed():
    for end_ns, held in ((60, [30]), (75, [])):  # B0.0 of rank 0 starts at 70
        actions = find_actions(added(PIPELINE, reduction(1, 30, end_ns, 30)))
        assert actions.held.waits.reduction_ns.tolist() == held


def test_wait_of_the_own_rank_before_an_action_is_a_part_of_its_idle_interval_and_of_the_path():
    timeline = added(PIPELINE, *message(1, 0, 0, 30, 35), reduction(0, 10, 60, 40))
    idle = idle_of(timeline).filter(rank=0).select("waiting_for", "start_ns", "end_ns")
    expected = [("compute", 10, 30), ("reduction", 30, 60), ("launch", 60, 70)]
    assert idle.cast({"waiting_for": pl.String}).rows() == expected
    path = path_of(timeline).select("part", "start_ns", "end_ns").cast({"part": pl.String}).rows()
    assert path[-3:] == [("reduction", 30, 60), ("launch", 60, 70), ("compute", 70, 80)]


def test_action_before_a_wait_is_that_of_its_rank_and_step():
    actions = find_actions(added(PIPELINE, reduction(1, 30, 60, 30), reduction(0, 0, 5, 0)))
    action, until_ns = find_actions_before_waits(actions.table, actions.reductions)
    found = actions.table[action].select("rank", pl.col("kind").cast(pl.String)).rows()
    assert dict(zip(found, until_ns.tolist(), strict=True)) == {(0, "forward"): 5, (1, "backward"): 60}
