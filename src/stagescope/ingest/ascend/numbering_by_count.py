"""Number actions by counting where no schedule is known: the k-th forward and backward are micro-batch k.

This holds for schedules with one chunk per rank that run micro-batches in order, such as 1F1B and GPipe, and only where
no mark is missing. It is therefore applied only if every rank has equally many forwards and backwards in every step and
one of two patterns is present: some rank (the last stage) runs each backward directly after its forward, or all ranks
run all backwards at the end. With several chunks no rank shows the first pattern, because the last rank starts with the
forwards of its other chunks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.ascend.pipeline_info import BACKWARD, FORWARD
from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from stagescope.ingest.ascend.pipeline_info import PipelineInfo
    from stagescope.ingest.ascend.sizes import Counts


def number_by_count(
    actions: pl.DataFrame, declared: PipelineInfo, counts: Counts
) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return the actions with chunk and microbatch where counting is safe, and the diagnostic that explains the result.

    `actions` has group and sort in addition to the columns of raw actions. Numbers recorded in the marks are always
    used.
    """
    if _contradicts(declared, counts) or not (_agree(actions) and _has_one_chunk(actions)):
        # With several chunks, numbering may continue from one chunk to the next (plan.py): a number alone is ambiguous.
        is_sure = (pl.col("marker") == FORWARD) & (not counts.overlaps)
        recorded = pl.when(is_sure).then("recorded_microbatch").alias("microbatch")
        text = (
            "actions cannot be identified: no schedule matches their order, and counting is not safe; only numbers "
            "recorded in the marks are used: pass --schedule and --microbatches"
        )
        unnamed = actions.height - actions.select(recorded).to_series().count()
        unidentified = Diagnostic("warning", text, count=unnamed, code="actions.unidentified")
        return actions.with_columns(recorded, chunk="recorded_chunk"), [unidentified]
    per_step = _per_step(declared, counts)
    nth = pl.int_range(pl.len(), dtype=pl.Int32).over("group", "sort")
    microbatch = pl.when(pl.col("marker") == FORWARD).then(pl.coalesce("recorded_microbatch", nth % per_step))
    step = pl.when(pl.col("may_repeat")).then(pl.col("step") + nth // per_step).otherwise("step")
    text = (
        "no schedule is declared, or a pipeline rank is unknown: actions are numbered by counting, which is safe "
        "because every rank ran equally many"
    )
    named = actions.with_columns(
        microbatch=microbatch.otherwise(nth % per_step), step=step, chunk=pl.lit(0, pl.Int32)
    )
    return named, [Diagnostic("info", text, count=actions.height, code="actions.numbered_by_count")]


def _contradicts(declared: PipelineInfo, counts: Counts) -> bool:
    """Return whether the declared number of micro-batches differs from the number in every step."""
    return counts.has_step_numbers and declared.microbatches not in (None, counts.forwards)


def _agree(actions: pl.DataFrame) -> bool:
    """Return whether all groups have the same number of forwards and backwards, and no other mark."""
    counts = actions.group_by("group").agg(
        (pl.col("sort") == FORWARD).sum().alias("forwards"),
        (pl.col("sort") == BACKWARD).sum().alias("backwards"),
        pl.len(),
        chunks=pl.col("recorded_chunk").fill_null(0).max(),
    )
    equal = pl.col("forwards") == pl.col("backwards")
    whole = counts.select(
        (equal & (pl.col("len") == 2 * pl.col("forwards")) & (pl.col("chunks") == 0)).all()
    ).item()
    return bool(whole) and counts["forwards"].n_unique() == 1


def _has_one_chunk(actions: pl.DataFrame) -> bool:
    """Return whether some rank holds one micro-batch at a time, or every rank holds all micro-batches of a step."""
    is_forward = pl.col("sort") == FORWARD
    # Micro-batches in flight: forwards minus backwards so far.
    held = pl.when(is_forward).then(1).otherwise(-1).cum_sum().over("group")
    most = actions.select("group", held=held, forwards=is_forward.sum().over("group")).group_by("group").max()
    return bool(most["held"].min() == 1 or (most["held"] == most["forwards"]).all())


def _per_step(declared: PipelineInfo, counts: Counts) -> int:
    """Return the micro-batches per step; several passes are possible only where the marks have no step numbers."""
    for size in (declared.microbatches, counts.recorded_microbatches):
        if size and not counts.has_step_numbers and counts.forwards % size == 0:
            return size
    return max(counts.forwards, 1)
