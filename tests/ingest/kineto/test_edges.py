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


def edges(found, start, end, *, is_backward=False, ends_at_send=None):
    sends = None if ends_at_send is None else np.array([ends_at_send])
    stretch = np.array([start]), np.array([end])
    at = find_edges(found, *stretch, is_backward=np.array([is_backward]), ends_at_send=sends)
    return [int(column[0]) for column in at]


@settings(deadline=None)
@given(
    st.tuples(*(st.integers(0, 10**6) for _ in range(5))),
    st.booleans(),
    st.sampled_from([None, False, True]),
    st.sampled_from([OTHER, CLOSING]),
)
def test_recovers_planted_edges_within_the_stated_error(times, is_backward, ends_at_send, what):
    """The action is wider than its operator, and the annotation wider than the action."""
    before, ahead, length, behind, after = times
    action_start, action_end = before, before + ahead + length + 1 + behind
    found = operators((what, action_start + ahead, action_start + ahead + length + 1))
    start, end, error = edges(
        found, 0, action_end + after, is_backward=is_backward, ends_at_send=ends_at_send
    )
    assert max(abs(start - action_start), abs(end - action_end)) <= error
    assert start <= 2 * HALF_OF_START_NS


def test_the_preparation_of_a_send_is_excluded():
    for ends_at_send, end in ((True, 54), (False, 60)):
        found = edges(operators((OTHER, 0, 30)), 0, 90, ends_at_send=ends_at_send)
        assert found == [0, end, max(90 - end, end - 30)]


def test_almost_nothing_of_a_backward_follows_its_closing_operator():
    ran = operators((BACKWARD, 0, 30_000), (CLOSING, 40_000, 41_000))
    for is_backward, end in ((True, 41_000 + CLOSED_NS), (False, 66_000)):
        found = edges(ran, 0, 91_000, is_backward=is_backward)
        assert found == [0, end, max(91_000 - end, end - 41_000)]


def test_the_fraction_before_an_action_shrinks_with_the_distance():
    starts = [edges(operators((OTHER, at, at + 1)), 0, at + 1)[0] for at in (60_000, 200_000, 400_000, 10**7)]
    assert starts == [30_000, 50_000, 80_000, 100_000]


def test_without_operators_the_error_is_the_whole_annotation():
    assert edges(operators(), 5, 90) == [47, 90, 85]


def test_operators_outside_of_the_interval_are_ignored():
    assert edges(operators((OTHER, 0, 3), (OTHER, 95, 99)), 5, 90) == [47, 90, 85]


def test_the_last_outermost_loss_of_an_interval_is_found():
    found = operators((OTHER, 0, 10), (LOSS, 12, 14), (LOSS, 20, 50), (LOSS, 35, 45))
    assert found.loss_start(np.array([0, 51]), np.array([60, 60])).tolist() == [20, NEVER]
    assert found.loss_end(np.array([0]), np.array([60])).tolist() == [50]
