"""Convert transfers to rows of the spans table, and count the transfers without a certain message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.ascend.evidence import CLOCK_TOLERANCE_NS
from stagescope.ingest.ascend.messages import expect_messages
from stagescope.ingest.ascend.pairing import pair_ends
from stagescope.ingest.ascend.transfers import RECEIVE, SEND
from stagescope.model import SPANS
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.validate import conform
from stagescope.vocabulary.kinds import COMM

if TYPE_CHECKING:
    from collections.abc import Iterator


def name_transfers(
    transfers: pl.DataFrame, actions: pl.DataFrame, ranks: pl.DataFrame
) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return the transfers as SPANS rows, and diagnostics.

    `transfers` are raw ones with `peer`, `actions` the named actions (SPANS), `ranks` has rank, clock and the
    coordinates, also of missing ranks. A batch becomes one row per direction. A transfer without a certain message
    becomes a span of kind other with its peer, and is counted: a row with a kind but without a micro-batch would later
    be paired by count.
    """
    transfers = transfers.sort("rank", "start_ns", "end_ns", maintain_order=True).with_row_index("row")
    messages = expect_messages(actions, ranks).with_row_index("message")
    matched = pair_ends(transfers, messages, actions, ranks)
    sound, contradictions = _split_consistent(matched, transfers, messages)
    named = _named(transfers, messages, sound)
    return named, [*_notes(transfers, messages, sound), *_contradiction_diagnostics(contradictions)]


def _split_consistent(
    matched: pl.DataFrame, transfers: pl.DataFrame, messages: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the consistent ends, and the inconsistent ones: their data would arrive before they are sent."""
    times = transfers.select("row", "rank", "start_ns", "end_ns")
    ends = matched.join(times, on="row", how="left", maintain_order="left")
    both = ends.filter(pl.col("end") == SEND).join(
        ends.filter(pl.col("end") == RECEIVE), on="message", suffix="_received"
    )
    # Across clocks an early end shows the clock offset instead of a wrong pair.
    shared = messages.filter("shares_clock")["message"].implode()
    early = both.filter(
        pl.col("message").is_in(shared)
        & (pl.col("end_ns_received") < pl.col("start_ns") - CLOCK_TOLERANCE_NS)
    )
    wrong = pl.col("message").is_in(early["message"].implode())
    return matched.filter(~wrong), matched.filter(wrong)


def _named(transfers: pl.DataFrame, messages: pl.DataFrame, matched: pl.DataFrame) -> pl.DataFrame:
    """Return one SPANS row per end of a message, and one of kind other per transfer without a message."""
    is_send = pl.col("end") == SEND
    known = messages.select(
        "message",
        "source",
        "target",
        "step",
        "direction",
        "stage",
        "chunk",
        "to_stage",
        "to_chunk",
        "microbatch",
    )
    ends = transfers.drop("peer").join(matched, on="row", how="inner").join(known, on="message")
    halves = pl.len().over("row")
    sent = ends.with_columns(
        lane=pl.lit(COMM),
        kind=pl.when(is_send).then(pl.lit("send_")).otherwise(pl.lit("recv_")) + pl.col("direction"),
        stage=pl.when(is_send).then("stage").otherwise("to_stage"),
        chunk=pl.when(is_send).then("chunk").otherwise("to_chunk"),
        peer=pl.when(is_send).then("target").otherwise("source"),
        bytes=pl.when(halves == 1).then("bytes"),  # a batch in both directions records only the sum
    )
    rest = transfers.join(matched, on="row", how="anti").with_columns(lane=pl.lit(COMM), kind=pl.lit("other"))
    return pl.concat([conform(sent, SPANS), conform(rest, SPANS)])


def _notes(transfers: pl.DataFrame, messages: pl.DataFrame, matched: pl.DataFrame) -> Iterator[Diagnostic]:
    """Yield diagnostics on transfers without a message, and on messages without one of their ends."""
    unnamed = transfers.join(matched, on="row", how="anti")
    for (rank,), rows in unnamed.group_by(["rank"], maintain_order=True):
        text = "transfers match several messages, or belong to no known action; shown as other"
        yield Diagnostic("warning", text, rank=rank, count=rows.height, code="transfers.unmatched")
    # Both halves of an overlapped mark end at the same time, so times cannot distinguish their messages.
    at_once = pl.struct("source", "target", "ready_ns").is_duplicated() & pl.col("ready_ns").is_not_null()
    if paired := messages.filter(at_once).join(matched, on="message", how="semi").height:
        text = (
            "messages from the two halves of overlapped actions to one rank are identified by the order in which "
            "MindSpeed sends them: the forward's first"
        )
        yield Diagnostic("info", text, count=paired, code="transfers.overlapped_order")
    known = messages.filter(pl.col("ready_ns").is_not_null() | pl.col("needed_ns").is_not_null())
    # Ranks without any recorded transfer, as below profiler level 1, have no missing ends.
    measured = transfers["rank"].unique().implode()
    for end, rank in ((SEND, "source"), (RECEIVE, "target")):
        ends = matched.filter(pl.col("end") == end)
        absent = known.filter(pl.col(rank).is_in(measured)).join(ends, on="message", how="anti")
        for (one,), rows in absent.group_by([rank], maintain_order=True):
            text = f"messages between actions without a certain {end}; no other message was shifted"
            yield Diagnostic("warning", text, rank=one, count=rows.height, code=f"messages.missing_{end}")


def _contradiction_diagnostics(ends: pl.DataFrame) -> Iterator[Diagnostic]:
    if not ends.is_empty():
        text = "receives end before the matching sends start; both are shown as other"
        yield Diagnostic("warning", text, count=ends.height, code="transfers.contradictory")
