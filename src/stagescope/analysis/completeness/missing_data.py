"""What the figures cannot speak for: jobs, ranks and steps that were not recorded whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.kinds import PIPELINE_JOBS
from stagescope.vocabulary.number_ranges import compact_ranges

if TYPE_CHECKING:
    from stagescope.model import Timeline


def find_gaps(timeline: Timeline, bubbles: pl.DataFrame, pipelines: pl.DataFrame) -> list[Diagnostic]:
    """Return a warning for all that the figures leave out.

    These are pipeline jobs without a step, recorded ranks without any pipeline job, and ranks without one in
    steps that the rest of their pipeline recorded: counting those as idle would make a bubble of lost data.
    """
    jobs = timeline.spans.filter(pl.col("kind").is_in(PIPELINE_JOBS))
    return [
        *_stepless(jobs),
        *_jobless(set(timeline.ranks["rank"]) - set(jobs["rank"].unique())),
        *_absent(bubbles, pipelines),
    ]


def errors_first(diagnostics: pl.DataFrame) -> tuple[Diagnostic, ...]:
    """Return the rows of a diagnostics table by severity, otherwise in the order in which they were found."""
    ordered = diagnostics.sort("severity", maintain_order=True)  # an Enum sorts as declared, errors first
    return tuple(Diagnostic(**row) for row in ordered.iter_rows(named=True))


def _stepless(jobs: pl.DataFrame) -> list[Diagnostic]:
    count = jobs["step"].null_count()
    if not count:
        return []
    return [
        Diagnostic("warning", "forward or backward jobs belong to no step; they have no window", count=count)
    ]


def _jobless(ranks: set[int]) -> list[Diagnostic]:
    if not ranks:
        return []
    message = f"no forward or backward job of rank {compact_ranges(ranks)}; not in the figures"
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
            f"no forward or backward job in step {compact_ranges(steps)}; not counted there",
            rank=rank,
            count=len(steps),
        )
        for rank, steps in lacking.iter_rows()
    ]
