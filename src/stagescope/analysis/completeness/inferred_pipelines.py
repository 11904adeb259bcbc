"""Pipelines that no transfer and no coordinate shows, so that they are inferred or cannot be separated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.diagnostics import Diagnostic
from stagescope.model.pipelines import infer_replicas
from stagescope.vocabulary.kinds import TRANSFERS

if TYPE_CHECKING:
    from stagescope.model import Timeline

ADVICE = "pass --pp, --dp and --tp, or record transfers with their peers"


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
