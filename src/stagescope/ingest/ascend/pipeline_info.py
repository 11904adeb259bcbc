"""What the devices did for the pipeline, as the marks in the profiles say it, before anybody has named it."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

FORWARD, BACKWARD, WEIGHT, OVERLAP = MARKERS = ("forward", "backward", "weight", "overlap")
"""What a mark can stand for. An overlap is the forward of one micro-batch with the backward of another."""

RAW_ACTIONS = {
    "rank": pl.Int32(),
    "step": pl.Int32(),  # id of STEP_TIME; null outside every step
    "marker": pl.String(),  # one of MARKERS
    "message": pl.String(),  # the mark's own name, such as forward_step_with_model_graph
    "said_microbatch": pl.Int32(),  # current_microbatch of the message, as it stands there
    "said_chunk": pl.Int32(),
    "start_ns": pl.Int64(),  # of the task on the device
    "end_ns": pl.Int64(),
}
"""Columns of the raw actions, sorted by rank and start_ns; step and what a message may say are null where it is open.
"""


@dataclass(frozen=True)
class PipelineInfo:
    """What the profiles declare in `pp_info`: the pipeline's schedule, in lower case, and micro-batches per step."""

    schedule: str | None = None
    microbatches: int | None = None
