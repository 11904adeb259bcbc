"""Who holds up a training, from states of processes that are made up."""

from __future__ import annotations

import pytest

from stagescope.analysis.hangs.conditions import BUSY, ENDED, GONE, RUNNING, SILENT, WAITING, condition_of
from stagescope.analysis.hangs.culprits import HANGS, IS_OVER, TRAINS, find_hang
from stagescope.model.process_states import ACTIVITY, WAIT, Call, ProcessState
from stagescope.reports.hang_text import hang_json, hang_rows, hang_sentences

GROUP = "default_pg 0-3 (0)"
QUIET_S = 30.0


def state(rank, *calls, **facts):
    known = {"world_size": 4, "quiet_s": QUIET_S, "written_s": 1.0, "step": 7, "pid": 100 + rank, **facts}
    return ProcessState(rank, f"rank-{rank}", calls=calls, **known)


def receive(peer, kind="recv_forward"):
    return Call(WAIT, waits_for=(Call(kind, stage=1, microbatch=3, peer=peer),))


def reduction(number=5, operation="all_reduce"):
    return Call(WAIT, waits_for=(Call("collective", pair=number, name=f"{operation} in {GROUP}"),))


def bucket_reduction(number, group):
    name = f"all_reduce (async) in {group}"
    return Call(WAIT, waits_for=(Call("grad_reduce", stage=1, pair=number, name=name),))


def computing():
    return Call("backward", stage=2, microbatch=1)


@pytest.mark.parametrize(
    ("facts", "condition"),
    [
        ({"quiet_s": 2.0}, RUNNING),
        ({"quiet_s": None}, RUNNING),
        ({"longest_gap_s": 11.0}, RUNNING),
        ({"longest_gap_s": 9.0}, BUSY),
        ({"written_s": 20.0}, SILENT),
        ({"written_s": 20.0, "exists": False}, GONE),
        ({"written_s": 2.0, "exists": False}, BUSY),
        ({"end_reason": "exit", "written_s": 99.0}, ENDED),
    ],
)
def test_the_condition_follows_from_what_was_written_last(facts, condition):
    assert condition_of(state(0, **facts)) == condition


def test_waits_lead_to_the_rank_that_waits_for_nothing():
    report = find_hang(
        [state(0, receive(1)), state(1, receive(2)), state(2, computing()), state(3, receive(2))]
    )
    assert report.culprits == (2,)
    assert [each.rank for each in report.chain_of(0)] == [1, 2]
    assert report.conditions == {0: WAITING, 1: WAITING, 2: BUSY, 3: WAITING}
    assert hang_sentences(report) == [
        (
            "Rank 2 holds up the training: it has been in backward of micro-batch 1, stage 2 for 30 s. "
            "Ranks 1 and 3 wait for it, rank 0 through rank 1."
        )
    ]
    assert [row[0] for row in hang_rows(report)] == ["2", "0", "1", "3"]


def test_a_collective_waits_for_the_ranks_that_have_not_entered_it():
    entered = {"groups": {GROUP: 6}}
    late = state(3, Call(ACTIVITY, name="checkpoint"), groups={GROUP: 5}, stack=("save (train.py:9)",))
    report = find_hang([*(state(rank, reduction(), **entered) for rank in range(3)), late])
    assert report.culprits == (3,)
    assert hang_sentences(report) == [
        (
            "Rank 3 holds up the training: it has been in checkpoint for 30 s, at save (train.py:9). "
            "Ranks 0-2 wait for it."
        )
    ]


def test_a_replica_waits_for_the_others_of_its_stage_in_the_reduction_of_its_backward():
    """Ranks 0-1 and 2-3 are two pipelines; rank 2 loads data, so rank 3 has not reached the reduction."""
    group = "mesh_dp 1,3 (2)"
    report = find_hang(
        [
            state(0, receive(1, "recv_backward"), Call("backward")),
            state(1, bucket_reduction(6, group), computing(), groups={group: 7}),
            state(2, Call("data", name="data loading"), groups={"mesh_dp 0,2 (1)": 6}),
            state(3, receive(2), groups={group: 6}),
        ]
    )
    assert report.culprits == (2,)
    assert [each.rank for each in report.chain_of(0)] == [1, 3, 2]
    assert "all_reduce, number 6 in mesh_dp 1,3 (2)" in next(
        row[3] for row in hang_rows(report) if row[0] == "1"
    )


def test_replicas_of_which_all_are_in_the_reduction_do_not_wait_for_each_other():
    group = "default_pg 0,1 (0)"
    states = [state(rank, bucket_reduction(6, group), groups={group: 7}, world_size=2) for rank in range(2)]
    report = find_hang(states)
    assert (report.culprits, report.waiting) == ((), {0: (), 1: ()})


@pytest.mark.parametrize(
    ("exceptions", "sentences"),
    [
        (
            [("OSError", 20), ("RuntimeError", 10)],
            [
                "The training is over: ranks 0-1 ended by an exception.",
                "Rank 1 ended first, by RuntimeError.",
            ],
        ),
        (
            [("OSError", 20), (None, 10)],
            [
                "The training is over: rank 0 ended by an exception, rank 1 ended.",
                "Rank 1 ended first, without an exception.",
            ],
        ),
        ([("KeyboardInterrupt", 20), (None, 10)], ["The training is over: ranks 0-1 ended."]),
    ],
)
def test_a_training_that_ended_by_an_exception_has_stopped_and_the_first_rank_is_named(exceptions, sentences):
    report = find_hang(
        [
            state(rank, end_reason="exception" if exception else "exit", exception=exception, ended_ns=ended)
            for rank, (exception, ended) in enumerate(exceptions)
        ]
    )
    assert hang_sentences(report) == sentences
    assert report.has_stopped == (len(sentences) > 1)
    assert not report.is_hung


def test_ranks_that_wait_for_each_other_are_a_circle():
    report = find_hang(
        [
            state(0, reduction(), groups={GROUP: 6}),
            state(1, reduction(), groups={GROUP: 6}),
            state(2, reduction(), groups={GROUP: 6}),
            state(3, receive(0, "recv"), groups={GROUP: 5}),
        ]
    )
    assert report.circles == ((0, 3),)
    assert report.culprits == (0, 3)
    assert hang_sentences(report)[0].startswith(
        "Ranks 0 and 3 wait for each other: rank 0 for rank 3 (all_reduce"
    )


def test_different_collectives_of_one_number_are_a_mismatch():
    entered = {"groups": {GROUP: 6}}
    others = [state(rank, reduction(), **entered) for rank in range(3)]
    report = find_hang([*others, state(3, reduction(operation="all_gather"), **entered)])
    assert report.culprits == (0, 1, 2, 3)
    assert hang_sentences(report) == [
        f"Ranks of {GROUP} call different collectives as number 5: ranks 0-2 all_reduce, rank 3 all_gather."
    ]


def test_a_process_that_was_killed_is_named_although_it_wrote_no_state():
    entered = {"groups": {GROUP: 6}}
    killed = state(3, exists=False, written_s=40.0)
    report = find_hang([*(state(rank, reduction(), **entered) for rank in range(3)), killed])
    assert report.outcome == HANGS
    assert report.culprits == (3,)
    assert hang_sentences(report) == [
        (
            "Rank 3 holds up the training: it was killed or crashed: its process 103 does not exist any more. "
            "Ranks 0-2 wait for it."
        )
    ]


def test_a_rank_without_a_recording_is_named():
    report = find_hang([state(0, receive(1)), state(2, receive(1)), state(3, receive(2))])
    assert report.missing == (1,)
    assert report.culprits == (1,)
    assert "it has no recording" in hang_sentences(report)[0]


def test_running_and_ended_trainings_do_not_hang():
    running = find_hang([state(rank, quiet_s=1.0) for rank in range(4)])
    assert (running.outcome, running.is_hung, running.culprits) == (TRAINS, False, ())
    over = find_hang([state(0, end_reason="exit"), state(1, exists=False, written_s=60.0)])
    assert over.outcome == IS_OVER
    assert hang_sentences(over) == ["The training is over: rank 1 was killed or crashed, rank 0 ended."]


def test_large_groups_use_the_ranks_that_named_them():
    group = "dp 0,5,9,14,20,22,31,40,... 90 ranks to 400 (3)"
    wait = Call(WAIT, waits_for=(Call("collective", pair=0, name=f"all_reduce in {group}"),))
    states = [state(0, wait, groups={group: 1}), state(5, computing(), groups={group: 0})]
    assert find_hang(states).culprits == (5,)


def test_json_has_every_rank():
    report = find_hang([state(0, receive(1)), state(1, computing(), stack=("f (a.py:1)",))])
    found = hang_json(report)
    assert found["is_hung"]
    assert found["ranks"][0]["waits_for_ranks"] == [1]
    assert found["ranks"][0]["calls"][0]["for"] == [
        {"call": "recv_forward", "stage": 1, "microbatch": 3, "peer": 1}
    ]
    assert found["missing_ranks"] == [2, 3]


def test_ranks_that_may_still_be_starting_are_awaited_and_hold_up_nothing():
    young = {"began_s": 20.0}
    report = find_hang([state(0, receive(1), **young), state(2, computing(), **young)])
    assert (report.outcome, report.missing, report.awaited, report.culprits) == (TRAINS, (), (1, 3), ())
    assert hang_sentences(report) == ["The training is starting, waiting for 2 of 4 ranks (1, 3)."]
    old = {"began_s": 61.0}
    report = find_hang([state(0, receive(1), **young), state(2, receive(1), **old)])
    assert (report.outcome, report.missing, report.awaited, report.culprits) == (HANGS, (1, 3), (), (1,))


def test_a_rank_that_failed_before_the_others_stopped_holds_up_the_training():
    failed = state(1, end_reason="exit", exit_status=1, ended_ns=5, written_s=QUIET_S)
    others = [state(0, computing()), state(2, computing()), state(3, computing())]
    report = find_hang([failed, *others])
    assert (report.outcome, report.culprits) == (HANGS, (1,))
    assert hang_sentences(report) == ["Rank 1 holds up the training: it has ended (exit status 1)."]
    late = state(1, end_reason="exception", exception="RuntimeError", ended_ns=5, written_s=3.0)
    assert find_hang([late, *others]).culprits == (0, 2, 3)  # of a time-out, because they had stopped


def test_ranks_that_ended_are_stated_while_others_run():
    ended = state(1, end_reason="exception", exception="RuntimeError", ended_ns=5)
    running = [state(rank, quiet_s=1.0) for rank in (0, 2, 3)]
    report = find_hang([ended, *running])
    assert report.outcome == TRAINS
    assert hang_sentences(report) == [
        "The training is running: ranks 0 and 2-3 have not stopped, rank 1 ended by an exception."
    ]


def test_an_exit_status_other_than_0_is_a_crash():
    ends = [state(rank, end_reason="exit", ended_ns=9 - rank) for rank in range(3)]
    report = find_hang([*ends, state(3, end_reason="exit", exit_status=2, ended_ns=1)])
    assert (report.has_stopped, report.failed, report.first_to_end) == (True, (3,), 3)
    assert hang_sentences(report) == [
        "The training is over: rank 3 ended with exit status 2, ranks 0-2 ended.",
        "Rank 3 ended first, with exit status 2.",
    ]
    assert [row[3] for row in hang_rows(report)] == ["exit", "exit", "exit", "exit status 2"]


def test_a_process_that_certainly_does_not_exist_is_gone_at_once():
    assert condition_of(state(0, written_s=1.0, exists=False, is_certain=True)) == GONE
    assert condition_of(state(0, written_s=1.0, exists=False)) == BUSY
