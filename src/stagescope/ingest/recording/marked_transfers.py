"""Which actions the plain sends and receives of a hand-written pipeline belong to.

A message carries what one action produced to the action that needs it, so it belongs to one *edge* between two actions
of its sender and its receiver. A send may be issued late, but not before its data exist: its action is the last one
before it, or an earlier one. A receive may be early, but not too late: its action is the next one, or a later one. If
the last action before the send and the next one after the receive are the two ends of one edge, it is that edge.
Otherwise the messages that are left over and the edges that are left over are matched in their order.
"""

from __future__ import annotations

import polars as pl

from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.kinds import (
    ACTION_KINDS,
    COMPUTE,
    EXCHANGING_KINDS,
    PLAIN_TRANSFERS,
    RECEIVES,
    SENDS,
)

SEND, RECEIVE = PLAIN_TRANSFERS
CHANNEL = ("source", "target")
FORWARD = EXCHANGING_KINDS[0]
OWN = ("kind", "step", "stage", "microbatch")


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
    placed = placed_messages(rows)
    spans = _with_places(rows, placed)
    return spans, placement_notes(_count_plain(spans), count_inside(placed))


def placed_messages(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the messages that both ends recorded, with the columns of their edge, null if it is unknown.

    `rows` has the column row. Where a message belongs depends on the two ranks that exchange it alone: it is enough if
    these are the spans of two ranks, with the plain transfers from one to the other and all of their actions.
    """
    messages = _messages(rows)
    return _assign(messages, _edges(rows, messages))


def _count_plain(spans: pl.DataFrame) -> int:
    return int(spans["kind"].is_in(PLAIN_TRANSFERS).sum())


def count_inside(placed: pl.DataFrame) -> int:
    """Return how many messages were received inside of the action that needs them."""
    return placed.filter(pl.col("received_ns") > pl.col("to_start_ns")).height


def _messages(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row per message that both ends recorded, in the order in which they were sent.

    Columns: source, target, send_row, receive_row, sent_ns (when it was issued), awaited_ns and received_ns (when the
    wait began and ended; the call that receives it, if nothing waits for it).
    """
    plain = rows.filter(pl.col("kind").is_in(PLAIN_TRANSFERS) & pl.col("peer").is_not_null())
    channel = pl.col("name").str.strip_prefix(SEND).str.strip_prefix(RECEIVE).fill_null("")
    sends, receives = (
        plain.filter(pl.col("kind") == kind).select(
            pl.col(here).alias("source"),
            pl.col(there).alias("target"),
            channel.alias("channel"),
            "pair",
            *times,
        )
        for kind, here, there, times in (
            (SEND, "rank", "peer", (pl.col("row").alias("send_row"), pl.col("start_ns").alias("sent_ns"))),
            (
                RECEIVE,
                "peer",
                "rank",
                (
                    pl.col("row").alias("receive_row"),
                    pl.coalesce("wait_start_ns", "start_ns").alias("awaited_ns"),
                    pl.col("end_ns").alias("received_ns"),
                ),
            ),
        )
    )
    both = sends.join(receives, on=[*CHANNEL, "channel", "pair"])
    return both.drop("channel", "pair").sort("sent_ns").with_row_index("message")


def _edges(rows: pl.DataFrame, messages: pl.DataFrame) -> pl.DataFrame:
    """Return one row per result that an action needed from another rank, between ranks that exchange messages.

    Ranks that run two actions at the same time are left out: which of them a message belongs to is unknown.

    Columns: edge, source, target, step, microbatch, is_forward, from_stage, to_stage, from_start_ns, to_start_ns,
    to_end_ns.
    """
    known = pl.all_horizontal(pl.col("step", "stage", "microbatch").is_not_null())
    actions = rows.filter(
        pl.col("kind").is_in(EXCHANGING_KINDS) & (pl.col("lane") == COMPUTE) & known
    ).select(
        "rank", "step", "stage", "microbatch", "start_ns", "end_ns", is_forward=pl.col("kind") == FORWARD
    )
    ordered = actions.sort("rank", "start_ns")
    overlaps = (pl.col("start_ns") < pl.col("end_ns").cum_max().shift(1)).over("rank").fill_null(value=False)
    actions = ordered.filter(~overlaps.any().over("rank"))
    toward = pl.when(pl.col("is_forward")).then(1).otherwise(-1)
    producers = actions.select(
        "step", "microbatch", "is_forward", source="rank", from_stage="stage",
        to_stage=(pl.col("stage") + toward).cast(pl.Int32), from_start_ns="start_ns",
    )  # fmt: skip
    consumers = actions.select(
        "step", "microbatch", "is_forward", target="rank", to_stage="stage", to_start_ns="start_ns", to_end_ns="end_ns"
    )  # fmt: skip
    edges = producers.join(consumers, on=["step", "microbatch", "is_forward", "to_stage"])
    edges = edges.join(messages.select(CHANNEL).unique(), on=CHANNEL, how="semi")
    return edges.sort("from_start_ns").with_row_index("edge")


def _assign(messages: pl.DataFrame, edges: pl.DataFrame) -> pl.DataFrame:
    """Return the messages with the columns of their edge, null if it is unknown."""
    before = messages.join_asof(
        edges.select(*CHANNEL, "from_start_ns", produced="edge"),
        left_on="sent_ns", right_on="from_start_ns", by=CHANNEL, check_sortedness=False,
    )  # fmt: skip
    after = before.sort("received_ns").join_asof(
        edges.select(*CHANNEL, "to_start_ns", next="edge").sort("to_start_ns"),
        left_on="received_ns", right_on="to_start_ns", by=CHANNEL, strategy="forward", check_sortedness=False,
    )  # fmt: skip
    around = after.sort("awaited_ns").join_asof(
        edges.select(*CHANNEL, "to_end_ns", begun_ns="to_start_ns", around="edge").sort("begun_ns"),
        left_on="awaited_ns", right_on="begun_ns", by=CHANNEL, check_sortedness=False,
    ).sort("message")  # fmt: skip
    is_inside = pl.col("received_ns") <= pl.col("to_end_ns")
    both = around.with_columns(needed=pl.when(is_inside).then("around").otherwise("next"))
    is_certain = pl.col("produced") == pl.col("needed")
    both = both.with_columns(edge=pl.when(is_certain).then("produced"))
    left = both.filter(
        pl.col("edge").is_null() & pl.col("produced").is_not_null() & pl.col("needed").is_not_null()
    )
    free = edges.filter(~pl.col("edge").is_in(both["edge"].drop_nulls().implode()))
    in_order = _in_order(left, free).rename({"edge": "ordered"})
    assigned = both.join(in_order, on="message", how="left", maintain_order="left")
    edge = pl.coalesce("edge", "ordered")
    return assigned.select(*messages.columns, edge=edge).join(
        edges.drop(*CHANNEL), on="edge", how="left", maintain_order="left"
    )


def _in_order(messages: pl.DataFrame, edges: pl.DataFrame) -> pl.DataFrame:
    """Return message and edge, matched in their order, where each edge of two ranks can have equally many messages.

    No message may be sent before its action has begun, or received after the action that needs it has ended.
    """
    numbered = messages.drop("edge", "to_end_ns").with_columns(
        place=pl.int_range(pl.len()).over(CHANNEL), count=pl.len().over(CHANNEL)
    )
    places = edges.with_columns(place=pl.int_range(pl.len()).over(CHANNEL))
    sizes = edges.group_by(CHANNEL).agg(edges=pl.len())
    fitting = numbered.join(sizes, on=CHANNEL).filter(pl.col("count") % pl.col("edges") == 0)
    slots = fitting.with_columns(place=pl.col("place") // (pl.col("count") // pl.col("edges")))
    matched = slots.join(places, on=[*CHANNEL, "place"])
    is_possible = (pl.col("from_start_ns") <= pl.col("sent_ns")) & (
        pl.col("received_ns") <= pl.col("to_end_ns")
    )
    return matched.filter(is_possible.all().over(CHANNEL)).select("message", "edge")


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
    """Return rank, row, peer, kind, step, microbatch and stage of both ends of the messages with a known edge."""
    found = placed.drop_nulls("edge")
    return pl.concat(
        found.select(
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
