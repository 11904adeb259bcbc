"""Pipeline coordinates of the ranks from their first forward and backward of each step, where no profile records them.

In every schedule, the first forward of a step on a rank is micro-batch 0. So is the first backward, unless the pipeline
is V-shaped. `infer_coordinates` needs no more than that.
"""

from __future__ import annotations

import polars as pl

from stagescope.ingest.ascend.pipeline_info import BACKWARD, FORWARD, OVERLAP
from stagescope.ingest.coordinate_inference import infer_coordinates
from stagescope.model import SPANS, Timeline, empty_timeline
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.validate import conform


def infer_rank_coordinates(
    actions: pl.DataFrame, ranks: pl.DataFrame
) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return rank, pp, dp, tp, cp as inferred from the times (null where unknown), and how they were inferred.

    `actions` are raw actions, `ranks` has rank and clock. A single rank is a pipeline of one.
    """
    unplaced = ranks.select(
        "rank", *(pl.lit(None, pl.Int32).alias(name) for name in ("pp", "dp", "tp", "cp"))
    )
    if ranks.height == 1:
        return unplaced.with_columns(pp=pl.lit(0, pl.Int32)), []
    found = infer_coordinates(_first_actions(actions, ranks))
    if found is None:
        text = "no profile records the pipeline layout, and the times do not determine it: pass --pp (--tp, --dp, --cp)"
        return unplaced, [Diagnostic("warning", text, count=ranks.height, code="layout.unknown")]
    text = f"no profile records the pipeline layout; pipeline ranks are inferred from {found.evidence}"
    placed = unplaced.select("rank", "tp", "cp").join(found.coordinates, on="rank", how="left")
    return placed.select(unplaced.columns), [
        Diagnostic("info", text, count=ranks.height, code="layout.inferred")
    ]


def _first_actions(actions: pl.DataFrame, ranks: pl.DataFrame) -> Timeline:
    """Return a Timeline with the first forward and backward of every step and rank."""
    # Overlapped pairs occur only in V-shaped pipelines, where the first backward of a rank may belong to its
    # second chunk.
    kinds = (
        {FORWARD: "forward"} if OVERLAP in actions["marker"] else {FORWARD: "forward", BACKWARD: "backward"}
    )
    first = (
        actions.filter(pl.col("marker").is_in(list(kinds)) & pl.col("step").is_not_null())
        .sort("rank", "start_ns")
        .unique(["rank", "step", "marker"], keep="first", maintain_order=True)
        .with_columns(
            lane=pl.lit("compute"), kind=pl.col("marker").replace_strict(kinds), microbatch=0, chunk=0
        )
    )
    bare = empty_timeline()
    return Timeline(conform(first, SPANS), ranks, bare.steps, bare.clocks, bare.diagnostics)
