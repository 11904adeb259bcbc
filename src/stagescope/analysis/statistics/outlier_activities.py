"""What a rank was recorded to do inside its outlier actions: a garbage collection, loading of data, a collective."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.vocabulary.kinds import COLLECTIVE, HOST, TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Mapping

LEAST_FRACTION = 0.5
"""An activity explains an outlier if it takes at least this part of its excess."""

MOST = 0.5
"""Several outliers are explained by an activity that explains more than this part of them."""

PLACE = ["rank", "step"]


def name_activities_inside(
    outliers: pl.DataFrame, spans: pl.DataFrame, left_out: pl.DataFrame
) -> pl.DataFrame:
    """Return the columns activity and activity_ns of every outlier: what explains it, and for how long.

    `outliers` has rank, step, start_ns, end_ns and excess_ns. Of a collective, only the wait for it counts,
    and not if it is in `left_out` (rank, start_ns, end_ns), which durations of outliers are without.
    """
    waits = left_out.select("rank", "start_ns", "end_ns")
    inside = (
        _activities(spans, outliers)
        .join(waits, on=waits.columns, how="anti")
        .rename({"start_ns": "begin_ns", "end_ns": "until_ns"})
    )
    took_ns = pl.min_horizontal("end_ns", "until_ns") - pl.max_horizontal("start_ns", "begin_ns")
    rows = outliers.select(*PLACE, "start_ns", "end_ns", "excess_ns").with_row_index("outlier")
    found = (
        rows.join(inside, on=PLACE)
        .with_columns(activity_ns=took_ns)
        .filter(pl.col("activity_ns") > 0)
        .group_by("outlier", "activity")
        .agg(pl.sum("activity_ns"), pl.first("excess_ns"))
        .filter(pl.col("activity_ns") >= LEAST_FRACTION * pl.col("excess_ns"))
        .sort("activity_ns", "activity", descending=[True, False])
        .group_by("outlier", maintain_order=True)
        .first()
    )
    named = rows.select("outlier").join(found, on="outlier", how="left", maintain_order="left")
    return named.select("activity", "activity_ns")


def _activities(spans: pl.DataFrame, outliers: pl.DataFrame) -> pl.DataFrame:
    """Return rank, step, activity, start_ns and end_ns of the activities of the ranks and steps with an outlier."""
    is_collective = pl.col("kind") == COLLECTIVE
    is_on_host = (pl.col("lane") == HOST) & ~pl.col("kind").is_in(TRANSFERS)
    chosen = spans.lazy().filter(pl.col("name").is_not_null(), is_on_host | is_collective)
    places = outliers.lazy().select(PLACE).unique()
    found = chosen.join(places, on=PLACE, how="semi", maintain_order="left").select(
        *PLACE,
        pl.col("name").cast(pl.String).alias("activity"),
        start_ns=pl.when(is_collective).then("wait_start_ns").otherwise("start_ns"),
        end_ns=pl.when(is_collective).then("wait_end_ns").otherwise("end_ns"),
    )
    return found.collect()


def common_activity_text(rows: pl.DataFrame) -> str:
    """Return what most of several rows of OUTLIER_ACTIONS have in common; empty if no activity explains most of them.

    >>> common_activity_text(pl.DataFrame({"activity": ["data loading", "data loading", None]}))
    '2 of them during data loading'
    """
    named = rows.drop_nulls("activity").group_by("activity").len().sort("len", "activity")
    if rows.height == 1 or named.is_empty():
        return ""
    activity, count = named.row(-1)
    if count <= MOST * rows.height:
        return ""
    return f"{'' if count == rows.height else f'{count} of them '}during {activity}"


def activity_text(row: Mapping[str, object]) -> str:
    """Return what explains a row of OUTLIER_ACTIONS, to be appended to how long it took; empty if nothing does."""
    return f", during {row['activity']}" if row["activity"] else ""
