"""Raw actions as the marks of the profiles record them, before they are identified."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

FORWARD, BACKWARD, WEIGHT, OVERLAP = MARKERS = ("forward", "backward", "weight", "overlap")
"""What a mark can represent. An overlap is the forward of one micro-batch with the backward of another."""

RAW_ACTIONS = {
    "rank": pl.Int32(),
    "step": pl.Int32(),  # id of STEP_TIME; null outside every step
    "marker": pl.String(),  # one of MARKERS
    "message": pl.String(),  # the mark's own name, such as forward_step_with_model_graph
    "recorded_microbatch": pl.Int32(),  # current_microbatch of the mark's text, unchanged
    "recorded_chunk": pl.Int32(),
    "start_ns": pl.Int64(),  # of the task on the device
    "end_ns": pl.Int64(),
}
"""Columns of the raw actions, sorted by rank and start_ns; step and the recorded numbers may be null."""


@dataclass(frozen=True)
class PipelineInfo:
    """Declarations of `pp_info` in the profiles: the schedule, in lower case, and the micro-batches per step."""

    schedule: str | None = None
    microbatches: int | None = None
