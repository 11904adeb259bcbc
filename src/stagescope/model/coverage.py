"""How much of a stretch of time some intervals cover: unions, never sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.model.segments import search_segments

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


def unite(intervals: pl.DataFrame) -> pl.DataFrame:
    """Return the union of each rank's intervals as disjoint ones, sorted by rank and start.

    `intervals` has rank, start_ns, end_ns. The result has them too, and covered_before_ns: what the intervals
    of that rank before this one cover together. Empty and reversed intervals cover nothing.
    """
    ordered = (
        intervals.lazy().select("rank", "start_ns", "end_ns").filter(pl.col("end_ns") > pl.col("start_ns"))
    )
    ordered = ordered.sort("rank", "start_ns")
    # An interval opens a new stretch when it starts after everything before it on its rank has ended.
    stretches = ordered.with_columns(end_ns=pl.col("end_ns").cum_max().over("rank")).with_columns(
        opens=(pl.col("start_ns") > pl.col("end_ns").shift(1).over("rank")).fill_null(value=True)
    )
    # What has ended by the last interval of a stretch ended with it, as all stretches before it ended earlier.
    closes = pl.col("opens").shift(-1, fill_value=True)
    united = stretches.select(
        pl.col("rank", "start_ns").filter("opens"), pl.col("end_ns").filter(closes)
    ).collect()
    length_ns = pl.col("end_ns") - pl.col("start_ns")
    return united.with_columns(covered_before_ns=(length_ns.cum_sum() - length_ns).over("rank"))


def covered_ns(windows: pl.DataFrame, united: pl.DataFrame) -> pl.Series:
    """Return how many nanoseconds of each window its rank's intervals cover, in the order of `windows`.

    `windows` has rank, window_start_ns, window_end_ns and may hold windows that overlap; `united` is what
    `unite` returns.
    """
    ranks, known = windows["rank"].to_numpy(), united["rank"].to_numpy()
    first, stop = (np.searchsorted(known, ranks, side=side) for side in ("left", "right"))
    until_end, until_start = (
        _covered_until(windows[name].to_numpy(), first, stop, united)
        for name in ("window_end_ns", "window_start_ns")
    )
    return pl.Series("covered_ns", until_end - until_start)


def _covered_until(moment_ns: Integers, first: Integers, stop: Integers, united: pl.DataFrame) -> Integers:
    """Return what intervals [first, stop) of `united` cover from the beginning of time to a moment, row by row."""
    start_ns, end_ns, before_ns = (
        united[name].to_numpy() for name in ("start_ns", "end_ns", "covered_before_ns")
    )
    last = search_segments(start_ns, first, stop, moment_ns + 1) - 1
    covered: Integers = np.zeros(len(moment_ns), dtype=np.int64)
    begun = np.flatnonzero(last >= first)
    last = last[begun]
    covered[begun] = before_ns[last] + np.minimum(moment_ns[begun], end_ns[last]) - start_ns[last]
    return covered
