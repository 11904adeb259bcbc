"""What every rank sent to every other one: the matrix of transfers between ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.large_tables import reduced
from stagescope.model.tables import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    totals = messages.lazy().group_by("source", "target")
    measured = totals.agg(
        messages=pl.len().cast(pl.Int64),
        bytes=_known_sum(pl.col("bytes")),
        transfer_ns=(pl.col("recv_end_ns") - posted_ns).clip(0).sum(),
        wait_ns=_sum_of_known(wait_ns),
    )
    return _declared(measured.collect())


def add_transfers(totals: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return the sum of tables TRANSFER_TOTALS of different messages."""
    return reduced(totals, _sum_of)


def _sum_of(totals: pl.DataFrame) -> pl.DataFrame:
    return _declared(
        totals.group_by("source", "target").agg(
            pl.sum("messages", "transfer_ns"),
            bytes=_known_sum(pl.col("bytes")),
            wait_ns=_sum_of_known(pl.col("wait_ns")),
        )
    )


def _known_sum(values: pl.Expr) -> pl.Expr:
    """Return a sum, null if one of the values is unknown."""
    return pl.when(values.is_not_null().all()).then(values.sum())


def _sum_of_known(values: pl.Expr) -> pl.Expr:
    """Return the sum of the known values, null without any."""
    return pl.when(values.is_not_null().any()).then(values.sum())


def _declared(totals: pl.DataFrame) -> pl.DataFrame:
    typed = totals.select(pl.col(name).cast(dtype) for name, dtype in TRANSFER_TOTALS.schema.items())
    return typed.sort("source", "target")
