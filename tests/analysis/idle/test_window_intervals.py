"""Busy and idle intervals of windows."""

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from stagescope.analysis.idle.window_intervals import (
    WindowIntervals,
    find_busy_in_windows,
    find_idle_in_windows,
)
from stagescope.model.coverage import unite

MOMENTS = st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 10))


def intervals(rows: list[tuple[int, int, int]], *names: str) -> pl.DataFrame:
    """Return intervals given as rank, start and length."""
    table = [(rank, start_ns, start_ns + length_ns) for rank, start_ns, length_ns in rows]
    schema = {"rank": pl.Int32, names[0]: pl.Int64, names[1]: pl.Int64}
    return pl.DataFrame(table, schema=schema, orient="row")


def moments(stretches: WindowIntervals) -> list[tuple[int, int]]:
    """Return every nanosecond of every stretch beside the window that it is in."""
    return [
        (window, moment)
        for window, start_ns, end_ns in zip(*stretches, strict=True)
        for moment in range(start_ns, end_ns)
    ]


def test_idle_and_busy_intervals_of_a_window():
    busy = unite(intervals([(0, 10, 10), (0, 30, 5), (1, 0, 99)], "start_ns", "end_ns"))
    windows = intervals([(0, 15, 25)], "window_start_ns", "window_end_ns")
    assert [column.tolist() for column in find_idle_in_windows(windows, busy)] == [[0, 0], [20, 35], [30, 40]]
    assert [column.tolist() for column in find_busy_in_windows(windows, busy)] == [[0, 0], [15, 30], [20, 35]]


def test_rank_without_busy_time_is_idle_throughout():
    busy = unite(intervals([], "start_ns", "end_ns"))
    windows = intervals([(3, 5, 4)], "window_start_ns", "window_end_ns")
    assert moments(find_idle_in_windows(windows, busy)) == [(0, moment) for moment in range(5, 9)]
    assert moments(find_busy_in_windows(windows, busy)) == []


@settings(max_examples=30, deadline=None)
@given(st.lists(MOMENTS, max_size=12), st.lists(MOMENTS, max_size=6))
def test_every_nanosecond_is_either_busy_or_idle(busy_rows, window_rows):
    busy = unite(intervals(busy_rows, "start_ns", "end_ns"))
    windows = intervals(window_rows, "window_start_ns", "window_end_ns")
    computing = {
        (r, at) for r, start_ns, length_ns in busy_rows for at in range(start_ns, start_ns + length_ns)
    }
    everything = [
        (row, rank, at)
        for row, (rank, start_ns, length_ns) in enumerate(window_rows)
        for at in range(start_ns, start_ns + length_ns)
    ]
    expected_busy = [(row, at) for row, rank, at in everything if (rank, at) in computing]
    expected_idle = [(row, at) for row, rank, at in everything if (rank, at) not in computing]
    assert moments(find_busy_in_windows(windows, busy)) == expected_busy
    assert moments(find_idle_in_windows(windows, busy)) == expected_idle
