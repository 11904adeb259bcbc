"""The busy and idle intervals inside windows of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stagescope.model.segments import search_segments

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


class WindowIntervals(NamedTuple):
    """Non-empty intervals sorted by window and start: the row of the window, start and end."""

    window: Integers
    start_ns: Integers
    end_ns: Integers


def find_idle_in_windows(windows: pl.DataFrame, busy: pl.DataFrame) -> WindowIntervals:
    """Return every interval of every window in which its rank was not busy.

    `windows` has rank, window_start_ns and window_end_ns; windows may overlap. `busy` is what `unite` returns.
    """
    begins_ns, ends_ns = (windows[name].to_numpy() for name in ("window_start_ns", "window_end_ns"))
    first, stop = _busy_rows(windows, busy)
    # n busy intervals have n + 1 idle ones between and around them; some of those are empty.
    counts = stop - first + 1
    window, place = _expand(counts)
    start_ns, end_ns = begins_ns[window], ends_ns[window]
    follows, precedes = place > 0, place < counts[window] - 1
    row = first[window] + place
    start_ns[follows] = busy["end_ns"].to_numpy()[row[follows] - 1]
    end_ns[precedes] = busy["start_ns"].to_numpy()[row[precedes]]
    return _not_empty(window, start_ns, end_ns)


def find_busy_in_windows(windows: pl.DataFrame, busy: pl.DataFrame) -> WindowIntervals:
    """Return every interval of every window in which its rank was busy; arguments as in find_idle_in_windows."""
    begins_ns, ends_ns = (windows[name].to_numpy() for name in ("window_start_ns", "window_end_ns"))
    first, stop = _busy_rows(windows, busy)
    window, place = _expand(stop - first)
    row = first[window] + place
    start_ns = np.maximum(busy["start_ns"].to_numpy()[row], begins_ns[window])
    return _not_empty(window, start_ns, np.minimum(busy["end_ns"].to_numpy()[row], ends_ns[window]))


def _busy_rows(windows: pl.DataFrame, busy: pl.DataFrame) -> tuple[Integers, Integers]:
    """Return the range of rows of `busy` that overlap each window."""
    ranks, known = windows["rank"].to_numpy(), busy["rank"].to_numpy()
    first, stop = (np.searchsorted(known, ranks, side=side) for side in ("left", "right"))
    begins_ns, ends_ns = (windows[name].to_numpy() for name in ("window_start_ns", "window_end_ns"))
    # + 1: an interval that ends where the window begins does not overlap it.
    first = search_segments(busy["end_ns"].to_numpy(), first, stop, begins_ns + 1)
    return first, search_segments(busy["start_ns"].to_numpy(), first, stop, ends_ns)


def _expand(counts: Integers) -> tuple[Integers, Integers]:
    """Return a row number and an index within the row for each of `counts` items of every row."""
    row = np.repeat(np.arange(len(counts)), counts)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)


def _not_empty(window: Integers, start_ns: Integers, end_ns: Integers) -> WindowIntervals:
    kept = end_ns > start_ns
    return WindowIntervals(window[kept], start_ns[kept], end_ns[kept])
