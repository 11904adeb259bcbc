"""How much of a stretch of time a set of intervals covers: their union, not their sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.model.segments import search_segments
from stagescope.vocabulary.kinds import COMPUTE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

BOUNDS = ("rank", "start_ns", "end_ns")
LARGEST = np.iinfo(np.int64).max
"""Numbers of rank and time may be as large as this."""


def unite(intervals: pl.DataFrame) -> pl.DataFrame:
    """Return the union of each rank's intervals as disjoint intervals, sorted by rank and start.

    `intervals` has the columns rank, start_ns and end_ns. The result adds covered_before_ns: the time that the
    earlier intervals of that rank cover. Empty, reversed and unknown intervals cover nothing.
    """
    bounds = [intervals[name] for name in BOUNDS]
    if any(bound.null_count() for bound in bounds):
        bounds = intervals.select(BOUNDS).drop_nulls().get_columns()
    rank, start_ns, end_ns = (bound.to_numpy() for bound in bounds)
    lasting = end_ns > start_ns
    if not lasting.all():
        rank, start_ns, end_ns = rank[lasting], start_ns[lasting], end_ns[lasting]
    united = _unite(rank, start_ns, end_ns)
    columns = [pl.Series(bound.name, each, bound.dtype) for bound, each in zip(bounds, united, strict=True)]
    return pl.DataFrame([*columns, pl.Series("covered_before_ns", _covered_before(*united), pl.Int64)])


def unite_computing(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the union of all spans on the compute lane, per rank, as `unite` does."""
    computing = spans.lazy().filter(pl.col("lane") == COMPUTE)
    return unite(computing.select(BOUNDS).collect())


def _unite(rank: Integers, start_ns: Integers, end_ns: Integers) -> tuple[Integers, Integers, Integers]:
    """Return rank, start and end of the unions of intervals that last, sorted by rank and start.

    One number represents rank and time, so that all starts are sorted at once, and all ends. What starts after as many
    intervals have ended as have started before opens a new stretch; the last of those ends closes the one before.
    Intervals are mostly sorted already, of which a stable sort takes advantage: 0.1 s became 10 ms for 500,000.
    """
    if not len(rank):
        return rank, start_ns, end_ns
    first, last, begin_ns = int(rank.min()), int(rank.max()), int(start_ns.min())
    width = int(end_ns.max()) - begin_ns + 1
    if first < last and (last - first + 1) * width > LARGEST:
        is_low = rank <= (first + last) // 2
        parts = [_unite(rank[which], start_ns[which], end_ns[which]) for which in (is_low, ~is_low)]
        return tuple(np.concatenate(each) for each in zip(*parts, strict=True))  # type: ignore[return-value]
    shift_ns = (rank.astype(np.int64) - first) * width - begin_ns if first < last else np.int64(0)
    starts, ends = (np.sort(each + shift_ns, kind="stable") for each in (start_ns, end_ns))
    is_gap = starts[1:] > ends[:-1]
    starts, ends = starts[np.append(True, is_gap)], ends[np.append(is_gap, True)]
    if first == last:
        return np.full(len(starts), first, dtype=rank.dtype), starts, ends
    code = starts // width
    shift_ns = code * width - begin_ns
    return (code + first).astype(rank.dtype), starts - shift_ns, ends - shift_ns


def _covered_before(rank: Integers, start_ns: Integers, end_ns: Integers) -> Integers:
    """Return how much the intervals of the same rank before each one cover, given sorted disjoint intervals."""
    length_ns = (end_ns - start_ns).astype(np.int64)
    before_ns = np.cumsum(length_ns) - length_ns
    first = np.flatnonzero(np.append(True, rank[1:] != rank[:-1])[: len(rank)])
    before: Integers = before_ns - np.repeat(before_ns[first], np.diff(np.append(first, len(rank))))
    return before


def covered_ns(windows: pl.DataFrame, united: pl.DataFrame) -> pl.Series:
    """Return how many nanoseconds of each window its rank's intervals cover, in the order of `windows`.

    `windows` has the columns rank, window_start_ns and window_end_ns; windows may overlap. `united` is the result of
    `unite`.
    """
    ranks, known = windows["rank"].to_numpy(), united["rank"].to_numpy()
    first, stop = (np.searchsorted(known, ranks, side=side) for side in ("left", "right"))
    until_end, until_start = (
        _covered_until(windows[name].to_numpy(), first, stop, united)
        for name in ("window_end_ns", "window_start_ns")
    )
    return pl.Series("covered_ns", until_end - until_start)


def _covered_until(moment_ns: Integers, first: Integers, stop: Integers, united: pl.DataFrame) -> Integers:
    """Return the time that intervals [first, stop) of `united` cover before a moment, for each row."""
    start_ns, end_ns, before_ns = (
        united[name].to_numpy() for name in ("start_ns", "end_ns", "covered_before_ns")
    )
    last = search_segments(start_ns, first, stop, moment_ns + 1) - 1
    covered: Integers = np.zeros(len(moment_ns), dtype=np.int64)
    begun = np.flatnonzero(last >= first)
    last = last[begun]
    covered[begun] = before_ns[last] + np.minimum(moment_ns[begun], end_ns[last]) - start_ns[last]
    return covered
