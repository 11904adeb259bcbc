"""Edges of actions between annotations and operators."""

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from stagescope.ingest.kineto.edges import CLOSED_NS, HALF_OF_START_NS, NEVER, Operators, find_edges
from stagescope.ingest.kineto.operator_classes import BACKWARD, CLOSING, LOSS, OTHER


def operators(*rows):
    columns = list(zip(*rows, strict=True)) if rows else [[], [], []]
    return Operators(
        pl.DataFrame(
            {"what": columns[0], "start_ns": columns[1], "end_ns": columns[2]},
            {"what": pl.Int8, "start_ns": pl.Int64, "end_ns": pl.Int64},
        )
    )


def edges(found, start, end, *, is_backward=False, sends_behind=None):
    sends = None if sends_behind is None else np.array([sends_behind])
    stretch = np.array([start]), np.array([end])
    at = find_edges(found, *stretch, is_backward=np.array([is_backward]), sends_behind=sends)
    return [int(column[0]) for column in at]


@settings(deadline=None)
@given(
    st.tuples(*(st.integers(0, 10**6) for _ in range(5))),
    st.booleans(),
    st.sampled_from([None, False, True]),
    st.sampled_from([OTHER, CLOSING]),
)
def test_a_planted_action_lies_within_the_stated_error(times, is_backward, sends_behind, what):
    """The action is wider than its operator, and the annotation wider than the action."""
    before, ahead, length, behind, after = times
    action_start, action_end = before, before + ahead + length + 1 + behind
    found = operators((what, action_start + ahead, action_start + ahead + length + 1))
    start, end, error = edges(
        found, 0, action_end + after, is_backward=is_backward, sends_behind=sends_behind
    )
    assert max(abs(start - action_start), abs(end - action_end)) <= error
    assert start <= 2 * HALF_OF_START_NS


def test_what_prepares_a_send_is_not_of_the_action():
    for sends_behind, end in ((True, 54), (False, 60)):
        found = edges(operators((OTHER, 0, 30)), 0, 90, sends_behind=sends_behind)
        assert found == [0, end, max(90 - end, end - 30)]


def test_behind_the_operator_that_closes_a_backward_there_is_next_to_nothing():
    ran = operators((BACKWARD, 0, 30_000), (CLOSING, 40_000, 41_000))
    for is_backward, end in ((True, 41_000 + CLOSED_NS), (False, 66_000)):
        found = edges(ran, 0, 91_000, is_backward=is_backward)
        assert found == [0, end, max(91_000 - end, end - 41_000)]


def test_the_longer_the_stretch_the_less_of_it_is_before_the_action():
    starts = [edges(operators((OTHER, at, at + 1)), 0, at + 1)[0] for at in (60_000, 200_000, 400_000, 10**7)]
    assert starts == [30_000, 50_000, 80_000, 100_000]


def test_without_operators_a_action_is_somewhere_in_its_annotation():
    assert edges(operators(), 5, 90) == [47, 90, 85]


def test_operators_of_another_time_say_nothing():
    assert edges(operators((OTHER, 0, 3), (OTHER, 95, 99)), 5, 90) == [47, 90, 85]


def test_a_loss_is_the_last_of_a_stretch_and_one_inside_another_is_none():
    found = operators((OTHER, 0, 10), (LOSS, 12, 14), (LOSS, 20, 50), (LOSS, 35, 45))
    assert found.loss_start(np.array([0, 51]), np.array([60, 60])).tolist() == [20, NEVER]
    assert found.loss_end(np.array([0]), np.array([60])).tolist() == [50]
