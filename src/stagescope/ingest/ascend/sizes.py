"""Which schedules, in which sizes, the marks may show: what is declared, checked against what every rank did."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.ingest.ascend.pipeline_info import FORWARD, OVERLAP, WEIGHT
from stagescope.ingest.ascend.plan import Plan
from stagescope.model.diagnostics import Diagnostic
from stagescope.schedules.spellings import is_spelling, known_schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.ingest.ascend.pipeline_info import PipelineInfo

CHUNKS = {"dualpipev": 2}
ONE_F_ONE_B = ("1f1b", "interleaved")
MOST_CHUNKS = 16
"""Chunks per rank that are tried where nobody says how many there are."""

FAR_TOO_MANY = 1.5
"""A pass with so many times the forwards of any step is nothing to compare with: too much was declared by far."""


class Counts(NamedTuple):
    """What the steps did: forwards in most and in the longest of them, and the number after the highest one said.

    Where no step is told apart from another, a group of actions may be several passes through the schedule.
    """

    forwards: int
    longest: int
    said: int | None
    overlaps: bool
    steps_are_told: bool


def count_actions(actions: pl.DataFrame) -> Counts:
    """Return the counts; `actions` has the column `group` beside those of the raw actions."""
    is_forward = pl.col("marker").is_in([FORWARD, OVERLAP])
    counts = actions.group_by("group").agg(
        forwards=is_forward.sum(), said=pl.col("said_microbatch").max() + 1
    )
    forwards = counts["forwards"].sort()
    said = counts["said"].drop_nulls().mode().sort()
    return Counts(
        forwards.mode().sort()[-1],
        forwards[-1],
        said[-1] if len(said) else None,
        bool(actions["marker"].is_in([OVERLAP, WEIGHT]).any()),
        actions["step"].n_unique() > 1,
    )


def list_plans(counts: Counts, stages: int, declared: PipelineInfo) -> tuple[list[Plan], list[Diagnostic]]:
    """Return the plans to compare the marks with, the likeliest first, and what was wrong with the declaration."""
    notes: list[Diagnostic] = []
    if not is_spelling(declared.schedule):
        text = f"no schedule {declared.schedule!r} is known here; the actions are compared with those that are likely"
        notes.append(Diagnostic("warning", text))
    name = known_schedule(declared.schedule)
    names = [name] if name else ["dualpipev"] if counts.overlaps else ["1f1b", "gpipe"]
    plans = [
        Plan(
            each if chunks == CHUNKS.get(each, 1) else "interleaved",
            stages,
            m,
            chunks,
            counts_on=chunks > 1 and (counts.said or 0) > m,
        )
        for each in names
        for chunks, m in dict.fromkeys(_sizes(each, counts, declared.microbatches))
        if 0 < chunks * m <= FAR_TOO_MANY * counts.longest and _may_be(each, (chunks, m), stages, declared)
    ]
    return plans, notes


def _may_be(name: str, size: tuple[int, int], stages: int, declared: PipelineInfo) -> bool:
    """Tell whether sizes that nobody declares are possible: Megatron interleaves whole rounds of micro-batches only."""
    chunks, microbatches = size
    is_interleaved = name in ONE_F_ONE_B and chunks > 1
    return not is_interleaved or declared.microbatches is not None or microbatches % stages == 0


def _sizes(name: str, counts: Counts, declared: int | None) -> Iterator[tuple[int, int]]:
    """Yield possible numbers of chunks and micro-batches of a schedule; how near they come is for others to tell."""
    chunks = CHUNKS.get(name, 1)
    if declared:
        yield chunks, declared
        if name in ONE_F_ONE_B:
            yield from ((round(each / declared), declared) for each in (counts.forwards, counts.longest))
    if counts.said:
        yield chunks, ceil(counts.said / chunks)
        yield chunks, counts.said
    if counts.steps_are_told or not (declared or counts.said):
        # Where marks are lost in most steps, the longest step is nearer to the truth than most steps are.
        yield chunks, ceil(counts.forwards / chunks)
        yield chunks, ceil(counts.longest / chunks)
    if name in ONE_F_ONE_B and not declared:
        several = range(2, MOST_CHUNKS + 1)
        yield from (
            (v, each // v) for v in several for each in (counts.forwards, counts.longest) if each % v == 0
        )


def check_declared(plan: Plan, counts: Counts, declared: PipelineInfo) -> Iterator[Diagnostic]:
    """Yield what the plan that fits says against the declared number of micro-batches."""
    found = plan.microbatches
    if declared.microbatches is None:
        yield Diagnostic("info", f"{found} micro-batches per step are counted, none are declared")
    elif declared.microbatches != found:
        text = (
            f"{declared.microbatches} micro-batches per step are declared, which the {counts.forwards} forwards of "
            f"most steps contradict: {found} is used"
        )
        yield Diagnostic("warning", text)
