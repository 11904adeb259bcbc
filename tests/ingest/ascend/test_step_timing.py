from __future__ import annotations

import polars as pl
import pytest

from stagescope.ingest.ascend.plan import PlannedAction, PlannedMark
from stagescope.ingest.ascend.step_timing import Interval, StepTiming, action_key, usual_lengths
from stagescope.schedules.recognition.matching import Mark

STAGES = 3


def planned(kind, stage, microbatch):
    return PlannedMark(Mark(kind, 0, microbatch), (PlannedAction(kind, stage, 0, microbatch),))


def clues(times, row, known=None):
    return StepTiming(
        [Interval(*each) for each in times], row, STAGES, {"forward": 10, "backward": 20}, known or {}
    )


FORWARDS = [planned("forward", 0, j) for j in range(4)]
MIDDLE = [planned("forward", 1, j) for j in range(4)]


def test_actions_back_to_back_leave_nothing_unexplained():
    found = clues([(0, 10), (10, 20)], FORWARDS)
    assert [found.unexplained_ns(seen, seen, seen) for seen in (0, 1)] == [0, 0]


def test_idle_time_of_its_length_explains_a_missing_action():
    found = clues([(0, 10), (20, 30)], FORWARDS)
    assert found.unexplained_ns(1, 2, 1) == 0
    assert found.unexplained_ns(1, 1, 1) == 10


def test_a_missing_action_longer_than_the_idle_time_leaves_the_difference():
    found = clues([(0, 10), (14, 24)], FORWARDS)
    assert found.unexplained_ns(1, 2, 1) == 6


def test_waiting_for_an_input_is_explained():
    known = {(True, 0, 1): Interval(15, 25)}
    found = clues([(0, 10), (25, 35)], MIDDLE, known)
    assert found.unexplained_ns(1, 1, 1) == 0


def test_starting_before_the_input_is_not_explained():
    known = {(True, 0, 1): Interval(30, 40)}
    assert clues([(0, 10), (10, 20)], MIDDLE, known).unexplained_ns(1, 1, 1) == 30


def test_waiting_for_an_unknown_input_is_explained():
    assert clues([(0, 10), (25, 35)], MIDDLE).unexplained_ns(1, 1, 1) == 0


def test_use_of_a_result_before_its_end_is_not_explained():
    known = {(True, 0, 0): Interval(-10, 0), (True, 2, 0): Interval(4, 14)}
    assert clues([(0, 10)], MIDDLE, known).unexplained_ns(0, 0, 0) == 6


def test_a_missing_action_must_end_before_its_result_is_used():
    known = {(True, 1, 1): Interval(12, 22)}
    assert clues([(0, 10), (20, 30)], FORWARDS, known).unexplained_ns(1, 2, 1) == 8


def test_an_unusual_length_is_not_explained():
    assert clues([(0, 17)], FORWARDS).unexplained_ns(0, 0, 0) == 7


def test_actions_missing_after_the_last_one_need_no_idle_time():
    assert clues([(0, 10)], FORWARDS).unexplained_ns(1, 4, 1) == 0


def test_gradients_come_from_the_next_stage():
    row = [planned("backward", 1, 0)]
    known = {(False, 2, 0): Interval(0, 20)}
    assert clues([(25, 45)], row, known).unexplained_ns(0, 0, 0) == 5
    assert action_key(row[0].parts[0]) == (False, 1, 0)


def test_the_margin_is_half_a_typical_action():
    assert clues([], []).margin_ns == pytest.approx(10)


def test_usual_lengths_are_medians_per_rank_and_sort():
    actions = pl.DataFrame(
        {"rank": [0, 0, 0, 1], "sort": ["F", "F", "F", "B"], "start_ns": [0] * 4, "end_ns": [1, 5, 99, 7]}
    )
    assert usual_lengths(actions) == {0: {"F": 5}, 1: {"B": 7}}
