"""The steps of a training that marks its actions, but not its steps.

A step ends with the step of the optimizer, or where a rank runs an action again: within one step, each action runs
once. An evaluation between two steps is therefore a step of its own. Where steps overlap, so that an action of the
next one runs before the last of this one, the n-th time that an action runs is in the n-th step.
"""

from __future__ import annotations

import polars as pl

from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.kinds import (
    ACTION_KINDS,
    BACKWARDS,
    COMPUTE,
    EXCHANGING_KINDS,
    RECEIVES,
    SENDS,
)

KEY = ("kind", "stage", "microbatch")


def divide_into_steps(spans: pl.DataFrame) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return the spans with steps, if nothing states any.

    Micro-batches that are numbered through the whole run count from 0 in every step.

    A marked transfer belongs to the step of its action, any other span to the step whose first action began before it.
    A run without a backward is not a training: its steps stay unknown. A diagnostic counts the steps.
    """
    if spans["step"].null_count() < spans.height:
        return spans, []
    placed = pl.all_horizontal(pl.col("stage", "microbatch").is_not_null())
    marked = spans.filter(pl.col("kind").is_in(ACTION_KINDS) & (pl.col("lane") == COMPUTE) & placed)
    if not marked["kind"].is_in(BACKWARDS).any():
        return spans, []
    actions = marked.select("rank", "start_ns", *KEY).sort("rank", "start_ns")
    numbered = actions.with_columns(step=_by_repetition(actions, spans))
    if _is_out_of_order(numbered):
        numbered = actions.with_columns(step=_occurrence("rank"))
    own = numbered.with_columns(pl.col("step").cast(pl.Int32)).unique(["rank", "start_ns", *KEY])
    known = spans.drop("step").join(own, on=["rank", "start_ns", *KEY], how="left", maintain_order="left")
    begun = numbered.group_by("rank", "step").agg(pl.min("start_ns")).sort("start_ns")
    latest = known.select("rank", "start_ns").with_row_index().sort("start_ns").join_asof(
        begun.rename({"step": "latest"}), on="start_ns", by="rank", check_sortedness=False
    ).sort("index")["latest"]  # fmt: skip
    known = known.with_columns(step=pl.coalesce("step", _steps_of_transfers(known), latest.cast(pl.Int32)))
    firsts = known.filter(pl.col("kind").is_in(ACTION_KINDS)).group_by("step").agg(first=pl.min("microbatch"))
    if firsts.height > 1 and (firsts.sort("step")["first"].diff().drop_nulls() > 0).all():
        shifts = known.join(firsts, on="step", how="left", maintain_order="left")["first"].fill_null(0)
        known = known.with_columns((pl.col("microbatch") - shifts).cast(pl.Int32))
    steps = numbered["step"].n_unique()
    text = f"the training marks no steps: {counted(steps, 'step')} by the optimizer and by repeated actions"
    note = Diagnostic("info", text, count=steps, code="steps.divided")
    return known.select(spans.columns), [note]


def _steps_of_transfers(spans: pl.DataFrame) -> pl.Series:
    """Return the step of each marked transfer: that of the last action before a send, of the next one after a receive.

    The first receive of a step comes before the first action of that step.
    """
    rows = spans.with_row_index("row").with_columns(
        forward=pl.col("kind").is_in(["forward", SENDS[0], RECEIVES[0]]),
    )
    keys = ("rank", "stage", "microbatch", "forward")
    actions = rows.filter(pl.col("kind").is_in(EXCHANGING_KINDS)).drop_nulls(["step", "stage", "microbatch"])
    sends = (
        rows.filter(pl.col("kind").is_in(SENDS))
        .select("row", "start_ns", *keys)
        .sort("start_ns")
        .join_asof(
            actions.select("start_ns", *keys, found="step").sort("start_ns"),
            on="start_ns", by=keys, check_sortedness=False,
        )
    )  # fmt: skip
    receives = (
        rows.filter(pl.col("kind").is_in(RECEIVES))
        .select("row", "start_ns", *keys)
        .sort("start_ns")
        .join_asof(
            actions.select("end_ns", *keys, found="step").sort("end_ns"),
            left_on="start_ns", right_on="end_ns", by=keys, strategy="forward", check_sortedness=False,
        )
    )  # fmt: skip
    found = pl.concat(side.select("row", "found") for side in (sends, receives))
    return rows.select("row").join(found, on="row", how="left", maintain_order="left")["found"]


def _by_repetition(actions: pl.DataFrame, spans: pl.DataFrame) -> pl.Series:
    """Return the step of each action: it changes with the optimizer, and where an action is repeated."""
    epoch = actions.with_columns(epoch=_optimizer_steps_before(actions, spans))
    part = epoch.with_columns(part=_occurrence("rank", "epoch").cum_max().over("rank", "epoch"))
    is_new = (pl.col("epoch").diff() != 0) | (pl.col("part").diff() != 0)
    return part.select(is_new.fill_null(value=False).cum_sum().over("rank").alias("step"))["step"]


def _optimizer_steps_before(actions: pl.DataFrame, spans: pl.DataFrame) -> pl.Series:
    """Return how often the optimizer had stepped before each action; 0 unless all ranks stepped equally often."""
    optimizer = (
        spans.filter(pl.col("kind") == "optimizer").select("rank", "start_ns").sort("rank", "start_ns")
    )
    counts = optimizer.group_by("rank").len()
    of_ranks = actions.select("rank").unique().join(counts, on="rank", how="left")["len"].fill_null(0)
    if of_ranks.n_unique() > 1:
        return pl.repeat(0, actions.height, dtype=pl.Int64, eager=True)
    counted = optimizer.with_columns(epoch=pl.int_range(1, pl.len() + 1).over("rank")).sort("start_ns")
    found = actions.select("rank", "start_ns").with_row_index().sort("start_ns").join_asof(
        counted, on="start_ns", by="rank", check_sortedness=False
    )  # fmt: skip
    return found.sort("index")["epoch"].fill_null(0)


def _occurrence(*among: str) -> pl.Expr:
    """Return how many equal actions precede each one."""
    return pl.int_range(pl.len()).over(*among, *KEY)


def _is_out_of_order(actions: pl.DataFrame) -> bool:
    """Return whether a backward would be in an earlier place of its step than its forward, or without it."""
    is_forward = pl.col("kind") == "forward"
    starts = actions.group_by("rank", "step", "stage", "microbatch").agg(
        forward_ns=pl.col("start_ns").filter(is_forward).min(),
        backward_ns=pl.col("start_ns").filter(~is_forward).min(),
    )
    has_forward = pl.col("forward_ns").is_not_null().any().over("rank", "stage")
    is_early = pl.col("backward_ns") < pl.col("forward_ns")
    is_alone = pl.col("backward_ns").is_not_null() & pl.col("forward_ns").is_null() & has_forward
    return bool(starts.select((is_early.fill_null(value=False) | is_alone).any()).item())
