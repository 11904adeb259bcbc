from __future__ import annotations

import polars as pl
import pytest

from stagescope.ingest.ascend.clues import StepClues, When, key_of, usual_lengths
from stagescope.ingest.ascend.plan import Due, PlannedAction
from stagescope.schedules.recognition.matching import Mark

STAGES = 3


def due(kind, stage, microbatch):
    return Due(Mark(kind, 0, microbatch), (PlannedAction(kind, stage, 0, microbatch),))


def clues(times, row, known=None):
    return StepClues(
        [When(*each) for each in times], row, STAGES, {"forward": 10, "backward": 20}, known or {}
    )


FORWARDS = [due("forward", 0, j) for j in range(4)]
MIDDLE = [due("forward", 1, j) for j in range(4)]


def test_actions_back_to_back_leave_nothing_unexplained():
    found = clues([(0, 10), (10, 20)], FORWARDS)
    assert [found.unexplained_ns(seen, seen, seen) for seen in (0, 1)] == [0, 0]


def test_a_gap_of_its_length_explains_a_lost_action_and_nothing_else_does():
    found = clues([(0, 10), (20, 30)], FORWARDS)
    assert found.unexplained_ns(1, 2, 1) == 0
    assert found.unexplained_ns(1, 1, 1) == 10


def test_a_lost_action_that_does_not_fit_leaves_what_it_lacks():
    found = clues([(0, 10), (14, 24)], FORWARDS)
    assert found.unexplained_ns(1, 2, 1) == 6


def test_a_action_that_waits_for_its_input_is_explained_by_it():
    known = {(True, 0, 1): When(15, 25)}
    found = clues([(0, 10), (25, 35)], MIDDLE, known)
    assert found.unexplained_ns(1, 1, 1) == 0


def test_a_action_before_its_input_is_not():
    known = {(True, 0, 1): When(30, 40)}
    assert clues([(0, 10), (10, 20)], MIDDLE, known).unexplained_ns(1, 1, 1) == 30


def test_an_unknown_input_may_be_what_a_action_waited_for():
    assert clues([(0, 10), (25, 35)], MIDDLE).unexplained_ns(1, 1, 1) == 0


def test_what_is_used_before_it_ends_is_unexplained():
    known = {(True, 0, 0): When(-10, 0), (True, 2, 0): When(4, 14)}
    assert clues([(0, 10)], MIDDLE, known).unexplained_ns(0, 0, 0) == 6


def test_a_lost_action_must_have_ended_before_its_result_was_used():
    known = {(True, 1, 1): When(12, 22)}
    assert clues([(0, 10), (20, 30)], FORWARDS, known).unexplained_ns(1, 2, 1) == 8


def test_an_unusual_length_counts():
    assert clues([(0, 17)], FORWARDS).unexplained_ns(0, 0, 0) == 7


def test_actions_lost_after_the_last_one_need_no_gap():
    assert clues([(0, 10)], FORWARDS).unexplained_ns(1, 4, 1) == 0


def test_gradients_come_from_the_stage_above():
    row = [due("backward", 1, 0)]
    known = {(False, 2, 0): When(0, 20)}
    assert clues([(25, 45)], row, known).unexplained_ns(0, 0, 0) == 5
    assert key_of(row[0].parts[0]) == (False, 1, 0)


def test_the_margin_is_half_a_usual_action():
    assert clues([], []).margin_ns == pytest.approx(10)


def test_usual_lengths_are_medians_per_rank_and_sort():
    actions = pl.DataFrame(
        {"rank": [0, 0, 0, 1], "sort": ["F", "F", "F", "B"], "start_ns": [0] * 4, "end_ns": [1, 5, 99, 7]}
    )
    assert usual_lengths(actions) == {0: {"F": 5}, 1: {"B": 7}}
