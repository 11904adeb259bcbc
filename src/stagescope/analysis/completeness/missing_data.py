"""Data that the metrics leave out: actions, ranks and steps that were not recorded completely."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.bubble import ONLY_PARTS
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.large_tables import reduced
from stagescope.vocabulary.kinds import ACTION_KINDS
from stagescope.vocabulary.number_ranges import ranks_text, steps_text, verb

if TYPE_CHECKING:
    from collections.abc import Collection

    from stagescope.analysis.intermediates import Intermediates
    from stagescope.analysis.windows import Windows
    from stagescope.model import Timeline


NO_END = "recording.no_end"
FEWEST_AFTER = 2
"""Steps that a pipeline runs without a rank: when all are killed, some may have begun one step more than others."""


class StepCounts(NamedTuple):
    """How many actions a run has, how many of them have no step, and how many of these are no forwards."""

    actions: int
    stepless: int
    stepless_backwards: int


def count_steps(spans: pl.DataFrame) -> StepCounts:
    """Return how many actions have a step."""
    actions = spans.lazy().filter(pl.col("kind").is_in(ACTION_KINDS))
    has_none = pl.col("step").is_null()
    counts = actions.select(
        actions=pl.len(),
        stepless=has_none.sum(),
        stepless_backwards=(has_none & (pl.col("kind") != "forward")).sum(),
    )
    return StepCounts(*counts.collect().row(0))


def find_missing_data(known: Intermediates, timeline: Timeline) -> list[Diagnostic]:
    """Return a warning or an error for everything that the metrics leave out.

    That is: actions without a step, recorded ranks without any action, and ranks without an action in a step that the
    rest of their pipeline recorded. Counting the latter as idle would turn lost data into a bubble.
    """
    windows = known.windows
    cut = timeline.diagnostics.filter(pl.col("code") == NO_END)
    acted = {*known.rank_stages["rank"], *windows.unaligned}
    return [
        *([] if ONLY_PARTS in timeline.diagnostics["code"] else _stepless(known.step_counts)),
        *_actionless(set(timeline.ranks["rank"]) - acted),
        *_absent(windows, set(cut["rank"].drop_nulls())),
    ]


def errors_first(diagnostics: pl.DataFrame) -> tuple[Diagnostic, ...]:
    """Return the rows of a diagnostics table by severity, otherwise in their order."""
    ordered = diagnostics.sort(
        "severity", maintain_order=True
    )  # an Enum sorts in declared order: errors first
    return tuple(Diagnostic(**row) for row in ordered.iter_rows(named=True))


def _stepless(counts: StepCounts) -> list[Diagnostic]:
    """Return an info about the forwards of evaluations, or a warning if a backward has no step either."""
    count = counts.stepless
    if not count:
        return []
    if count < counts.actions and not counts.stepless_backwards:
        text = "forwards of evaluations have no step; they are not in any window"
        return [Diagnostic("info", text, count=count, code="actions.evaluation")]
    message = "forward or backward actions have no step; they are not in any window"
    return [Diagnostic("warning", message, count=count, code="actions.no_step")]


def _actionless(ranks: set[int]) -> list[Diagnostic]:
    if not ranks:
        return []
    message = f"no forward or backward action of {ranks_text(ranks)}; not in the totals"
    return [Diagnostic("warning", message, count=len(ranks), code="ranks.no_actions")]


def _absent(windows: Windows, cut: Collection[int]) -> list[Diagnostic]:
    """Return a warning for every rank that lacks steps of its pipeline.

    It is an error for a rank whose recording is `cut` off and whose pipeline went on: the ranks of a pipeline wait for
    each other in every step, so the rank had not stopped, and its data are lost.
    """
    size = windows.pipelines.group_by("pipeline").agg(size=pl.len())
    present = (rows.group_by("step", "pipeline").agg(ranks=pl.len()) for rows in windows.parts)
    # Few steps lack ranks: only these are looked at rank by rank.
    is_lacking = pl.col("ranks") < pl.col("size")
    lacking = pl.concat([rows.join(size, on="pipeline").filter(is_lacking) for rows in present])
    if lacking.is_empty():
        return []
    expected = lacking.select("step", "pipeline").join(windows.pipelines, on="pipeline")
    last = reduced(windows.parts, lambda rows: rows.group_by("rank").agg(pl.max("step")))
    last = last.rename({"step": "last"})
    for rows in windows.parts:
        expected = expected.join(rows, on=["step", "rank"], how="anti", maintain_order="left")
    missing = (
        expected.join(last, on="rank", how="left")
        .group_by("rank")
        .agg("step", after=(pl.col("step") > pl.col("last")).sum())
        .sort("rank")
    )
    return [
        Diagnostic(
            "error" if rank in cut and after >= FEWEST_AFTER else "warning",
            _absence(steps),
            rank=rank,
            count=len(steps),
            code="ranks.missing_step",
        )
        for rank, steps, after in missing.iter_rows()
    ]


def _absence(steps: list[int]) -> str:
    return f"no forward or backward action in {steps_text(steps)}; not counted in {verb(steps, 'it', 'them')}"
