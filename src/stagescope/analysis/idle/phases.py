"""The three phases of a step on each rank: warm-up fills the pipeline, cool-down drains it.

On rank r let a be the start of its first backward and b the end of its last forward in the step. The warm-up lasts from
the start of the pipeline's window to a, the steady phase from a to b, the cool-down from b to the end of the window. If
b is not after a (GPipe, few micro-batches), there is no steady phase: warm-up until a, cool-down from a. A backward is
a full one or the input-gradient half of a split one; the weight-gradient half can be deferred freely and bounds no
phase. Idle and busy time are those of `step_bubbles`, cut at a and b, so that the phases of a rank sum to its window,
busy time and idle time to the nanosecond.
"""

from __future__ import annotations

import polars as pl

from stagescope.model.coverage import covered_ns
from stagescope.model.tables import Column, Table
from stagescope.vocabulary.kinds import COMPUTE

PHASES = ("warm-up", "steady", "cool-down")
PhaseType = pl.Enum(list(PHASES))

STEP_PHASES = Table(
    "step_phases",
    "one phase of one step on one rank",
    ("step", "rank", "phase"),
    (
        Column("step", pl.Int32, "", "Training step."),
        Column("pipeline", pl.Int32, "", "Smallest recorded rank of the rank's pipeline."),
        Column("rank", pl.Int32, "", "Global rank."),
        Column("phase", PhaseType, "", "warm-up, steady or cool-down."),
        Column("start_ns", pl.Int64, "ns", "Start of the phase."),
        Column("end_ns", pl.Int64, "ns", "End of the phase; equal to the start if there is no such phase."),
        Column("duration_ns", pl.Int64, "ns", "Length of the phase; the three sum to the window."),
        Column("busy_ns", pl.Int64, "ns", "Part of it in which the rank computed (union of compute spans)."),
        Column("idle_ns", pl.Int64, "ns", "The rest; the three sum to the rank's idle time in the window."),
        Column(
            "idle_fraction", pl.Float64, "", "idle_ns / duration_ns; null for an empty phase.", nullable=True
        ),
    ),
)

BACKWARDS = ("backward", "backward_input")


def cut_phases(spans: pl.DataFrame, bubbles: pl.DataFrame, busy: pl.DataFrame) -> pl.DataFrame:
    """Return the table STEP_PHASES: three rows per step and rank of `bubbles`, the result of step_bubbles.

    `busy` is the union of all spans on the compute lane. A rank without a backward in the step (evaluation, or lost
    data) is in warm-up until the end of the window; one without a forward has no steady phase. Definition: warm-up,
    1F1B and cool-down of Megatron-LM (megatron/core/pipeline_parallel/schedules.py), by time instead of by count.
    """
    phases = _phases(_windows_with_bounds(spans, bubbles))
    windows = phases.select("rank", window_start_ns="start_ns", window_end_ns="end_ns")
    duration_ns, idle_ns = pl.col("duration_ns"), pl.col("duration_ns") - pl.col("busy_ns")
    return (
        phases.with_columns(covered_ns(windows, busy).alias("busy_ns"))
        .with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns"))
        .with_columns(idle_ns=idle_ns)
        .with_columns(idle_fraction=pl.when(duration_ns > 0).then(pl.col("idle_ns") / duration_ns))
        .select(STEP_PHASES.names)
        .sort(STEP_PHASES.order)
    )


def _windows_with_bounds(spans: pl.DataFrame, bubbles: pl.DataFrame) -> pl.DataFrame:
    """Return the window of each step and rank with its times a and b, both inside the window."""
    kind = pl.col("kind")
    actions = spans.lazy().filter(
        (pl.col("lane") == COMPUTE)
        & pl.col("step").is_not_null()
        & ((kind == "forward") | kind.is_in(BACKWARDS))
    )
    bounds = actions.group_by("step", "rank").agg(
        pl.col("start_ns").filter(kind != "forward").min().alias("first_backward_ns"),
        pl.col("end_ns").filter(kind == "forward").max().alias("last_forward_ns"),
    )
    windows = bubbles.select("step", "pipeline", "rank", "window_start_ns", "window_end_ns")
    first_backward_ns = pl.min_horizontal(
        "first_backward_ns", "window_end_ns"
    )  # null (no backward in the step) is skipped
    # If the last forward ended before the first backward, the steady phase is empty, at a.
    last_forward_ns = pl.max_horizontal("first_backward_ns", "last_forward_ns")
    return (
        windows.join(bounds.collect(), on=["step", "rank"], how="left", maintain_order="left")
        .with_columns(first_backward_ns=first_backward_ns)
        .with_columns(last_forward_ns=last_forward_ns)
    )


def _phases(bounds: pl.DataFrame) -> pl.DataFrame:
    """Return step, pipeline, rank, phase, start_ns and end_ns: three rows per row of `bounds`."""
    bounds_ns = ("window_start_ns", "first_backward_ns", "last_forward_ns", "window_end_ns")
    return pl.concat(
        bounds.select(
            "step",
            "pipeline",
            "rank",
            pl.lit(phase, PhaseType).alias("phase"),
            pl.col(start_ns).alias("start_ns"),
            pl.col(end_ns).alias("end_ns"),
        )
        for phase, start_ns, end_ns in zip(PHASES, bounds_ns, bounds_ns[1:], strict=False)
    )
