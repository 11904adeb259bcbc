"""Transfers become rows of the spans table, and what could not be told of them becomes a count."""

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
    """Return the transfers as SPANS rows, and what had to be said about them.

    `transfers` are raw ones with `peer`, `actions` the named actions (SPANS), `ranks` has rank, clock and the
    coordinates, of absent ranks too. A batch becomes one row per direction. A transfer without a certain message
    becomes a span of kind other with its peer, and is counted: a row with a kind but without a micro-batch would be
    paired by count.
    """
    transfers = transfers.sort("rank", "start_ns", "end_ns", maintain_order=True).with_row_index("row")
    messages = expect_messages(actions, ranks).with_row_index("message")
    matched = pair_ends(transfers, messages, actions, ranks)
    sound, contradictions = _sound(matched, transfers, messages)
    named = _named(transfers, messages, sound)
    return named, [*_notes(transfers, messages, sound), *_contradicting(contradictions)]


def _sound(
    matched: pl.DataFrame, transfers: pl.DataFrame, messages: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the ends that do not contradict each other, and those that do: data never arrive before they are sent."""
    times = transfers.select("row", "rank", "start_ns", "end_ns")
    ends = matched.join(times, on="row", how="left", maintain_order="left")
    both = ends.filter(pl.col("end") == SEND).join(
        ends.filter(pl.col("end") == RECEIVE), on="message", suffix="_received"
    )
    shared = messages.filter("shares_clock")["message"].implode()
    early = both.filter(
        pl.col("message").is_in(shared)
        & (pl.col("end_ns_received") < pl.col("start_ns") - CLOCK_TOLERANCE_NS)
    )
    wrong = pl.col("message").is_in(early["message"].implode())
    return matched.filter(~wrong), matched.filter(wrong)


def _named(transfers: pl.DataFrame, messages: pl.DataFrame, matched: pl.DataFrame) -> pl.DataFrame:
    """Return one SPANS row per end of a message, and one of kind other per transfer that is none."""
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
        bytes=pl.when(halves == 1).then("bytes"),  # of a batch in both directions nothing says whose they are
    )
    rest = transfers.join(matched, on="row", how="anti").with_columns(lane=pl.lit(COMM), kind=pl.lit("other"))
    return pl.concat([conform(sent, SPANS), conform(rest, SPANS)])


def _notes(transfers: pl.DataFrame, messages: pl.DataFrame, matched: pl.DataFrame) -> Iterator[Diagnostic]:
    """Yield what stayed open: transfers without a message, and messages of which one end was not found."""
    unnamed = transfers.join(matched, on="row", how="anti")
    for (rank,), rows in unnamed.group_by(["rank"], maintain_order=True):
        text = "transfers could not be told from one another, or belong to no action that is known; shown as other"
        yield Diagnostic("warning", text, rank=rank, count=rows.height)
    at_once = pl.struct("source", "target", "ready_ns").is_duplicated() & pl.col("ready_ns").is_not_null()
    if paired := messages.filter(at_once).join(matched, on="message", how="semi").height:
        text = (
            "messages from the two halves of overlapped actions to one rank: which is which follows the order in which "
            "MindSpeed sends them, the forward's first"
        )
        yield Diagnostic("info", text, count=paired)
    told = messages.filter(pl.col("ready_ns").is_not_null() | pl.col("needed_ns").is_not_null())
    measured = transfers["rank"].unique().implode()
    for end, rank in ((SEND, "source"), (RECEIVE, "target")):
        ends = matched.filter(pl.col("end") == end)
        absent = told.filter(pl.col(rank).is_in(measured)).join(ends, on="message", how="anti")
        for (one,), rows in absent.group_by([rank], maintain_order=True):
            text = (
                f"messages between actions without a {end} that is certainly theirs; nothing else was shifted"
            )
            yield Diagnostic("warning", text, rank=one, count=rows.height)


def _contradicting(ends: pl.DataFrame) -> Iterator[Diagnostic]:
    if not ends.is_empty():
        text = "transfers seem to end before the other end began; they are shown as other"
        yield Diagnostic("warning", text, count=ends.height)
