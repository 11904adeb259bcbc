"""Names by counting, where no schedule is known: the k-th forward and the k-th backward are those of micro-batch k.

That holds for schedules with one chunk per rank that take micro-batches in turn, as 1F1B and GPipe do, and only
where no mark is lost. So it is done where every rank has as many forwards and backwards in every step, and where some
rank, the last stage, takes each micro-batch back at once, or all ranks take all of them back at the end. With several
chunks no rank does the first: the last one begins with the forwards of its other chunks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.ascend.pipeline_info import BACKWARD, FORWARD
from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from stagescope.ingest.ascend.pipeline_info import PipelineInfo
    from stagescope.ingest.ascend.sizes import Counts


def count_along(
    actions: pl.DataFrame, declared: PipelineInfo, counts: Counts
) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return the actions with chunk and microbatch where counting gives them, and what it rests on.

    `actions` has group and sort beside the columns of raw actions. What marks say themselves is taken in any case.
    """
    if _contradicts(declared, counts) or not (_agree(actions) and _has_one_chunk(actions)):
        # With several chunks a rank may count its micro-batches on from one to the next (plan.py), so none is sure.
        is_sure = (pl.col("marker") == FORWARD) & (not counts.overlaps)
        said = pl.when(is_sure).then("said_microbatch").alias("microbatch")
        text = (
            "actions cannot be told apart: no schedule fits their order, and counting would not be safe; only "
            "what the marks say themselves is named (--schedule and --microbatches say more)"
        )
        unnamed = actions.height - actions.select(said).to_series().count()
        return actions.with_columns(said, chunk="said_chunk"), [Diagnostic("warning", text, count=unnamed)]
    per_step = _per_step(declared, counts)
    nth = pl.int_range(pl.len(), dtype=pl.Int32).over("group", "sort")
    microbatch = pl.when(pl.col("marker") == FORWARD).then(pl.coalesce("said_microbatch", nth % per_step))
    step = pl.when(pl.col("may_repeat")).then(pl.col("step") + nth // per_step).otherwise("step")
    text = (
        "no schedule is declared for ranks whose place in the pipeline is known: actions are numbered by counting, "
        "which every rank's equal number of them allows"
    )
    named = actions.with_columns(
        microbatch=microbatch.otherwise(nth % per_step), step=step, chunk=pl.lit(0, pl.Int32)
    )
    return named, [Diagnostic("info", text, count=actions.height)]


def _contradicts(declared: PipelineInfo, counts: Counts) -> bool:
    """Tell whether another number of micro-batches is declared than every step has."""
    return counts.steps_are_told and declared.microbatches not in (None, counts.forwards)


def _agree(actions: pl.DataFrame) -> bool:
    """Tell whether every group has as many forwards as backwards, as many as any other, and nothing else."""
    counts = actions.group_by("group").agg(
        (pl.col("sort") == FORWARD).sum().alias("forwards"),
        (pl.col("sort") == BACKWARD).sum().alias("backwards"),
        pl.len(),
        chunks=pl.col("said_chunk").fill_null(0).max(),
    )
    equal = pl.col("forwards") == pl.col("backwards")
    whole = counts.select(
        (equal & (pl.col("len") == 2 * pl.col("forwards")) & (pl.col("chunks") == 0)).all()
    ).item()
    return bool(whole) and counts["forwards"].n_unique() == 1


def _has_one_chunk(actions: pl.DataFrame) -> bool:
    """Tell whether some rank holds one micro-batch at a time, or every rank all of a step."""
    is_forward = pl.col("sort") == FORWARD
    held = pl.when(is_forward).then(1).otherwise(-1).cum_sum().over("group")
    most = actions.select("group", held=held, forwards=is_forward.sum().over("group")).group_by("group").max()
    return bool(most["held"].min() == 1 or (most["held"] == most["forwards"]).all())


def _per_step(declared: PipelineInfo, counts: Counts) -> int:
    """Return the micro-batches of a step; more than one pass is only looked for where steps are not told apart."""
    for size in (declared.microbatches, counts.said):
        if size and not counts.steps_are_told and counts.forwards % size == 0:
            return size
    return max(counts.forwards, 1)
