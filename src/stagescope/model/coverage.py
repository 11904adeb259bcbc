"""How much of a stretch of time a set of intervals covers: their union, not their sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.model.segments import search_segments

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


def unite(intervals: pl.DataFrame) -> pl.DataFrame:
    """Return the union of each rank's intervals as disjoint intervals, sorted by rank and start.

    `intervals` has the columns rank, start_ns and end_ns. The result adds covered_before_ns: the time that the
    earlier intervals of that rank cover. Empty and reversed intervals cover nothing.
    """
    if intervals.is_empty():
        return intervals.select("rank", "start_ns", "end_ns", covered_before_ns="start_ns")
    ordered = (
        intervals.lazy().select("rank", "start_ns", "end_ns").filter(pl.col("end_ns") > pl.col("start_ns"))
    )
    ordered = ordered.sort("rank", "start_ns")
    # An interval opens a new stretch when it starts after everything before it on its rank has ended.
    stretches = ordered.with_columns(end_ns=pl.col("end_ns").cum_max().over("rank")).with_columns(
        opens=(pl.col("start_ns") > pl.col("end_ns").shift(1).over("rank")).fill_null(value=True)
    )
    # The running maximum at the last interval of a stretch is the end of that stretch, as all earlier ones ended
    # before.
    closes = pl.col("opens").shift(-1, fill_value=True)
    united = stretches.select(
        pl.col("rank", "start_ns").filter("opens"), pl.col("end_ns").filter(closes)
    ).collect()
    length_ns = pl.col("end_ns") - pl.col("start_ns")
    return united.with_columns(covered_before_ns=(length_ns.cum_sum() - length_ns).over("rank"))


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
