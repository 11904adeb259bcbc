"""Idle time within other bounds than the windows: within whole iterations, and within the own span of each rank."""

from __future__ import annotations

import polars as pl

from stagescope.analysis.iteration.boundaries import find_iteration_steps
from stagescope.model.coverage import covered_ns
from stagescope.vocabulary.kinds import ACTION_KINDS, COMPUTE


def idle_of_iterations(bubbles: pl.DataFrame, recorded: pl.DataFrame, busy: pl.DataFrame) -> pl.DataFrame:
    """Return step, rank, whole_ns and idle_ns of the iteration of every step and rank with a window.

    `bubbles` is what step_bubbles returns, `recorded` what find_recorded returns, and `busy` the union of all spans on
    the compute lane.
    """
    steps = find_iteration_steps(bubbles, recorded)
    bounds = steps.select("step", window_start_ns="start_ns", window_end_ns="end_ns")
    return _idle_within(bubbles.select("step", "rank").join(bounds, on="step"), busy)


def idle_of_own_spans(spans: pl.DataFrame, pipelines: pl.DataFrame, busy: pl.DataFrame) -> pl.DataFrame:
    """Return step, rank, whole_ns and idle_ns, where the whole is the longest own span of a rank of the pipeline.

    An own span is from the first start to the last end of the actions of a rank. `pipelines` is from find_pipelines,
    and `busy` the union of all spans on the compute lane.
    """
    is_action = pl.col("kind").is_in(ACTION_KINDS) & (pl.col("lane") == COMPUTE)
    own = (
        spans.lazy()
        .filter(is_action & pl.col("step").is_not_null())
        .group_by("step", "rank")
        .agg(window_start_ns=pl.min("start_ns"), window_end_ns=pl.max("end_ns"))
        .collect()
        .join(pipelines, on="rank")
    )
    longest_ns = pl.max("whole_ns").over("step", "pipeline")
    times = _idle_within(own, busy, "pipeline").with_columns(
        whole_ns=longest_ns, idle_ns=longest_ns - (pl.col("whole_ns") - pl.col("idle_ns"))
    )
    return times.drop("pipeline")


def _idle_within(bounds: pl.DataFrame, busy: pl.DataFrame, *kept: str) -> pl.DataFrame:
    """Return the length of the bounds from window_start_ns to window_end_ns, and the idle time of the rank in them."""
    whole_ns = bounds["window_end_ns"] - bounds["window_start_ns"]
    times = bounds.with_columns(whole_ns=whole_ns, idle_ns=whole_ns - covered_ns(bounds, busy))
    return times.select("step", "rank", *kept, "whole_ns", "idle_ns")
