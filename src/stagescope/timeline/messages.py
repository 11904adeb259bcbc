"""Pair every send with its receive."""

from __future__ import annotations

import polars as pl

from stagescope.vocabulary.kinds import RECEIVES, SENDS

MESSAGE_KEY = ["step", "direction", "source", "target", "to_stage", "microbatch", "occurrence"]


def match_messages(spans: pl.DataFrame) -> pl.DataFrame:
    """Return one row per message that both ends recorded.

    Columns: step, direction (forward or backward), source and target (ranks), to_stage (the stage that
    receives), microbatch, occurrence (a stage may pass several tensors), send_row and recv_row (row numbers
    of `spans`), bytes, send_start_ns, send_end_ns, recv_start_ns, recv_end_ns, wait_start_ns, wait_end_ns.
    """
    numbered = spans.with_row_index("row").filter(
        pl.col("peer").is_not_null() & pl.col("stage").is_not_null()
    )
    sends = _ends(numbered.filter(pl.col("kind").is_in(SENDS)), is_send=True)
    receives = _ends(numbered.filter(pl.col("kind").is_in(RECEIVES)), is_send=False)
    return sends.join(receives, on=MESSAGE_KEY, how="inner", nulls_equal=True).sort("send_start_ns")


def _ends(spans: pl.DataFrame, *, is_send: bool) -> pl.DataFrame:
    """Return one end of every message, keyed by who sends what to whom."""
    forward = pl.col("kind").cast(pl.String).str.ends_with("forward")
    if is_send:
        source, target = pl.col("rank"), pl.col("peer")
        to_stage = pl.when(forward).then(pl.col("stage") + 1).otherwise(pl.col("stage") - 1)
        own = [
            pl.col("row").alias("send_row"),
            pl.col("bytes"),
            pl.col("start_ns").alias("send_start_ns"),
            pl.col("end_ns").alias("send_end_ns"),
        ]
    else:
        source, target = pl.col("peer"), pl.col("rank")
        to_stage = pl.col("stage")
        own = [
            pl.col("row").alias("recv_row"),
            pl.col("start_ns").alias("recv_start_ns"),
            pl.col("end_ns").alias("recv_end_ns"),
            pl.col("wait_start_ns"),
            pl.col("wait_end_ns"),
        ]
    keyed = spans.sort("start_ns", maintain_order=True).select(
        "step",
        pl.when(forward).then(pl.lit("forward")).otherwise(pl.lit("backward")).alias("direction"),
        source.alias("source"),
        target.alias("target"),
        to_stage.alias("to_stage"),
        "microbatch",
        *own,
    )
    key = [name for name in MESSAGE_KEY if name != "occurrence"]
    return keyed.with_columns(pl.int_range(pl.len()).over(key).alias("occurrence"))
