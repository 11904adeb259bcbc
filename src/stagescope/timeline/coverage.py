"""How much of a stretch of time some intervals cover: unions, never sums."""

from __future__ import annotations

import polars as pl


def unite(intervals: pl.DataFrame) -> pl.DataFrame:
    """Return the union of each rank's intervals as disjoint ones, sorted by rank and start.

    `intervals` has rank, start_ns, end_ns. The result has them too, and covered_before_ns: what the intervals
    of that rank before this one cover together. Empty and reversed intervals cover nothing.
    """
    ordered = intervals.select("rank", "start_ns", "end_ns").filter(pl.col("end_ns") > pl.col("start_ns"))
    ordered = ordered.sort("rank", "start_ns")
    # An interval opens a new stretch when it starts after everything before it on its rank has ended.
    opens = pl.col("start_ns") > pl.col("end_ns").cum_max().shift(1).over("rank")
    return (
        ordered.with_columns(stretch=opens.fill_null(value=True).cum_sum())
        .group_by("stretch", maintain_order=True)
        .agg(pl.first("rank"), pl.first("start_ns"), pl.max("end_ns"))
        .with_columns(length_ns=pl.col("end_ns") - pl.col("start_ns"))
        .with_columns(covered_before_ns=(pl.col("length_ns").cum_sum() - pl.col("length_ns")).over("rank"))
        .select("rank", "start_ns", "end_ns", "covered_before_ns")
    )


def covered_ns(windows: pl.DataFrame, united: pl.DataFrame) -> pl.Series:
    """Return how many nanoseconds of each window its rank's intervals cover, in the order of `windows`.

    `windows` has rank, window_start_ns, window_end_ns and may hold windows that overlap; `united` is what
    `unite` returns.
    """
    moments = ("window_end_ns", "window_start_ns")
    until_end, until_start = (_covered_until(windows, moment, united) for moment in moments)
    return pl.select(covered_ns=until_end - until_start).to_series()


def _covered_until(windows: pl.DataFrame, moment: str, united: pl.DataFrame) -> pl.Series:
    """Return what each rank's intervals cover from the beginning of time to one moment per window."""
    moments = windows.select("rank", pl.col(moment).alias("moment_ns")).with_row_index("row")
    at = moments.sort("moment_ns").join_asof(
        united.sort("start_ns"),
        left_on="moment_ns",
        right_on="start_ns",
        by="rank",
        strategy="backward",
        check_sortedness=False,  # both sides were sorted just above; polars cannot see that through `by`
    )
    since_start = pl.min_horizontal("moment_ns", "end_ns") - pl.col("start_ns")
    covered = (pl.col("covered_before_ns") + since_start).fill_null(0)
    return at.select("row", covered.alias("covered_ns")).sort("row")["covered_ns"]
