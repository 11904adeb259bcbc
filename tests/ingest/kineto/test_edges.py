"""Edges of jobs between annotations and operators."""

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from stagescope.ingest.kineto.edges import MOST_SHIFT_NS, NEVER, Operators, find_edges
from stagescope.ingest.kineto.operator_classes import LOSS, OTHER


def operators(*rows):
    columns = list(zip(*rows, strict=True)) if rows else [[], [], []]
    return Operators(
        pl.DataFrame(
            {"what": columns[0], "start_ns": columns[1], "end_ns": columns[2]},
            {"what": pl.Int8, "start_ns": pl.Int64, "end_ns": pl.Int64},
        )
    )


def edges(found, start, end):
    return [int(column[0]) for column in find_edges(found, np.array([start]), np.array([end]))]


@settings(deadline=None)
@given(*(st.integers(0, 10**6) for _ in range(5)))
def test_a_planted_job_lies_within_the_stated_error(before, ahead, length, behind, after):
    """The job is wider than its operator, and the annotation wider than the job."""
    job_start, job_end = before, before + ahead + length + 1 + behind
    found = operators((OTHER, job_start + ahead, job_start + ahead + length + 1))
    start, end, error = edges(found, 0, job_end + after)
    assert max(abs(start - job_start), abs(end - job_end)) <= error
    assert start <= MOST_SHIFT_NS["start"]


def test_what_prepares_a_send_is_not_of_the_job():
    stretch = np.array([0]), np.array([90])
    for sends_behind, end in ((True, 50), (False, 60)):
        found = find_edges(operators((OTHER, 0, 30)), *stretch, np.array([sends_behind]))
        assert (int(found.end_ns[0]), int(found.error_ns[0])) == (end, max(90 - end, end - 30))


def test_without_operators_a_job_is_somewhere_in_its_annotation():
    assert edges(operators(), 5, 90) == [47, 90, 85]


def test_operators_of_another_time_say_nothing():
    assert edges(operators((OTHER, 0, 3), (OTHER, 95, 99)), 5, 90) == [47, 90, 85]


def test_a_loss_is_the_last_of_a_stretch_and_one_inside_another_is_none():
    found = operators((OTHER, 0, 10), (LOSS, 12, 14), (LOSS, 20, 50), (LOSS, 35, 45))
    assert found.loss_start(np.array([0, 51]), np.array([60, 60])).tolist() == [20, NEVER]
    assert found.loss_end(np.array([0]), np.array([60])).tolist() == [50]
