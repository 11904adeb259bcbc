"""When each iteration begins and ends: from the first action of a step to the first action of the next one.

All ranks share these boundaries, because data-parallel replicas and pipeline stages wait for each other in every
iteration. What happens between two steps (data loading, gradient reduction, optimizer, logging) therefore belongs to
the iteration before. If the next step was not recorded, an iteration ends with the last span that was recorded of it,
and what follows is unknown; if the previous step was not recorded, it begins with the first span that was. After the
last step of a training, the host does what belongs to no iteration (a last checkpoint, a barrier, the garbage
collection of an interpreter that ends): collectives and host activities that follow everything else do not count. Only
the loading of data does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.iteration.activities import LOADING_NAMES
from stagescope.model.tables import Column, Table
from stagescope.vocabulary.kinds import ACTION_KINDS, COLLECTIVE, HOST

if TYPE_CHECKING:
    from collections.abc import Iterable

FORWARD = "forward"

MOST_OVERLAP_FRACTION = 0.1
"""How much of an iteration the windows of its successor may overlap."""

MOST_FORWARDS_PER_RANK = 2
"""Where steps have no backward, by how many of their longest forwards, per rank of a pipeline, they may overlap."""

ITERATION_STEPS = Table(
    "iteration_steps",
    "one step",
    ("step",),
    (
        Column("step", pl.Int32, "", "Training step."),
        Column(
            "start_ns",
            pl.Int64,
            "ns",
            "First start of an action of the step, over all pipelines; of any span if the step before is not recorded.",
        ),
        Column(
            "end_ns",
            pl.Int64,
            "ns",
            "First start of an action of the next step; if that is not recorded, the last end of a span of this one "
            "that is neither a collective nor a host activity; loading of data counts.",
        ),
        Column("is_whole", pl.Boolean, "", "Whether the next step was recorded."),
        Column("last_end_ns", pl.Int64, "ns", "Last end of an action of the step, over all pipelines."),
        Column(
            "last_pipeline",
            pl.Int32,
            "",
            "The pipeline that ended last, or would have if none had waited for its replicas before; the smallest one "
            "of several.",
        ),
        Column("pipelines", pl.UInt32, "", "Pipelines that ran the step."),
    ),
)


def find_iteration_steps(
    bubbles: pl.DataFrame, recorded: pl.DataFrame, ledger: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Return the table ITERATION_STEPS; `bubbles` is what step_bubbles returns, `recorded` what find_recorded returns.

    `ledger` is the table LEDGER, whose data-parallel waits show which pipeline the others waited for before they ended.

    Two steps are taken for consecutive by their numbers, unless they overlap by more than a tenth: those are steps of
    several runs in one timeline, or of ranks whose clocks are far apart. A short overlap is left: a schedule may begin
    the next step on one rank while another finishes this one. Without backwards (inference, evaluation) nothing makes
    the first rank wait for the last one, so that steps overlap by as long as a micro-batch takes through the pipeline.
    """
    steps = _windows(bubbles, ledger).join(recorded, on="step", how="left").sort("step")
    length_ns = pl.col("next_ns") - pl.col("start_ns")
    overlap_ns = pl.col("last_end_ns") - pl.col("next_ns")
    through_ns = MOST_FORWARDS_PER_RANK * pl.col("most_ranks") * pl.col("longest_forward_ns")
    no_backward = ~pl.col("has_backward") & ~pl.col("has_backward").shift(-1)
    fits = (overlap_ns <= MOST_OVERLAP_FRACTION * length_ns) | (no_backward & (overlap_ns <= through_ns))
    is_whole = ((pl.col("following") == pl.col("step") + 1) & (length_ns > 0) & fits).fill_null(value=False)
    return (
        steps.with_columns(following=pl.col("step").shift(-1), next_ns=pl.col("start_ns").shift(-1))
        .with_columns(is_whole=is_whole)
        .with_columns(
            start_ns=pl.when(pl.col("is_whole").shift(1, fill_value=False))
            .then("start_ns")
            .otherwise(pl.min_horizontal("start_ns", "recorded_start_ns")),
            end_ns=pl.when("is_whole")
            .then("next_ns")
            .otherwise(pl.max_horizontal("last_end_ns", "recorded_end_ns")),
        )
        .select(pl.col(name).cast(dtype) for name, dtype in ITERATION_STEPS.schema.items())
    )


def _windows(bubbles: pl.DataFrame, ledger: pl.DataFrame | None) -> pl.DataFrame:
    """Return the first start and the last end of the windows of each step, and the pipeline that ended last."""
    windows = bubbles.group_by("step", "pipeline").agg(
        pl.first("window_start_ns", "window_end_ns"), ranks=pl.len()
    )
    alone_ns = pl.col("window_end_ns")
    if ledger is not None:
        waits = ledger.select("step", "pipeline", waited_ns="data_parallel_wait_ns")
        windows = windows.join(waits, on=["step", "pipeline"], how="left")
        alone_ns = alone_ns - pl.col("waited_ns").fill_null(0)
    return (
        windows.with_columns(alone_ns=alone_ns)
        .sort("alone_ns", "pipeline", descending=[True, False])
        .group_by("step", maintain_order=True)
        .agg(
            pl.min("window_start_ns").alias("start_ns"),
            pl.max("window_end_ns").alias("last_end_ns"),
            pl.first("pipeline").alias("last_pipeline"),
            pl.len().alias("pipelines"),
            pl.max("ranks").alias("most_ranks"),
        )
    )


def find_recorded(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the first start of any span of each step, and the last end of one that belongs to its iteration.

    Columns: step, recorded_start_ns, recorded_end_ns, longest_forward_ns and has_backward, sorted by step. Those of
    parts of a run are joined by join_recorded.
    """
    is_loading = pl.col("name").fill_null("").str.contains(LOADING_NAMES)
    may_follow = ((pl.col("lane") == HOST) & ~is_loading) | (pl.col("kind") == COLLECTIVE)
    is_forward = pl.col("kind") == FORWARD
    is_backward = pl.col("kind").is_in(ACTION_KINDS) & ~is_forward
    return (
        spans.lazy()
        .filter(pl.col("step").is_not_null())
        .group_by("step")
        .agg(
            recorded_start_ns=pl.min("start_ns"),
            recorded_end_ns=pl.col("end_ns").filter(~may_follow).max(),
            longest_forward_ns=(pl.col("end_ns") - pl.col("start_ns")).filter(is_forward).max(),
            has_backward=is_backward.any(),
        )
        .sort("step")
        .collect()
    )


def join_recorded(parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return what find_recorded returns for a run, given that of its parts."""
    return (
        pl.concat(parts)
        .group_by("step")
        .agg(
            pl.min("recorded_start_ns"),
            pl.max("recorded_end_ns", "longest_forward_ns"),
            pl.any("has_backward"),
        )
        .sort("step")
    )
