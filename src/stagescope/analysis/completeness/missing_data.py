"""What the figures cannot speak for: actions, ranks and steps that were not recorded whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.kinds import ACTION_KINDS
from stagescope.vocabulary.number_ranges import compact_ranges

if TYPE_CHECKING:
    from stagescope.model import Timeline


def find_missing_data(timeline: Timeline, bubbles: pl.DataFrame, pipelines: pl.DataFrame) -> list[Diagnostic]:
    """Return a warning for all that the figures leave out.

    These are pipeline actions without a step, recorded ranks without any pipeline action, and ranks without one in
    steps that the rest of their pipeline recorded: counting those as idle would make a bubble of lost data.
    """
    actions = timeline.spans.filter(pl.col("kind").is_in(ACTION_KINDS))
    return [
        *_stepless(actions),
        *_actionless(set(timeline.ranks["rank"]) - set(actions["rank"].unique())),
        *_absent(bubbles, pipelines),
    ]


def errors_first(diagnostics: pl.DataFrame) -> tuple[Diagnostic, ...]:
    """Return the rows of a diagnostics table by severity, otherwise in the order in which they were found."""
    ordered = diagnostics.sort("severity", maintain_order=True)  # an Enum sorts as declared, errors first
    return tuple(Diagnostic(**row) for row in ordered.iter_rows(named=True))


def _stepless(actions: pl.DataFrame) -> list[Diagnostic]:
    count = actions["step"].null_count()
    if not count:
        return []
    return [
        Diagnostic(
            "warning", "forward or backward actions belong to no step; they have no window", count=count
        )
    ]


def _actionless(ranks: set[int]) -> list[Diagnostic]:
    if not ranks:
        return []
    message = f"no forward or backward action of rank {compact_ranges(ranks)}; not in the figures"
    return [Diagnostic("warning", message, count=len(ranks))]


def _absent(bubbles: pl.DataFrame, pipelines: pl.DataFrame) -> list[Diagnostic]:
    """Return a warning per rank that lacks steps which its pipeline has."""
    expected = bubbles.select("step", "pipeline").unique().join(pipelines, on="pipeline")
    lacking = (
        expected.join(bubbles, on=["step", "rank"], how="anti").group_by("rank").agg("step").sort("rank")
    )
    return [
        Diagnostic(
            "warning",
            f"no forward or backward action in step {compact_ranges(steps)}; not counted there",
            rank=rank,
            count=len(steps),
        )
        for rank, steps in lacking.iter_rows()
    ]
