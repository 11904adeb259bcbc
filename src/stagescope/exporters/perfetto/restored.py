"""What a reader of an export restores from neighboring slices, and what has to be written because it cannot.

A wait names its stage and micro-batch, but not its transfer. Readers (ingest/perfetto/own_exports.py) give the n-th
wait of a rank, side, stage and micro-batch to the n-th of their transfers, both in the order of their ends. Where this
is wrong, because some transfers have no wait or the host looked at them in another order, the wait has the number.

A receive has no peer and size if an arrow leads to its send, which has both. A transfer has no step if that of its
action is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.annotations.steps import in_steps_of_actions
from stagescope.vocabulary.kinds import ALL_SENDS, COMM_KINDS, TRANSFERS

if TYPE_CHECKING:
    from stagescope.exporters.tracks import Layout

RESTORED = ("step", "peer", "bytes")
"""The arguments that are only written where `with_lost` asks for it."""

_OF = ["rank", "is_send", "stage", "microbatch"]
_NOT_DRAWN = -1
"""The number of a wait for something that is no transfer."""


def with_lost(layout: Layout) -> pl.DataFrame:
    """Return the slices with `writes_step`, `writes_peer`, `writes_bytes`, `transfer` and `posted_before_ns`."""
    slices = layout.slices
    sent = pl.DataFrame(
        {
            "slice": layout.flows["recv"],
            "sender": slices["rank"].gather(layout.flows["send"]),
            "sent_bytes": slices["bytes"].gather(layout.flows["send"]),
        }
    )
    numbered = slices.with_columns(slice=pl.int_range(pl.len()), transfer=transfer_numbers(slices))
    lost = pl.Series("slice", _lost_steps(numbered), dtype=pl.Int64).implode()
    is_transfer = pl.col("kind").is_in(TRANSFERS).fill_null(value=False)
    is_kept = ~pl.col("is_receive")
    return numbered.join(sent, on="slice", how="left", maintain_order="left").with_columns(
        writes_step=~pl.col("is_wait") & (~is_transfer | pl.col("slice").is_in(lost)),
        writes_peer=~pl.col("is_wait") & (is_kept | pl.col("peer").ne_missing(pl.col("sender"))),
        writes_bytes=~pl.col("is_wait") & (is_kept | pl.col("bytes").ne_missing(pl.col("sent_bytes"))),
        posted_before_ns=pl.col("start_ns") - pl.col("issue_ns"),
    )


def _lost_steps(slices: pl.DataFrame) -> list[int]:
    """Return the numbers of transfers whose step is not that of the action which a reader finds for them."""
    drawn = slices.filter(~pl.col("is_wait") & pl.col("kind").is_not_null()).select(
        "slice", "rank", "stage", "microbatch", "end_ns", "step",
        kind=pl.col("kind").cast(pl.String),
        start_ns=pl.coalesce("issue_ns", "start_ns"),
        own="step",
    )  # fmt: skip
    is_transfer = pl.col("kind").is_in(TRANSFERS)
    transfers = drawn.filter(is_transfer).with_columns(step=pl.lit(None, drawn["step"].dtype))
    found = in_steps_of_actions(transfers, drawn.filter(~is_transfer))
    numbers: list[int] = found.filter(pl.col("step").ne_missing(pl.col("own")))["slice"].to_list()
    return numbers


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
