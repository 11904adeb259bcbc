"""Launches appended to one log."""

import polars as pl
import pytest

from stagescope.ingest.paddle.launches import split_launches

SECOND_NS = 1_000_000_000


def launches(*starts_s: float, banners=()):
    """Return the launches of half-second jobs with these start times; every second job opens a step.

    A banner is (job that it precedes, first step, stop).
    """
    jobs = pl.DataFrame(
        {
            "byte": [100 * number for number in range(len(starts_s))],
            "start_ns": [int(start * SECOND_NS) for start in starts_s],
            "end_ns": [int((start + 0.5) * SECOND_NS) for start in starts_s],
            "opens": [number % 2 == 0 for number in range(len(starts_s))],
            "is_main": [True] * len(starts_s),
        }
    )
    schema = {"byte": pl.Int64, "first": pl.Int32, "stop": pl.Int32}
    lines = pl.DataFrame([(100 * job - 1, first, stop) for job, first, stop in banners], schema, orient="row")
    return split_launches(jobs, lines)["launch"].to_list()


def test_steps_in_a_row_are_one_launch():
    assert launches(0, 1, 2, 3, 4, 5) == [0] * 6
    assert launches(0, 1, 2, 3, banners=[(0, 5, 9), (2, 5, 9)]) == [0] * 4


def test_a_banner_that_announces_other_steps_begins_a_launch():
    assert launches(0, 1, 2, 3, banners=[(0, 5, 9), (2, 50, 59)]) == [0, 0, 1, 1]


def test_a_first_banner_after_some_jobs_begins_no_launch():
    assert launches(0, 1, 2, 3, banners=[(2, 5, 9)]) == [0] * 4


@pytest.mark.parametrize("jump_s", [3600, 40, -1, -3600])
def test_a_jump_in_time_begins_a_launch(jump_s):
    assert launches(10, 11, 12, 13, 13 + jump_s, 14 + jump_s) == [0, 0, 0, 0, 1, 1]


def test_a_pause_is_long_by_the_length_of_the_steps():
    assert launches(0, 20, 100, 120, 200, 220) == [0] * 6
    assert launches(0, 20, 100, 120, 900, 920) == [0, 0, 0, 0, 1, 1]


def test_lines_of_one_step_may_be_in_any_order():
    assert launches(1, 0.5, 3, 2.5, 5, 4.5) == [0] * 6
