"""Unions of intervals, and how much of a window they cover."""

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from stagescope.model.coverage import covered_ns, unite

RANK = pl.Int32


def intervals(*rows: tuple[int, int, int]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"rank": RANK, "start_ns": pl.Int64, "end_ns": pl.Int64}, orient="row")


def windows(*rows: tuple[int, int, int]) -> pl.DataFrame:
    schema = {"rank": RANK, "window_start_ns": pl.Int64, "window_end_ns": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def test_overlapping_touching_and_nested_intervals_become_one():
    united = unite(intervals((0, 0, 10), (0, 2, 4), (0, 3, 12), (0, 12, 15), (0, 20, 21)))
    assert united.rows() == [(0, 0, 15, 0), (0, 20, 21, 15)]


def test_ranks_are_united_apart():
    united = unite(intervals((1, 5, 9), (0, 0, 6), (1, 0, 2)))
    assert united.rows() == [(0, 0, 6, 0), (1, 0, 2, 0), (1, 5, 9, 2)]


def test_empty_reversed_and_unknown_intervals_cover_nothing():
    assert unite(intervals((0, 3, 3), (0, 9, 5), (0, None, 5), (0, 5, None))).is_empty()


def test_a_window_is_covered_by_what_lies_inside_it_only():
    united = unite(intervals((0, 0, 10), (0, 20, 30)))
    inside = windows((0, 5, 25), (0, 10, 20), (0, 0, 30), (0, 12, 12), (1, 0, 30))
    assert covered_ns(inside, united).to_list() == [10, 0, 20, 0, 0]


def test_timestamps_since_the_epoch_are_exact():
    epoch_ns = 1_763_634_533_123_456_789
    united = unite(intervals((0, epoch_ns, epoch_ns + 3), (0, epoch_ns + 5, epoch_ns + 6)))
    assert covered_ns(windows((0, epoch_ns + 1, epoch_ns + 6)), united).to_list() == [3]


def test_ranks_with_numbers_and_times_far_apart_are_united_apart():
    last, later = 2**31 - 1, 2**61
    united = unite(
        intervals((last, later, later + 7), (0, 0, 5), (3, later, later + 2), (0, 3, 9), (last, 1, 2))
    )
    expected = [(0, 0, 9, 0), (3, later, later + 2, 0), (last, 1, 2, 0), (last, later, later + 7, 1)]
    assert united.rows() == expected


def test_times_before_and_after_zero_are_united():
    most = 2**62
    assert unite(intervals((4, -most, 5), (4, 5, most - 1))).rows() == [(4, -most, most - 1, 0)]


moments = st.integers(-20, 20)
rows = st.tuples(st.integers(0, 2), moments, moments)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(rows, max_size=12), st.lists(rows.map(lambda r: (r[0], *sorted(r[1:]))), min_size=1, max_size=5)
)
def test_coverage_is_what_counting_every_nanosecond_gives(some, asked):
    covered = covered_ns(windows(*asked), unite(intervals(*some)))
    by_counting = [
        sum(any(r == rank and a <= moment < b for r, a, b in some) for moment in range(start, end))
        for rank, start, end in asked
    ]
    assert covered.to_list() == by_counting
