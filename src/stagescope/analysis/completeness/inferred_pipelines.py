"""Pipelines that no transfer and no coordinate shows, so that they are inferred or cannot be separated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.diagnostics import Diagnostic
from stagescope.model.large_tables import united_rows
from stagescope.model.pipelines import infer_replicas
from stagescope.vocabulary.kinds import TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagescope.model import Timeline

ADVICE = "pass --pp, --dp and --tp, or record transfers with their peers"


NO_PIPELINE = (
    "No pipeline: each rank runs the whole model, one micro-batch per step, so there is no schedule and no bubble to "
    "explain."
)


def is_no_pipeline(bubbles: Iterable[pl.DataFrame], stages: int, microbatches: int | None) -> bool:
    """Return whether nothing in a run is a pipeline: one stage, one micro-batch, and pipelines of one rank.

    `bubbles` are the rows of step_bubbles, some steps after the others. Several micro-batches on one stage are
    gradient accumulation, which is a schedule, if a trivial one.
    """
    if stages > 1 or (microbatches or 1) > 1:
        return False
    members = united_rows(bubbles, ["pipeline", "rank"])
    return not members.is_empty() and members["pipeline"].is_unique().all()


def no_pipeline_diagnostics() -> list[Diagnostic]:
    """Return that a run is no pipeline."""
    return [Diagnostic("error", NO_PIPELINE[0].lower() + NO_PIPELINE[1:].rstrip("."), code="pipelines.none")]


def inferred_pipeline_diagnostics(timeline: Timeline) -> list[Diagnostic]:
    """Return that replicas were inferred from repeated actions, or that they could not be separated."""
    has_peers = pl.col("kind").is_in(TRANSFERS) & pl.col("peer").is_not_null()
    if timeline.spans.select(has_peers.any()).item() or not timeline.ranks["pp"].null_count():
        return []
    replicas = infer_replicas(timeline.spans)
    if replicas is None:
        message = (
            "several ranks ran the same actions, but not equally many for each stage: data-parallel replicas cannot be "
            f"separated, and all ranks count as one pipeline; {ADVICE}"
        )
        return [Diagnostic("error", message, code="pipelines.ambiguous")]
    if not replicas:
        return []
    count = len(set(replicas.values()))
    inferred = f"{count} data-parallel replicas were inferred from actions that several ranks ran"
    message = f"{inferred}; to state them, {ADVICE}"
    return [Diagnostic("info", message, count=count, code="pipelines.inferred")]
