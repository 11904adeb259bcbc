"""Ids that connect both ends of a message, for `COMMUNICATION_OP.opConnectionId`.

MindStudio Insight draws an arrow for every id that exactly two operations have. Ids have the form of the recipe
p2p_pairing of msprof-analyze 26.2.0: `{hash}_{source}_{target}_{number}` with the three digits of the operation's name,
the pipeline coordinates of both ranks, and the number of the message between them, counted by the start of the send.
Unlike there, both ends use the number of the send, so a missing operation does not shift the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.messages import match_messages
from stagescope.vocabulary.kinds import RECEIVES, SENDS

if TYPE_CHECKING:
    from stagescope.model import Timeline

HASH_OF_GROUP = r"__(\d+)_\d+_\d+"


def connection_ids(timeline: Timeline, step: int | None = None) -> tuple[pl.DataFrame, int]:
    """Return rank, name and id of every operation of the step, and the number of messages without an id.

    The id is null where the other end of an operation is not known. An operation with several messages, such as
    hcom_batchSendRecv, gets the id of only one: the first with both ends unused.
    """
    messages = _numbered(timeline)
    if step is not None:
        messages = messages.filter(pl.col("step") == step)
    chosen = _one_per_op(messages)
    ids = pl.concat(
        chosen.select(rank=pl.col(rank), name=pl.col(f"{end}_name"), id="id")
        for rank, end in (("source", "send"), ("target", "recv"))
    )
    transfers = timeline.spans.filter(
        pl.col("kind").is_in((*SENDS, *RECEIVES)) & pl.col("name").is_not_null()
    )
    if step is not None:
        transfers = transfers.filter(pl.col("step") == step)
    every = transfers.select("rank", "name").unique(maintain_order=True)
    return every.join(ids, on=["rank", "name"], how="left"), messages.height - chosen.height


def _numbered(timeline: Timeline) -> pl.DataFrame:
    """Return the messages with step, source, target, both operations' names and the id, by the start of the send."""
    spans = timeline.spans
    names = spans.select(pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"), "name")
    sends = (
        spans.select(pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"), "rank", "peer", "kind", "start_ns")
        .filter(pl.col("kind").is_in(SENDS))
        .sort("start_ns", maintain_order=True)
        .select(send_row="row", number=pl.int_range(pl.len()).over("rank", "peer"))
    )
    places = timeline.ranks.select("rank", pl.coalesce("pp", "rank").alias("place"))
    numbered = (
        match_messages(spans)
        .cast({"send_row": pl.UInt32, "recv_row": pl.UInt32})
        .join(sends, on="send_row", how="left", maintain_order="left")
        .join(
            names.rename({"row": "send_row", "name": "send_name"}),
            on="send_row",
            how="left",
            maintain_order="left",
        )
        .join(
            names.rename({"row": "recv_row", "name": "recv_name"}),
            on="recv_row",
            how="left",
            maintain_order="left",
        )
        .join(
            places.rename({"rank": "source", "place": "source_place"}),
            on="source",
            how="left",
            maintain_order="left",
        )
        .join(
            places.rename({"rank": "target", "place": "target_place"}),
            on="target",
            how="left",
            maintain_order="left",
        )
        .drop_nulls(["send_name", "recv_name"])
        .with_columns(digits=pl.col("send_name").str.extract(HASH_OF_GROUP).fill_null("0"))
    )
    link = ["digits", "source_place", "target_place"]
    # Three digits of a hash can be equal for two replicas: then the numbers of one continue those of the other.
    replica = (pl.struct("source", "target").rank("dense") - 1).over(link).cast(pl.Int64)
    numbers_per_link = pl.col("number").max() + 1
    numbered = numbered.with_columns(number=pl.col("number") + replica * numbers_per_link.over(link))
    return numbered.with_columns(id=pl.concat_str([*link, "number"], separator="_"))


def _one_per_op(messages: pl.DataFrame) -> pl.DataFrame:
    """Return the messages that are the only one, or the first possible one, of both of their operations."""
    shared = (
        messages.select(pl.struct("source", "send_name").is_duplicated().any()).item()
        or messages.select(pl.struct("target", "recv_name").is_duplicated().any()).item()
        or not messages.select(rank="source", name="send_name").join(
            messages.select(rank="target", name="recv_name"), on=["rank", "name"]
        ).is_empty()
    )  # fmt: skip
    if not shared:
        return messages
    taken: set[tuple[int, str]] = set()
    free = []
    for source, send, target, receive in messages.select(
        "source", "send_name", "target", "recv_name"
    ).iter_rows():
        ends = {(source, send), (target, receive)}
        free.append(taken.isdisjoint(ends))
        if free[-1]:
            taken |= ends
    return messages.filter(pl.Series(free, dtype=pl.Boolean))
