"""Micro-batches in flight on a rank: their forward has begun, their gradients are not complete."""

from __future__ import annotations

import polars as pl

COUNTER_NAME = "micro-batches in flight"
_ACTION = ["rank", "step", "stage", "microbatch"]


def count_in_flight(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the counter of every rank as rank, time_ns, value, with one row per change.

    A micro-batch counts once per stage, from the start of its first forward to the end of its last B or W. An I alone
    keeps it in flight, because the weight gradient still needs its activations. Actions without a forward in `spans`
    do not count, so the counter is never negative.
    """
    actions = spans.filter(pl.col("microbatch").is_not_null())
    begins = (
        actions.filter(pl.col("kind") == "forward").group_by(_ACTION).agg(time_ns=pl.col("start_ns").min())
    )
    ends = (
        actions.filter(pl.col("kind").is_in(["backward", "backward_weight"]))
        .group_by(_ACTION)
        .agg(end_ns=pl.col("end_ns").max())
    )
    closed = begins.join(ends, on=_ACTION, nulls_equal=True)
    changes = pl.concat(
        [
            begins.select("rank", "time_ns", change=pl.lit(1)),
            closed.select("rank", time_ns=pl.max_horizontal("time_ns", "end_ns"), change=pl.lit(-1)),
        ]
    )
    # Changes at the same time are combined: a backward that ends where the next forward starts is not a dip.
    moments = changes.group_by("rank", "time_ns").agg(pl.col("change").sum()).sort("rank", "time_ns")
    return moments.select("rank", "time_ns", value=pl.col("change").cum_sum().over("rank").cast(pl.Int64))
