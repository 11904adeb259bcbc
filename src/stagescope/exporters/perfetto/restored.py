"""What a reader of an export restores from neighboring slices, and what has to be written because it cannot.

A wait names its stage and micro-batch, but not its transfer. Readers (ingest/perfetto/own_exports.py) give the n-th
wait of a rank, side, stage and micro-batch to the n-th of their transfers, both in the order of their ends. Where this
is wrong, because some transfers have no wait or the host looked at them in another order, the wait has the number.
"""

from __future__ import annotations

import polars as pl

from stagescope.vocabulary.kinds import ALL_SENDS, COMM_KINDS

_OF = ["rank", "is_send", "stage", "microbatch"]
_NOT_DRAWN = -1
"""The number of a wait for something that is no transfer."""


def transfer_numbers(slices: pl.DataFrame) -> pl.Series:
    """Return the argument `transfer` of every slice, null unless it is a wait that needs it."""
    drawn = slices.select(
        "span", "is_wait", "rank", "stage", "microbatch", "end_ns",
        slice=pl.int_range(pl.len()),
        start_ns=pl.coalesce("issue_ns", "start_ns"),
        is_send=pl.col("kind").is_in(ALL_SENDS),
        is_transfer=pl.col("kind").is_in(COMM_KINDS),
    )  # fmt: skip
    waits = _numbered(drawn.filter("is_wait"))
    transfers = _numbered(drawn.filter(~pl.col("is_wait") & pl.col("is_transfer")))
    right = transfers.select("span", right="number")
    wrong = (
        waits.join(right, on="span", how="left")
        .with_columns(pl.col("right").fill_null(_NOT_DRAWN))
        .filter(pl.col("right") != pl.col("number"))
    )
    written = drawn.select("slice").join(
        wrong.select("slice", "right"), on="slice", how="left", maintain_order="left"
    )
    return written["right"]


def _numbered(slices: pl.DataFrame) -> pl.DataFrame:
    """Return the slices with their number among those of the same rank, side, stage and micro-batch."""
    ordered = slices.sort("end_ns", "start_ns", maintain_order=True)
    return ordered.with_columns(number=pl.int_range(pl.len(), dtype=pl.Int64).over(_OF))
