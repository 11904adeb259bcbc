"""What every rank sent to every other one: the matrix of transfers between ranks."""

from __future__ import annotations

import polars as pl

from stagescope.model.tables import Column, Table

TRANSFER_TOTALS = Table(
    "transfer_totals",
    "one pair of ranks, of which one sent to the other, over the whole run",
    ("source", "target"),
    (
        Column("source", pl.Int32, "", "Rank that sent."),
        Column("target", pl.Int32, "", "Rank that received."),
        Column("messages", pl.Int64, "", "Messages that both ends recorded."),
        Column("bytes", pl.Int64, "B", "Sum of their sizes; null: that of some is unknown.", nullable=True),
        Column(
            "transfer_ns",
            pl.Int64,
            "ns",
            "From when both ends had posted a message until it had arrived, summed over the messages.",
        ),
        Column(
            "wait_ns",
            pl.Int64,
            "ns",
            "Time in which the receiver was blocked on them; null: no wait was recorded.",
            nullable=True,
        ),
    ),
)


def measure_transfers(messages: pl.DataFrame) -> pl.DataFrame:
    """Return the table TRANSFER_TOTALS of matched messages (match_messages).

    A message that had arrived before its receive was posted took no time after that, and counts as 0 ns.
    """
    posted_ns = pl.max_horizontal("send_start_ns", "recv_start_ns")
    wait_ns = (pl.col("wait_end_ns") - pl.col("wait_start_ns")).clip(0)
    totals = (
        messages.lazy()
        .group_by("source", "target")
        .agg(
            messages=pl.len().cast(pl.Int64),
            bytes=pl.when(pl.col("bytes").is_not_null().all()).then(pl.col("bytes").sum()),
            transfer_ns=(pl.col("recv_end_ns") - posted_ns).clip(0).sum(),
            wait_ns=pl.when(wait_ns.is_not_null().any()).then(wait_ns.sum()),
        )
        .sort("source", "target")
        .collect()
    )
    return totals.select(pl.col(name).cast(dtype) for name, dtype in TRANSFER_TOTALS.schema.items())
