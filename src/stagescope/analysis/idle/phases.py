"""The three phases of a step on each rank: warm-up fills the pipeline, cool-down drains it.

On rank r let a be the start of its first backward action and b the end of its last forward action of the step. The
warm-up lasts from the start of the pipeline's window to a, the steady phase from a to b, the cool-down from b
to the end of the window. Where b is not after a (GPipe, few micro-batches) nothing is steady: warm-up to a,
cool-down from a on. A backward action is a full one or the input-gradient half of a split one; the weight-gradient
half can be put off at will and bounds no phase. Idle and busy time are those of `step_bubbles`, cut at a and b, so
that the phases of a rank add up to its window, its busy and its idle time to the nanosecond.
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
        Column("end_ns", pl.Int64, "ns", "End of the phase; equal to the start where it does not exist."),
        Column("duration_ns", pl.Int64, "ns", "Length of the phase; the three add up to the window."),
        Column("busy_ns", pl.Int64, "ns", "Part of it in which the rank computed (union of compute spans)."),
        Column(
            "idle_ns", pl.Int64, "ns", "The rest; the three add up to the rank's idle time in the window."
        ),
        Column(
            "idle_fraction", pl.Float64, "", "idle_ns / duration_ns; null for an empty phase.", nullable=True
        ),
    ),
)

BACKWARDS = ("backward", "backward_input")


def cut_phases(spans: pl.DataFrame, bubbles: pl.DataFrame, busy: pl.DataFrame) -> pl.DataFrame:
    """Return the table STEP_PHASES: three rows per step and rank of `bubbles`, what step_bubbles returns.

    `busy` is what unite returns for all spans on the compute lane.
    A rank without a backward action in the step (evaluation, or lost data) is in warm-up to the end of the window;
    one without a forward action has no steady phase. Definition: the common reading of Megatron-LM's warm-up, 1F1B
    and cool-down (megatron/core/pipeline_parallel/schedules.py), told from times instead of from counts.
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
    """Return the window of each step and rank with its moments a and b, both inside the window."""
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
    first_backward_ns = pl.min_horizontal("first_backward_ns", "window_end_ns")  # skips null
    # Where the last forward has ended before the first backward, both ends of the steady phase are at a.
    last_forward_ns = pl.max_horizontal("first_backward_ns", "last_forward_ns")
    return (
        windows.join(bounds.collect(), on=["step", "rank"], how="left", maintain_order="left")
        .with_columns(first_backward_ns=first_backward_ns)
        .with_columns(last_forward_ns=last_forward_ns)
    )


def _phases(bounds: pl.DataFrame) -> pl.DataFrame:
    """Return step, pipeline, rank, phase, start_ns and end_ns: three rows for each row of `bounds`."""
    moments = ("window_start_ns", "first_backward_ns", "last_forward_ns", "window_end_ns")
    return pl.concat(
        bounds.select(
            "step",
            "pipeline",
            "rank",
            pl.lit(phase, PhaseType).alias("phase"),
            pl.col(start_ns).alias("start_ns"),
            pl.col(end_ns).alias("end_ns"),
        )
        for phase, start_ns, end_ns in zip(PHASES, moments, moments[1:], strict=False)
    )
