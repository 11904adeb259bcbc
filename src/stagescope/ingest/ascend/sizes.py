"""List the schedules and sizes that the marks may follow: the declared ones, checked against the recorded actions."""

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
MAX_CHUNKS = 16
"""Largest number of chunks per rank that is tried where it is not declared."""

MAX_FORWARDS_RATIO = 1.5
"""Plans with more than this many times the forwards of the longest step are not tried."""


class Counts(NamedTuple):
    """Forwards in most steps and in the longest step; micro-batches by the highest number recorded in a mark.

    Without recorded step numbers, a group of actions may be several passes through the schedule.
    """

    forwards: int
    longest: int
    recorded_microbatches: int | None
    overlaps: bool
    has_step_numbers: bool


def count_actions(actions: pl.DataFrame) -> Counts:
    """Return the counts; `actions` has the column `group` in addition to those of the raw actions."""
    is_forward = pl.col("marker").is_in([FORWARD, OVERLAP])
    counts = actions.group_by("group").agg(
        forwards=is_forward.sum(), recorded=pl.col("recorded_microbatch").max() + 1
    )
    forwards = counts["forwards"].sort()
    recorded = counts["recorded"].drop_nulls().mode().sort()
    return Counts(
        forwards.mode().sort()[-1],
        forwards[-1],
        recorded[-1] if len(recorded) else None,
        bool(actions["marker"].is_in([OVERLAP, WEIGHT]).any()),
        actions["step"].n_unique() > 1,
    )


def list_plans(counts: Counts, stages: int, declared: PipelineInfo) -> tuple[list[Plan], list[Diagnostic]]:
    """Return the plans to compare with the marks, the most likely first, and diagnostics on the declaration."""
    notes: list[Diagnostic] = []
    if not is_spelling(declared.schedule):
        text = (
            f"unknown schedule {declared.schedule!r}; the actions are compared with the most likely schedules"
        )
        notes.append(Diagnostic("warning", text, code="schedule.unknown"))
    name = known_schedule(declared.schedule)
    names = [name] if name else ["dualpipev"] if counts.overlaps else ["1f1b", "gpipe"]
    plans = [
        Plan(
            each if chunks == CHUNKS.get(each, 1) else "interleaved",
            stages,
            m,
            chunks,
            counts_on=chunks > 1 and (counts.recorded_microbatches or 0) > m,
        )
        for each in names
        for chunks, m in dict.fromkeys(_sizes(each, counts, declared.microbatches))
        if 0 < chunks * m <= MAX_FORWARDS_RATIO * counts.longest
        and _is_possible(each, (chunks, m), stages, declared)
    ]
    return plans, notes


def _is_possible(name: str, size: tuple[int, int], stages: int, declared: PipelineInfo) -> bool:
    """Return whether undeclared sizes are possible: Megatron interleaves only complete rounds of micro-batches."""
    chunks, microbatches = size
    # A declared number is tried in any case: the declaration is evidence, a guess is not.
    is_interleaved = name in ONE_F_ONE_B and chunks > 1
    return not is_interleaved or declared.microbatches is not None or microbatches % stages == 0


def _sizes(name: str, counts: Counts, declared: int | None) -> Iterator[tuple[int, int]]:
    """Yield possible numbers of chunks and micro-batches of a schedule; the caller compares how well they fit."""
    chunks = CHUNKS.get(name, 1)
    if declared:
        yield chunks, declared
        if name in ONE_F_ONE_B:
            yield from ((round(each / declared), declared) for each in (counts.forwards, counts.longest))
    if counts.recorded_microbatches:
        yield chunks, ceil(counts.recorded_microbatches / chunks)
        yield chunks, counts.recorded_microbatches
    if counts.has_step_numbers or not (declared or counts.recorded_microbatches):
        # Where marks are missing in most steps, the longest step is closer to the truth than the typical one.
        yield chunks, ceil(counts.forwards / chunks)
        yield chunks, ceil(counts.longest / chunks)
    if name in ONE_F_ONE_B and not declared:
        # The forwards of a step are chunks x micro-batches: every divisor up to MAX_CHUNKS is possible.
        several = range(2, MAX_CHUNKS + 1)
        yield from (
            (v, each // v) for v in several for each in (counts.forwards, counts.longest) if each % v == 0
        )


def check_declared(plan: Plan, counts: Counts, declared: PipelineInfo) -> Iterator[Diagnostic]:
    """Yield a diagnostic where the plan that fits differs from the declared number of micro-batches."""
    found = plan.microbatches
    if declared.microbatches is None:
        text = f"{found} micro-batches per step, counted: none are declared"
        yield Diagnostic("info", text, code="microbatches.counted")
    elif declared.microbatches != found:
        text = (
            f"{declared.microbatches} micro-batches per step are declared, but most steps have {counts.forwards} "
            f"forwards: {found} is used"
        )
        yield Diagnostic("warning", text, code="microbatches.contradictory")
