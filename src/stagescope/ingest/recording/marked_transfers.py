"""Which actions the plain sends and receives of a hand-written pipeline belong to.

A message carries what one action produced to the action that needs it, so it belongs to one *edge* between two actions
of its sender and its receiver. A send may be issued late, but not before its data exist: its action is the last one
before it, or an earlier one. A receive may be early, but not too late: its action is the next one, or a later one. If
the last action before the send and the next one after the receive are the two ends of one edge, it is that edge.
Otherwise the messages that are left over and the edges that are left over are matched in their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.ingest.recording import row_blocks
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.kinds import (
    ACTION_KINDS,
    COMPUTE,
    EXCHANGING_KINDS,
    PLAIN_TRANSFERS,
    RECEIVES,
    SENDS,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SEND, RECEIVE = PLAIN_TRANSFERS
CHANNEL = ("source", "target")
MESSAGE = (*CHANNEL, "channel", "pair")
FORWARD = EXCHANGING_KINDS[0]
OWN = ("kind", "step", "stage", "microbatch")
OF_EDGE = ("step", "microbatch", "is_forward", "from_stage", "to_stage", "to_start_ns")
OF_MESSAGE = (*CHANNEL, "send_row", "receive_row", "sent_ns", "received_ns")
PLACED = (*OF_MESSAGE, *OF_EDGE)
OVERLAPS = (pl.col("start_ns") < pl.col("end_ns").cum_max().shift(1)).over("rank").fill_null(value=False)
"""Whether one of `exchanging_actions` begins before an earlier one of its rank has ended."""


def place_transfers(spans: pl.DataFrame) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return the spans with kind, step, stage and micro-batch of the plain transfers that belong to actions.

    Nothing changes if a framework recorded transfers with their actions. Diagnostics count the transfers that could
    not be assigned, and the actions that contain their own receive.
    """
    kinds = set(spans["kind"].unique())
    if kinds.isdisjoint(PLAIN_TRANSFERS) or kinds & {*SENDS, *RECEIVES}:
        return spans, []
    if kinds.isdisjoint(ACTION_KINDS):
        return spans, [note_unmarked(_count_plain(spans))]
    rows = spans.with_row_index("row")
    placed = pl.concat(placed_messages([rows], channels_of(rows)))
    spans = _with_places(rows, placed)
    return spans, placement_notes(_count_plain(spans), count_inside(placed))


def channels_of(rows: pl.DataFrame) -> pl.DataFrame:
    """Return CHANNEL of each two ranks of which one sends to the other, which receives from it."""
    sends, receives = (ends.select(CHANNEL).unique() for ends in (_sends(rows), _receives(rows)))
    return sends.join(receives, on=CHANNEL, how="semi")


def placed_messages(blocks: Iterable[pl.DataFrame], channels: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the messages of these channels that both ends recorded and whose edge is known, with the columns PLACED.

    `blocks` are the spans of a run with the column row: all of them, or those of some steps after the other. Then no
    action of a rank is in progress when its first one of the next block begins, none may overlap another one, sends are
    in the block in which they were issued, receives in the one in which they ended, and no message is there twice.
    Where a message belongs depends on the two ranks that exchange it alone: it is enough if these are the spans of two
    ranks, with the plain transfers between them and all of their actions.
    """
    known = _Known()
    for rows in blocks:
        edges = _edges(rows, channels, known.edges)
        latest = _joined(known.latest, edges)
        sends = _joined(known.sends, _with_produced(_sends(rows), latest))
        receives = _with_needed(known.receives, _receives(rows), edges)
        both = sends.join(receives.drop_nulls("needed"), on=MESSAGE)
        is_certain = pl.col("edge") == pl.col("needed")
        certain = both.filter(is_certain)
        yield certain.select(PLACED)
        known = _Known(
            sends.join(both, on=MESSAGE, how="anti"),
            receives.join(both, on=MESSAGE, how="anti"),
            latest.unique(CHANNEL, keep="last", maintain_order=True),
            _joined(known.free, edges).join(certain, on="edge", how="anti"),
            _joined(known.left, both.filter(~is_certain).select(OF_MESSAGE)),
            known.edges + edges.height,
        )
    if known.left is not None and known.free is not None:
        yield from _in_order(known.left, known.free)


class _Known(NamedTuple):
    """What the messages of later blocks depend on; None before the first block.

    `sends` and `receives` are those whose other end was in no block yet, or the edge that a receive is for; `latest`
    has the last edge of each channel, `free` the edges to which no message belongs for certain, and `left` the messages
    that belong to no edge for certain. `edges` is the number of edges.
    """

    sends: pl.DataFrame | None = None
    receives: pl.DataFrame | None = None
    latest: pl.DataFrame | None = None
    free: pl.DataFrame | None = None
    left: pl.DataFrame | None = None
    edges: int = 0


def _joined(before: pl.DataFrame | None, rows: pl.DataFrame) -> pl.DataFrame:
    return rows if before is None else pl.concat([before, rows])


def _count_plain(spans: pl.DataFrame) -> int:
    return int(spans["kind"].is_in(PLAIN_TRANSFERS).sum())


def count_inside(placed: pl.DataFrame) -> int:
    """Return how many messages were received inside of the action that needs them."""
    return placed.filter(pl.col("received_ns") > pl.col("to_start_ns")).height


def _sends(rows: pl.DataFrame) -> pl.DataFrame:
    """Return MESSAGE of each plain send, send_row, and sent_ns, when it was issued."""
    return _plain(rows, SEND).select(
        "channel", "pair", source="rank", target="peer", send_row="row", sent_ns="start_ns"
    )


def _receives(rows: pl.DataFrame) -> pl.DataFrame:
    """Return MESSAGE of each plain receive, receive_row, and when the wait for it began and ended.

    If nothing waits for it, awaited_ns is when it was issued.
    """
    awaited = pl.coalesce("wait_start_ns", "start_ns")
    return _plain(rows, RECEIVE).select(
        "channel",
        "pair",
        source="peer",
        target="rank",
        receive_row="row",
        awaited_ns=awaited,
        received_ns="end_ns",
    )


def _plain(rows: pl.DataFrame, kind: str) -> pl.DataFrame:
    known = pl.all_horizontal(pl.col("peer", "pair").is_not_null())
    return rows.filter((pl.col("kind") == kind) & known).with_columns(
        channel=pl.col("name").str.strip_prefix(SEND).str.strip_prefix(RECEIVE).fill_null("")
    )


def exchanging_actions(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the actions that messages may belong to, by rank and start."""
    known = pl.all_horizontal(pl.col("step", "stage", "microbatch").is_not_null())
    actions = rows.filter(
        pl.col("kind").is_in(EXCHANGING_KINDS) & (pl.col("lane") == COMPUTE) & known
    ).select(
        "rank", "step", "stage", "microbatch", "start_ns", "end_ns", is_forward=pl.col("kind") == FORWARD
    )
    return actions.sort("rank", "start_ns")


def _edges(rows: pl.DataFrame, channels: pl.DataFrame, first: int) -> pl.DataFrame:
    """Return one row per result that an action needed from another rank, between ranks that exchange messages.

    Ranks that run two actions at the same time are left out: which of them a message belongs to is unknown.

    Columns: edge (their numbers, from `first` on), source, target, step, microbatch, is_forward, from_stage, to_stage,
    from_start_ns, to_start_ns, to_end_ns.
    """
    actions = exchanging_actions(rows).filter(~OVERLAPS.any().over("rank"))
    toward = pl.when(pl.col("is_forward")).then(1).otherwise(-1)
    producers = actions.select(
        "step", "microbatch", "is_forward", source="rank", from_stage="stage",
        to_stage=(pl.col("stage") + toward).cast(pl.Int32), from_start_ns="start_ns",
    )  # fmt: skip
    consumers = actions.select(
        "step", "microbatch", "is_forward", target="rank", to_stage="stage", to_start_ns="start_ns", to_end_ns="end_ns"
    )  # fmt: skip
    edges = producers.join(consumers, on=["step", "microbatch", "is_forward", "to_stage"])
    edges = edges.join(channels, on=CHANNEL, how="semi")
    return edges.sort("from_start_ns").with_row_index("edge", offset=first)


def _with_produced(sends: pl.DataFrame, edges: pl.DataFrame) -> pl.DataFrame:
    """Return the sends after the first edge of their channel, with the last edge whose action began before them."""
    by_start = edges.with_columns(begun_ns="from_start_ns").sort("begun_ns", maintain_order=True)
    found = sends.sort("sent_ns").join_asof(
        by_start, left_on="sent_ns", right_on="begun_ns", by=CHANNEL, check_sortedness=False
    )  # fmt: skip
    return found.drop_nulls("edge").select(*sends.columns, *edges.drop(CHANNEL).columns)


def _with_needed(before: pl.DataFrame | None, receives: pl.DataFrame, edges: pl.DataFrame) -> pl.DataFrame:
    """Return the receives with needed: the edge whose action ran while they ended, or else the next one.

    Those `before`, of earlier blocks, have either an edge already, or the first one of this block, null if it has none.
    """
    if before is not None:
        receives = pl.concat([before.filter(pl.col("needed").is_null()).select(receives.columns), receives])
    after = receives.sort("received_ns").join_asof(
        edges.select(*CHANNEL, "to_start_ns", next="edge").sort("to_start_ns"),
        left_on="received_ns", right_on="to_start_ns", by=CHANNEL, strategy="forward", check_sortedness=False,
    )  # fmt: skip
    around = after.sort("awaited_ns").join_asof(
        edges.select(*CHANNEL, "to_end_ns", begun_ns="to_start_ns", around="edge").sort("begun_ns"),
        left_on="awaited_ns", right_on="begun_ns", by=CHANNEL, check_sortedness=False,
    )  # fmt: skip
    is_inside = pl.col("received_ns") <= pl.col("to_end_ns")
    found = around.select(*receives.columns, needed=pl.when(is_inside).then("around").otherwise("next"))
    return found if before is None else pl.concat([before.drop_nulls("needed"), found])


def _in_order(messages: pl.DataFrame, edges: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the messages matched with edges in their order, where each edge of two ranks can have equally many.

    No message may be sent before its action has begun, or received after the action that needs it has ended.
    """
    free = edges.partition_by(CHANNEL, as_dict=True)
    for channel, own in messages.sort("sent_ns", "send_row").partition_by(CHANNEL, as_dict=True).items():
        if channel in free and own.height % free[channel].height == 0:
            ordered = free[channel].sort("edge").select("from_start_ns", "to_end_ns", *OF_EDGE)
            if all(map(_are_possible, _slots(own, ordered))):
                yield from (slots.select(PLACED) for slots in _slots(own, ordered))


def _slots(messages: pl.DataFrame, edges: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield some of the messages at a time, each with its edge: there are equally many of each edge, in order."""
    messages_of_edge = messages.height // edges.height
    for first in range(0, messages.height, row_blocks.ROWS_OF_BLOCK):
        rows = messages[first : first + row_blocks.ROWS_OF_BLOCK]
        yield rows.hstack(edges[np.arange(first, first + rows.height) // messages_of_edge])


def _are_possible(slots: pl.DataFrame) -> bool:
    is_sent = slots["from_start_ns"] <= slots["sent_ns"]
    return bool((is_sent & (slots["received_ns"] <= slots["to_end_ns"])).all())


def _with_places(rows: pl.DataFrame, placed: pl.DataFrame) -> pl.DataFrame:
    """Return the spans with what is known of each transfer; its name and number are not needed any more."""
    kind = pl.col("kind").cast(rows.schema["kind"])
    ends = placed_ends(placed).drop("rank", "peer").with_columns(kind, is_placed=pl.lit(value=True))
    joined = rows.join(ends, on="row", how="left", suffix="_found", maintain_order="left")
    is_placed = pl.col("is_placed").is_not_null()
    return joined.with_columns(
        *(pl.when(is_placed).then(f"{name}_found").otherwise(name).alias(name) for name in OWN),
        *(pl.when(~is_placed).then(name).alias(name) for name in ("pair", "name")),
    ).select(rows.columns[1:])


def placed_ends(placed: pl.DataFrame) -> pl.DataFrame:
    """Return rank, row, peer, kind, step, microbatch and stage of both ends of `placed_messages`."""
    return pl.concat(
        placed.select(
            pl.col(row).alias("row"), "step", "microbatch", pl.col(stage).alias("stage"),
            kind=pl.when("is_forward").then(pl.lit(kinds[0])).otherwise(pl.lit(kinds[1])),
            rank=rank, peer=peer,
        )
        for row, stage, rank, peer, kinds in (
            ("send_row", "from_stage", "source", "target", SENDS),
            ("receive_row", "to_stage", "target", "source", RECEIVES),
        )
    )  # fmt: skip


def note_unmarked(count: int) -> Diagnostic:
    """Return the diagnostic for plain transfers of a run without actions."""
    text = (
        "sends and receives were recorded, but no forward or backward: mark them with stagescope.record.forward and"
        " backward (docs/hand-written-pipelines.md)"
    )
    return Diagnostic("warning", text, count=count, code="actions.unmarked")


def placement_notes(lost: int, inside: int) -> list[Diagnostic]:
    """Return the diagnostics for transfers that belong to no action, and for those inside of actions."""
    found = []
    if lost:
        text = "sends and receives belong to no marked action, or match several; the analysis leaves them out"
        found.append(Diagnostic("info", text, count=lost, code="transfers.unplaced"))
    if inside:
        text = "marked actions contain the wait for their input, which counts as compute: mark the computation only"
        found.append(Diagnostic("warning", text, count=inside, code="actions.contain_receive"))
    return found
