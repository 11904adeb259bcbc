"""Determine the stage of every span: from the file, else from the caller's layout, else by inference.

A rank's coordinates come from its file, else from the layout that the caller gives, else from the path of micro-batch
0 (coordinate_inference.py), which a diagnostic reports. The stage of an action follows from its rank's pipeline
coordinate and model chunk, by the placement of the schedule.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.ingest.coordinate_inference import infer_coordinates
from stagescope.ingest.layout import coordinates
from stagescope.model.diagnostics import Diagnostic
from stagescope.schedules.catalog import NAMES, find_schedule
from stagescope.vocabulary.kinds import ACTION_KINDS, RECEIVES, SENDS
from stagescope.vocabulary.number_ranges import ranks_text
from stagescope.vocabulary.parallel import DIMENSIONS

if TYPE_CHECKING:
    from stagescope.ingest.layout import Layout
    from stagescope.model import Timeline

PLACED = (*ACTION_KINDS, *SENDS, *RECEIVES, "loss")
"""The kinds that belong to a stage."""

IS_OPEN = pl.col("stage").is_null() & pl.col("kind").is_in(PLACED)
"""Whether a span belongs to a stage that its file does not state."""

FOLDED_FRACTION = 0.5
"""In a V placement, chunk 1 follows chunk 0 immediately on the last rank, but on the first rank only after micro-batch
0 has traversed the pipeline twice. The wait on the last rank must be below this fraction of the wait on the first."""


class StageRule(NamedTuple):
    """How the stage of a span follows from the coordinate of its rank and its chunk."""

    chunk_count: int
    pp_size: int
    placement: str


class Placement(NamedTuple):
    """The ranks of a run with coordinates, and the rule for stages that no file states; None if there is none."""

    ranks: pl.DataFrame
    rule: StageRule | None
    notes: tuple[Diagnostic, ...]


def place_stages(timeline: Timeline, layout: Layout) -> Timeline:
    """Return the timeline with missing coordinates in `ranks` and missing stages in `spans` filled in where possible.

    Values stated by a file are kept, with a warning if the layout contradicts them. Values that remain unknown stay
    null, with a warning. Raises InputError if the layout does not fit the number of ranks.
    """
    placement = find_placement(timeline, layout)
    placed = with_placement(timeline, placement)
    if placement.notes:
        placed = placed.with_diagnostics(placement.notes)
    return placed if placement.rule is None else placed.with_diagnostics(_ranks_without_stages(placed.spans))


def find_placement(timeline: Timeline, layout: Layout) -> Placement:
    """Return the coordinates of the ranks, and how stages follow from them.

    Of the spans, these are enough (`ingest/recording/survey.py`): the actions of micro-batch 0, and of each rank an
    action, a span without a stage, an action without a stage and the span of the highest chunk. Raises InputError as
    place_stages does.
    """
    placed = _with_coordinates(timeline, layout)
    notes = placed.diagnostics[timeline.diagnostics.height :]
    found = tuple(Diagnostic(**row) for row in notes.iter_rows(named=True))
    is_open = not placed.spans.filter(IS_OPEN).is_empty()
    return Placement(placed.ranks, _rule(placed) if is_open else None, found)


def with_placement(timeline: Timeline, placement: Placement) -> Timeline:
    """Return the timeline of some ranks of a run, or of all, with coordinates and stages."""
    placed = timeline
    if placement.ranks is not timeline.ranks:
        own = timeline.ranks.select("rank").join(
            placement.ranks, on="rank", how="left", maintain_order="left"
        )
        placed = replace(timeline, ranks=own.select(timeline.ranks.columns))
    if placement.rule is None:
        return placed
    return _with_stages_of_kernels(placed.with_spans(_with_stages(placed, placement.rule)))


def stage_evidence(spans: pl.DataFrame) -> pl.DataFrame:
    """Return rank and has_stage (whether one of its actions has a stage) of the ranks with actions."""
    actions = spans.filter(pl.col("kind").is_in(ACTION_KINDS))
    return actions.group_by("rank").agg(has_stage=pl.col("stage").is_not_null().any())


def _ranks_without_stages(spans: pl.DataFrame) -> list[Diagnostic]:
    return note_ranks_without_stages(stage_evidence(spans))


def note_ranks_without_stages(has_stage: pl.DataFrame) -> list[Diagnostic]:
    """Return a warning for ranks of which no action has a stage, if actions of other ranks have one."""
    without = has_stage.filter(~pl.col("has_stage"))["rank"].sort()
    if without.is_empty() or len(without) == has_stage.height:
        return []
    text = (
        f"the stage of {ranks_text(without)} is unknown, although other ranks have one: the file may be"
        " damaged (give the sizes with --pp, --tp, --dp, --cp)"
    )
    return [Diagnostic("warning", text, count=len(without), code="stages.unknown")]


def _with_stages_of_kernels(timeline: Timeline) -> Timeline:
    """Return the timeline with the stage of kernels of actions on ranks that have one stage."""
    if timeline.kernels.is_empty():
        return timeline
    placed = timeline.spans.filter(pl.col("kind").is_in(ACTION_KINDS)).group_by("rank")
    only = placed.agg(only=pl.col("stage").drop_nulls().unique()).filter(pl.col("only").list.len() == 1)
    known = only.select("rank", pl.col("only").list.first())
    kernels = timeline.kernels.join(known, on="rank", how="left", maintain_order="left")
    stage = pl.coalesce("stage", pl.when(pl.col("kind").is_in(ACTION_KINDS)).then("only"))
    return replace(timeline, kernels=kernels.with_columns(stage=stage).drop("only"))


def _with_coordinates(timeline: Timeline, layout: Layout) -> Timeline:
    ranks = timeline.ranks
    if layout.is_given and not ranks.is_empty():
        given = coordinates(ranks["rank"].to_list(), layout, _world_size(ranks))
        return _merged(timeline, given).with_diagnostics(_contradictions(ranks, given))
    unplaced = timeline.spans.filter(
        pl.col("stage").is_null() & pl.col("microbatch").is_not_null() & pl.col("kind").is_in(ACTION_KINDS)
    )
    if unplaced.is_empty() or ranks["pp"].null_count() < ranks.height:
        return timeline
    if ranks.height == 1:
        return timeline
    inferred = infer_coordinates(timeline) if _all_took_part(timeline) else None
    if inferred is None:
        text = "the stages of the ranks are unknown and cannot be inferred: give the sizes with --pp (--tp, --dp, --cp)"
        return timeline.with_diagnostics(
            [Diagnostic("warning", text, count=ranks.height, code="stages.unknown")]
        )
    return _merged(timeline, inferred.coordinates).with_diagnostics(
        [_inference_note(inferred.coordinates, inferred.evidence)]
    )


def _world_size(ranks: pl.DataFrame) -> int:
    """Return the number of ranks of the run: the declared number, or more if higher rank numbers are present."""
    numbers = [int(rank) + 1 for rank in ranks["rank"]]
    return max(numbers + [int(size) for size in ranks["world_size"].drop_nulls()])


def _all_took_part(timeline: Timeline) -> bool:
    """Return whether every rank of the run has actions: with ranks missing, the order of the others proves nothing."""
    with_actions = timeline.spans.filter(pl.col("kind").is_in(ACTION_KINDS))["rank"].n_unique()
    declared = timeline.ranks["world_size"].max()
    return with_actions == timeline.ranks.height and (declared is None or declared == with_actions)


def _merged(timeline: Timeline, found: pl.DataFrame) -> Timeline:
    """Return the timeline with `found` in place of null coordinates."""
    names = [name for name in DIMENSIONS if name in found.columns]
    joined = timeline.ranks.join(found, on="rank", how="left", suffix="_found", maintain_order="left")
    filled = [pl.coalesce(name, f"{name}_found").alias(name) for name in names]
    return replace(timeline, ranks=joined.with_columns(filled).select(timeline.ranks.columns))


def _contradictions(ranks: pl.DataFrame, given: pl.DataFrame) -> list[Diagnostic]:
    stated = ranks.join(given, on="rank", suffix="_given")
    differs = pl.any_horizontal(
        (pl.col(n) != pl.col(f"{n}_given")).fill_null(value=False) for n in DIMENSIONS
    )
    wrong = stated.filter(differs)["rank"]
    if wrong.is_empty():
        return []
    text = (
        f"the options contradict the coordinates that the files state for {ranks_text(wrong)};"
        " the files are used"
    )
    return [Diagnostic("warning", text, count=len(wrong), code="stages.contradicted")]


def _inference_note(found: pl.DataFrame, evidence: str) -> Diagnostic:
    by_stage = found.sort("pp", "rank").group_by("pp", maintain_order=True).agg("rank")
    stages = "; ".join(f"{pp}: {ranks_text(ranks)}" for pp, ranks in by_stage.head(SHOWN_STAGES).iter_rows())
    more = f"; and {by_stage.height - SHOWN_STAGES} more" if by_stage.height > SHOWN_STAGES else ""
    text = (
        f"no file states the stages; inferred from {evidence}: {stages}{more}"
        " (override with --pp, --tp, --dp, --cp)"
    )
    return Diagnostic("info", text, count=found.height, code="stages.inferred")


SHOWN_STAGES = 8


def _rule(timeline: Timeline) -> StageRule:
    placed = timeline.ranks.drop_nulls("pp").select("rank", "pp")
    spans = timeline.spans.join(placed, on="rank", how="left", maintain_order="left")
    chunk_count = int(spans.select(pl.col("chunk").max()).item() or 0) + 1
    size = int(spans.select(pl.col("pp").max()).item() or 0) + 1
    return StageRule(chunk_count, size, _placement(timeline, spans, chunk_count))


def _with_stages(timeline: Timeline, rule: StageRule) -> pl.DataFrame:
    placed = timeline.ranks.drop_nulls("pp").select("rank", "pp")
    spans = timeline.spans.join(placed, on="rank", how="left", maintain_order="left")
    chunk_count, size, placement = rule
    chunk = pl.col("chunk") if chunk_count > 1 else pl.col("chunk").fill_null(0)
    stage = chunk * size + pl.col("pp")
    if placement == "v":
        stage = chunk * size + pl.when(chunk % 2 == 1).then(size - 1 - pl.col("pp")).otherwise("pp")
    elif placement == "bidirectional":
        # The direction of a micro-batch decides its stage here, and neither rank nor chunk states it.
        stage = pl.lit(None, pl.Int32)
    filled = pl.when(IS_OPEN).then(stage.cast(pl.Int32)).otherwise("stage").alias("stage")
    return spans.with_columns(filled).select(timeline.spans.columns)


def _placement(timeline: Timeline, spans: pl.DataFrame, chunk_count: int) -> str:
    """Return the placement of the schedule that the ranks state, else the one that micro-batch 0 shows."""
    stated = timeline.ranks["schedule"].drop_nulls().unique()
    for name in stated:
        if name in NAMES:
            return find_schedule(name).placement
    return "v" if chunk_count > 1 and _is_folded(spans) else "loop"


def _is_folded(spans: pl.DataFrame) -> bool:
    """Return whether micro-batch 0 goes directly from chunk 0 to chunk 1 on the last rank, as in a V placement."""
    first = spans.filter(
        (pl.col("kind") == "forward") & (pl.col("microbatch") == 0) & pl.col("pp").is_not_null()
    )
    waits = (
        first.group_by("step", "rank", "pp")
        .agg(
            left_ns=pl.col("end_ns").filter(pl.col("chunk") == 0).min(),
            back_ns=pl.col("start_ns").filter(pl.col("chunk") == 1).min(),
        )
        .group_by("pp")
        .agg(wait_ns=(pl.col("back_ns") - pl.col("left_ns")).median())
        .drop_nulls()
        .sort("pp")["wait_ns"]
    )
    return len(waits) > 1 and bool(waits[-1] < FOLDED_FRACTION * waits[0])
