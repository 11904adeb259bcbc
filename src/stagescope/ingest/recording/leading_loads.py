"""Forwards that begin with the loading of data start, as actions, when the data is there.

Megatron's ``forward_step`` calls the training's function, which first takes the next batch from an iterator, as do many
hand-written loops. The recorder's hooks see one call, and the loading inside of it as a span of its own. Counted as
work, a slow loader would be a slow rank.
"""

from __future__ import annotations

import polars as pl

from stagescope.record.frameworks.host_activities import DATA_LOADING

MOST_BEFORE_NS = 100_000
MOST_BEFORE_FRACTION = 0.1
"""What a forward does before it loads: at most this long, or this part of the loading."""


def without_leading_loads(spans: pl.DataFrame) -> pl.DataFrame:
    """Return spans in which no forward begins with loading by the same rank.

    Forwards of overlapped pairs are left as they are. On a device, a forward may start after its loading has ended,
    and is left as well.
    """
    is_load = (pl.col("kind") == "other") & (pl.col("name") == DATA_LOADING)
    times = {"load_start_ns": "start_ns", "load_end_ns": "end_ns"}
    loads = spans.filter(is_load).select("rank", **times).sort("load_start_ns")
    if loads.is_empty():
        return spans
    rows = spans.with_row_index("row")
    forwards = rows.filter(pl.col("kind") == "forward", pl.col("pair").is_null()).sort("start_ns")
    began = [
        forwards.join_asof(
            loads,
            left_on="start_ns",
            right_on="load_start_ns",
            by="rank",
            strategy=strategy,
            check_sortedness=False,
        )
        for strategy in ("backward", "forward")
    ]
    least_ns = pl.max_horizontal(
        MOST_BEFORE_NS, (pl.col("load_end_ns") - pl.col("load_start_ns")) * MOST_BEFORE_FRACTION
    )
    is_first = pl.col("load_start_ns") - pl.col("start_ns") <= least_ns
    is_inside = (pl.col("load_end_ns") > pl.col("start_ns")) & (pl.col("load_end_ns") < pl.col("end_ns"))
    found = pl.concat(began).filter(is_first & is_inside).group_by("row").agg(loaded_ns=pl.max("load_end_ns"))
    return (
        rows.join(found, on="row", how="left", maintain_order="left")
        .with_columns(start_ns=pl.coalesce("loaded_ns", "start_ns"))
        .drop("row", "loaded_ns")
    )
