"""What is found about the spans of one recording, or of two, of a run whose spans are not in memory together.

A run that is read at once is settled by `timeline_of_decisions`: marks around transfers are merged with these, steps
that nothing marks are found, and plain transfers are assigned to actions. The same functions do that here, for the
spans of one rank, or of two that exchange messages, with what has to be equal on all ranks decided in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.ingest.recording.amendments import DROPPED
from stagescope.ingest.recording.facts import of_kinds
from stagescope.ingest.recording.leading_loads import without_leading_loads
from stagescope.ingest.recording.marked_messages import merge_marked
from stagescope.ingest.recording.marked_steps import StepEvidence, step_evidence
from stagescope.ingest.recording.marked_transfers import count_inside, placed_ends, placed_messages
from stagescope.ingest.recording.pipelines import is_of_pipeline
from stagescope.ingest.recording.span_tables import TIMES, WAIT_TIMES, Records, spans_of
from stagescope.ingest.recording.values import nullable
from stagescope.model import SPANS
from stagescope.record.format import NONE
from stagescope.record.frameworks.host_activities import DATA_LOADING
from stagescope.vocabulary.kinds import (
    ACTION_KINDS,
    BY_NAME,
    EXCHANGING_KINDS,
    PLAIN_TRANSFERS,
    RECEIVES,
    SENDS,
    STEP_CODE,
)

if TYPE_CHECKING:
    from stagescope.ingest.recording.frames import Contents
    from stagescope.ingest.recording.process import Process
    from stagescope.ingest.recording.slews import Slew

IS_RELEVANT = of_kinds(*ACTION_KINDS, *PLAIN_TRANSFERS, *SENDS, *RECEIVES, "optimizer")
KEPT = (
    "rank", "kind", "lane", "step", "stage", "microbatch", "peer", "pair", "bytes", "name", *TIMES, *WAIT_TIMES,
)  # fmt: skip
OF_MERGED = ("peer", "bytes", *TIMES, *WAIT_TIMES)
IS_PLAIN = pl.col("kind").is_in(PLAIN_TRANSFERS)
IS_MESSAGE = pl.col("kind").is_in([*SENDS, *RECEIVES])
OF_PLACED = ("record", "kind", "step", "stage", "microbatch")


class RankShows(NamedTuple):
    """What the spans of a rank show: its plain transfers and whom they were with, and peers of its other transfers."""

    plain: int
    plain_peers: tuple[int, ...]
    peers: tuple[int, ...]
    has_messages: bool
    has_actions: bool
    steps: StepEvidence


class PlacedPair(NamedTuple):
    """The transfers between two ranks that belong to actions: rank and OF_PLACED, sorted; and what counts them."""

    ends: pl.DataFrame
    peers: tuple[tuple[int, int], ...]
    inside: int


def relevant_spans(process: Process, contents: Contents, label: str | None) -> pl.DataFrame:
    """Return the spans of a rank that matter here, on its own clock, with the column record: their number."""
    loads = [number for number, name in contents.names.items() if name == DATA_LOADING]
    found = [SPANS.empty().select(KEPT).with_columns(record=pl.lit(0, pl.UInt32))]
    begins = 0
    for block in contents.blocks():
        is_one = IS_RELEVANT[block["kind"]]
        if loads:
            is_one = is_one | (np.isin(block["name"], loads) & (block["kind"] != STEP_CODE))
        rows = np.flatnonzero(is_one & is_of_pipeline(process, block["step"], label))
        spans = spans_of([Records(block, rows, process.rank, contents.names, 0)])
        found.append(spans.select(KEPT).with_columns(record=pl.Series(rows + begins, dtype=pl.UInt32)))
        begins += len(block)
    return pl.concat(found)


def with_merged_marks(spans: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the spans of a rank with marks around transfers merged with these, and what changes in which records."""
    merged = merge_marked(spans)
    dropped = spans.join(merged.select("record"), on="record", how="anti", maintain_order="left")
    kept = spans.join(merged.select("record"), on="record", how="semi", maintain_order="left")
    differs = [merged[name].ne_missing(kept[name]) for name in OF_MERGED]
    changed = merged.filter(pl.any_horizontal(*differs)) if dropped.height else merged.clear()
    rows = pl.concat([changed.with_columns(**{DROPPED: False}), dropped.with_columns(**{DROPPED: True})])
    values = rows.select("record", DROPPED, *(pl.col(name).fill_null(NONE) for name in OF_MERGED))
    return merged, values.sort("record")


def on_steady_clock(spans: pl.DataFrame, slew: Slew | None) -> pl.DataFrame:
    """Return the spans of a rank as they are compared with each other: without slew, forwards after their loads."""
    if slew is not None:
        moved = {
            name: nullable(slew.removed(spans[name].fill_null(NONE).to_numpy()))
            for name in (*TIMES, *WAIT_TIMES)
        }
        spans = spans.with_columns(**moved)
    return without_leading_loads(spans)


def what_rank_shows(spans: pl.DataFrame) -> RankShows:
    """Return what the spans of a rank show, after `with_merged_marks`."""
    plain = spans.filter(IS_PLAIN)
    messages = spans.filter(IS_MESSAGE)
    return RankShows(
        plain.height,
        tuple(plain["peer"].drop_nulls().unique().sort()),
        tuple(messages["peer"].drop_nulls().unique().sort()),
        messages.height > 0,
        spans["kind"].is_in(ACTION_KINDS).any(),
        step_evidence(spans),
    )


def needed_to_place(kind: str, peer: int) -> pl.Expr:
    """Return which spans of a rank are needed to place its sends to another one, or its receives from it."""
    return pl.col("kind").is_in(EXCHANGING_KINDS) | ((pl.col("kind") == kind) & (pl.col("peer") == peer))


def place_between(spans: pl.DataFrame) -> PlacedPair:
    """Return which actions the transfers from one rank to another belong to; `spans` are those needed of both."""
    placed = placed_messages(spans.rename({"record": "row"}))
    ends = placed_ends(placed).rename({"row": "record"}).unique(["rank", "record"], keep="first")
    codes = {kind: BY_NAME[kind].code for kind in (*SENDS, *RECEIVES)}
    coded = ends.with_columns(
        kind=pl.col("kind").cast(pl.String).replace_strict(codes, return_dtype=pl.UInt8)
    )
    peers = tuple(ends.select("rank", "peer").unique().iter_rows())
    return PlacedPair(coded.select("rank", *OF_PLACED).sort("rank", "record"), peers, count_inside(placed))
