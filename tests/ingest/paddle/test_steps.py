"""The steps of one log."""

import polars as pl

from stagescope.ingest.paddle.launches import split_launches
from stagescope.ingest.paddle.log_scan import SCHEMAS
from stagescope.ingest.paddle.steps import with_slots, with_types

TYPES = {
    "F": "forward",
    "B": "backward",
    "I": "backward_b",
    "W": "backward_w",
    "r": "recv_forward",
    "S": "send_backward",
}
ONCE = {"O": "optimizer", "lr": "lr", "x": "probe"}


def slots(text: str):
    """Return the slots of jobs in the order of time, such as `F0 B0 O`; a transfer starts with the job after it."""
    rows = []
    for place, word in enumerate(text.split()):
        job_type, microbatch = (
            (ONCE[word], 0) if word in ONCE else (TYPES[word[0]] + word[1:-1], int(word[-1]))
        )
        rows.append((place, job_type, microbatch, 10 * place, 10 * place + 9))
    jobs = with_types(pl.DataFrame(rows, SCHEMAS["jobs"], orient="row"))
    return with_slots(split_launches(jobs, pl.DataFrame(schema=SCHEMAS["banners"])))["slot"].to_list()


def counted(*lengths: int) -> list[int]:
    return [slot for slot, length in enumerate(lengths) for _ in range(length)]


def test_a_step_opens_with_the_forward_of_micro_batch_0():
    assert slots("F0 F1 B0 B1 O F0 F1 B0 B1 O") == counted(5, 5)


def test_with_model_chunks_the_first_chunk_opens_a_step():
    assert slots("F00 F01 F10 F11 B10 B11 B00 B01 F00 F01 F10") == counted(8, 3)


def test_jobs_before_the_first_opening_are_the_tail_of_a_step():
    assert slots("B1 O F0 F1 B0 B1 O F0") == counted(2, 5, 1)


def test_a_repeated_job_opens_a_step_with_a_missing_first_line():
    assert slots("F0 F1 B0 B1 O F1 B0 B1 O F0 F1") == counted(5, 4, 2)
    assert slots("F0 F1 B0 B1 F1 B0 B1 F1 B0 B1 F0") == counted(4, 3, 3, 1)


def test_transfers_belong_to_the_step_of_their_job():
    assert slots("r0 F0 r1 F1 B0 S0 r0 B1 O S1 F0 r1 F1") == [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1]


def test_a_receive_with_a_missing_forward_is_assigned_by_time():
    assert slots("F0 F1 B0 B1 O r2") == counted(6)


def test_a_learning_rate_job_belongs_to_the_next_or_current_step():
    assert slots("lr F0 B0 O lr F0 B0 O") == counted(4, 4)
    assert slots("F0 B0 lr O F0 B0 lr O") == counted(4, 4)


def test_unknown_jobs_are_assigned_by_time():
    assert slots("F0 x B0 O x F0 x") == [0, 0, 0, 0, 0, 1, 1]


def test_without_forwards_the_first_job_opens_steps():
    assert slots("B0 B1 B0 B1 B0 B1") == counted(2, 2, 2)


def test_a_log_with_only_transfers_has_steps():
    assert slots("r0 r1 r0 r1") == counted(2, 2)


def test_many_equal_jobs_are_handled():
    assert slots("F0 " + "B0 " * 3000) == [0, 0, *range(1, 3000)]
