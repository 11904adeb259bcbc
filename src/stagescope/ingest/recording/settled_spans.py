"""What is found about the spans of one recording, or of two, of a run whose spans are not in memory together.

A run that is read at once is settled by `timeline_of_decisions`: marks around transfers are merged with these, steps
that nothing marks are found, and plain transfers are assigned to actions. The same functions do that here, for the
spans of one rank, or of two that exchange messages, with what has to be equal on all ranks decided in between. The
spans are in memory a block at a time, each of which begins when no action, or no mark, is in progress.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.ingest.recording import row_blocks
from stagescope.ingest.recording.amendments import DROPPED
from stagescope.ingest.recording.facts import of_kinds
from stagescope.ingest.recording.leading_loads import without_leading_loads
from stagescope.ingest.recording.marked_messages import merge_marked
from stagescope.ingest.recording.marked_steps import StepEvidence, step_evidence
from stagescope.ingest.recording.marked_transfers import (
    CHANNEL,
    OVERLAPS,
    RECEIVE,
    count_inside,
    exchanging_actions,
    placed_ends,
    placed_messages,
)
from stagescope.ingest.recording.pipelines import is_of_pipeline
from stagescope.ingest.recording.row_blocks import FIRST, FOREVER, and_whether_last
from stagescope.ingest.recording.span_tables import TIMES, WAIT_TIMES, Records, spans_of
from stagescope.ingest.recording.values import nullable
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
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

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
    plain_peers: frozenset[int]
    peers: frozenset[int]
    has_messages: bool
    has_actions: bool
    steps: StepEvidence

    def with_later(self, other: RankShows) -> RankShows:
        """Return what these spans and later ones of the rank show together."""
        return RankShows(
            self.plain + other.plain,
            self.plain_peers | other.plain_peers,
            self.peers | other.peers,
            self.has_messages or other.has_messages,
            self.has_actions or other.has_actions,
            self.steps.with_later(other.steps),
        )


class PlacedBlock(NamedTuple):
    """Some transfers between two ranks that belong to actions: rank and OF_PLACED, sorted; and what counts them."""

    ends: pl.DataFrame
    peers: frozenset[tuple[int, int]]
    inside: int


def relevant_spans(process: Process, contents: Contents, label: str | None) -> Iterator[pl.DataFrame]:
    """Yield the spans of a rank that matter here, on its own clock, with the column record: their number."""
    loads = [number for number, name in contents.names.items() if name == DATA_LOADING]
    begins = 0
    for block in contents.blocks():
        is_one = IS_RELEVANT[block["kind"]]
        if loads:
            is_one = is_one | (np.isin(block["name"], loads) & (block["kind"] != STEP_CODE))
        every = np.flatnonzero(is_one & is_of_pipeline(process, block["step"], label))
        for place in range(0, max(len(every), 1), row_blocks.ROWS_OF_BLOCK):
            rows = every[place : place + row_blocks.ROWS_OF_BLOCK]
            spans = spans_of([Records(block, rows, process.rank, contents.names, 0)])
            yield spans.select(KEPT).with_columns(record=pl.Series(rows + begins, dtype=pl.UInt32))
        begins += len(block)


def has_transfers(spans: pl.DataFrame) -> tuple[bool, bool]:
    """Return whether there are plain transfers, and marked ones; marks are merged where there are both."""
    return spans.select(IS_PLAIN.any(), IS_MESSAGE.alias("marked").any()).row(0)


def with_merged_marks(blocks: Iterable[pl.DataFrame]) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """Yield the spans of a rank with marks around transfers merged with these, and what changes in which records.

    `blocks` are in the order of the starts of spans. A plain transfer that is awaited later, when a mark of a later
    block may be in progress, is yielded with that block.
    """
    waiting: pl.DataFrame | None = None
    for block, is_last in and_whether_last(closed_blocks(blocks, IS_MESSAGE)):
        spans = block if waiting is None else pl.concat([waiting, block])
        merged = merge_marked(spans)
        waits = IS_PLAIN & (pl.col("wait_start_ns") > spans["start_ns"].max())
        waits = (waits & pl.lit(not is_last)).fill_null(value=False)
        waiting = merged.filter(waits)
        yield merged.filter(~waits), _changed_records(spans, merged)


def _changed_records(spans: pl.DataFrame, merged: pl.DataFrame) -> pl.DataFrame:
    """Return the numbers and values of records that differ after marks were merged, and those that are left out."""
    dropped = spans.join(merged.select("record"), on="record", how="anti", maintain_order="left")
    kept = spans.join(merged.select("record"), on="record", how="semi", maintain_order="left")
    differs = [merged[name].ne_missing(kept[name]) for name in OF_MERGED]
    changed = merged.filter(pl.any_horizontal(*differs)) if dropped.height else merged.clear()
    rows = pl.concat([changed.with_columns(**{DROPPED: False}), dropped.with_columns(**{DROPPED: True})])
    return rows.select("record", DROPPED, *(pl.col(name).fill_null(NONE) for name in OF_MERGED))


def on_steady_clock(blocks: Iterable[pl.DataFrame], slew: Slew | None) -> Iterator[pl.DataFrame]:
    """Yield the spans of a rank as they are compared with each other: without slew, forwards after their loads.

    `blocks` are in the order of the starts of spans, and so are those that are yielded. When one of these begins, no
    action is in progress.
    """
    moved = blocks if slew is None else (_without_slew(block, slew) for block in blocks)
    is_whole = pl.col("kind").is_in(ACTION_KINDS) | (pl.col("name") == DATA_LOADING).fill_null(value=False)
    for block in closed_blocks(moved, is_whole):
        yield without_leading_loads(block).sort("start_ns", maintain_order=True)


def _without_slew(spans: pl.DataFrame, slew: Slew) -> pl.DataFrame:
    moved = {
        name: nullable(slew.removed(spans[name].fill_null(NONE).to_numpy())) for name in (*TIMES, *WAIT_TIMES)
    }
    return spans.with_columns(**moved)


def closed_blocks(blocks: Iterable[pl.DataFrame], is_whole: pl.Expr) -> Iterator[pl.DataFrame]:
    """Yield spans in the order of their starts, in blocks when whose first one starts, no earlier one is in progress.

    That holds for the spans that `is_whole` selects; any others may be. Spans with equal starts are in one block. As
    many spans are in memory together as there are without such a moment.
    """
    rest: pl.DataFrame | None = None
    for block, is_last in and_whether_last(blocks):
        spans = block if rest is None else pl.concat([rest, block])
        place = spans.height if is_last else _last_moment(spans, is_whole)
        if place or is_last:
            yield spans[:place]
        rest = spans[place:]


def _last_moment(spans: pl.DataFrame, is_whole: pl.Expr) -> int:
    """Return the number of the last span at whose start no other one is in progress, 0 if there is none."""
    start_ns = spans["start_ns"].to_numpy()
    chosen = spans.select(is_whole).to_series().to_numpy()
    end_ns = np.maximum.accumulate(np.maximum(start_ns, np.where(chosen, spans["end_ns"].to_numpy(), FIRST)))
    moments = np.flatnonzero(start_ns[1:] > end_ns[:-1])
    return int(moments[-1]) + 1 if len(moments) else 0


def what_rank_shows(spans: pl.DataFrame) -> RankShows:
    """Return what the spans of a rank show, after `with_merged_marks`."""
    plain = spans.filter(IS_PLAIN)
    messages = spans.filter(IS_MESSAGE)
    return RankShows(
        plain.height,
        frozenset(plain["peer"].drop_nulls().unique()),
        frozenset(messages["peer"].drop_nulls().unique()),
        messages.height > 0,
        spans["kind"].is_in(ACTION_KINDS).any(),
        step_evidence(spans),
    )


class ActionsInSteps(NamedTuple):
    """What decides in which blocks the messages of a rank are placed.

    `extents` has step, start_ns and end_ns of its actions in each step, and the number of its spans. Messages can
    belong to its actions if `are_apart`: there are some, and none overlap. If messages `are_repeated`, because one has
    the number of another one, all of them are placed together.
    """

    extents: pl.DataFrame
    are_apart: bool
    are_repeated: bool


def actions_in_steps(blocks: Iterable[pl.DataFrame]) -> ActionsInSteps:
    """Return what the spans of a rank with steps, in blocks as those of `on_steady_clock`, show about these."""
    found = []
    numbers: dict[tuple[object, ...], list[npt.NDArray[np.int32]]] = defaultdict(list)
    overlap = False
    for spans in blocks:
        actions = exchanging_actions(spans)
        overlap = overlap or bool(actions.select(OVERLAPS.any()).item())
        counts = spans.drop_nulls("step").group_by("step").agg(spans=pl.len())
        times = actions.group_by("step").agg(pl.min("start_ns"), pl.max("end_ns"))
        found.append(counts.join(times, on="step", how="left"))
        for key, own in spans.filter(IS_PLAIN).drop_nulls(["peer", "pair"]).group_by("kind", "peer", "name"):
            numbers[key].append(own["pair"].to_numpy())
    extents = pl.concat(found).group_by("step").agg(pl.min("start_ns"), pl.max("end_ns"), pl.sum("spans"))
    gaps = (np.diff(np.sort(np.concatenate(each))) for each in numbers.values())
    are_apart = extents["start_ns"].count() > 0 and not overlap
    return ActionsInSteps(extents.sort("step"), are_apart, any((each == 0).any() for each in gaps))


def moments_between(ranks: Sequence[ActionsInSteps]) -> list[list[int]]:
    """Return moments of each of these ranks, before which all of them had ended some steps and begun no later one.

    Between two moments, there are at least about ROWS_OF_BLOCK spans.
    """
    steps = np.unique(np.concatenate([each.extents["step"].to_numpy() for each in ranks]))
    begun_ns, spans = [], np.zeros(len(steps), np.int64)
    is_moment = np.full(len(steps), not any(each.are_repeated for each in ranks))
    is_moment[:1] = False
    for each in ranks:
        place = np.searchsorted(steps, each.extents["step"].to_numpy())
        start_ns, end_ns = np.full(len(steps), FOREVER), np.full(len(steps), FIRST)
        start_ns[place] = each.extents["start_ns"].fill_null(FOREVER).to_numpy()
        end_ns[place] = each.extents["end_ns"].fill_null(FIRST).to_numpy()
        spans[place] += each.extents["spans"].to_numpy()
        begun_ns.append(np.minimum.accumulate(start_ns[::-1])[::-1])
        is_moment[1:] &= np.maximum.accumulate(end_ns)[:-1] < begun_ns[-1][1:]
    before = np.cumsum(spans) - spans
    chosen: list[int] = []
    for place in np.flatnonzero(is_moment).tolist():
        if before[place] - (before[chosen[-1]] if chosen else 0) >= row_blocks.ROWS_OF_BLOCK:
            chosen.append(place)
    return [each[chosen].tolist() for each in begun_ns]


def divided_at(blocks: Iterable[pl.DataFrame], moments_ns: Iterable[int]) -> Iterator[pl.DataFrame]:
    """Yield the spans of a rank before each of these moments, and those after the last one.

    A receive is before a moment if it ended before, any other span if it began before. `blocks` are in the order of the
    starts of spans.
    """
    moment = pl.when(pl.col("kind") == RECEIVE).then("end_ns").otherwise("start_ns")
    left = iter(blocks)
    rest = next(left)
    latest_ns = _latest_ns(rest)
    for moment_ns in moments_ns:
        known = [rest]
        while latest_ns < moment_ns:
            block = next(left, None)
            latest_ns = FOREVER if block is None else _latest_ns(block)
            known += [] if block is None else [block]
        rest = pl.concat(known)
        yield rest.filter(moment < moment_ns)
        rest = rest.filter(moment >= moment_ns)
    yield pl.concat([rest, *left])


def _latest_ns(spans: pl.DataFrame) -> int:
    """Return when the last span of a block began, which may have none."""
    return int(spans["start_ns"][-1]) if spans.height else FIRST


def needed_to_place(peer: int) -> pl.Expr:
    """Return which spans of a rank are needed to place the messages between it and another one."""
    return pl.col("kind").is_in(EXCHANGING_KINDS) | (IS_PLAIN & (pl.col("peer") == peer))


def placed_between(blocks: Iterable[pl.DataFrame], ranks: tuple[int, int]) -> Iterator[PlacedBlock]:
    """Yield which actions the transfers between two ranks belong to; `blocks` have those needed of both."""
    channels = pl.DataFrame([ranks, ranks[::-1]], schema=dict.fromkeys(CHANNEL, pl.Int32), orient="row")
    codes = {kind: BY_NAME[kind].code for kind in (*SENDS, *RECEIVES)}
    rows = (block.rename({"record": "row"}) for block in blocks)
    for placed in placed_messages(rows, channels):
        ends = placed_ends(placed).rename({"row": "record"}).unique(["rank", "record"], keep="first")
        coded = ends.with_columns(
            kind=pl.col("kind").cast(pl.String).replace_strict(codes, return_dtype=pl.UInt8)
        )
        peers = frozenset(ends.select("rank", "peer").unique().iter_rows())
        yield PlacedBlock(
            coded.select("rank", *OF_PLACED).sort("rank", "record"), peers, count_inside(placed)
        )
