"""The steps of a training that marks its actions, but not its steps.

A step ends with the step of the optimizer, or where a rank runs an action again: within one step, each action runs
once. An evaluation between two steps is therefore a step of its own. Where steps overlap, so that an action of the
next one runs before the last of this one, the n-th time that an action runs is in the n-th step.
"""

from __future__ import annotations

from typing import NamedTuple

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
    evidence = step_evidence(spans)
    if not evidence.has_backward:
        return spans, []
    way = Way(by_optimizer=len(set(evidence.optimizer_steps)) <= 1)
    if is_out_of_order(spans, way):
        way = way._replace(by_occurrence=True)
    known, begun = with_steps(spans, way)
    counted_again = with_shifted_microbatches(known, first_microbatches(known))
    return counted_again.select(spans.columns), [note_of_steps(begun["step"].n_unique())]


class StepEvidence(NamedTuple):
    """What the marked actions of some ranks show: whether one is a backward, and how often optimizers stepped.

    `optimizer_steps` has a number for each rank with marked actions.
    """

    has_backward: bool
    optimizer_steps: tuple[int, ...]


class Way(NamedTuple):
    """How steps are found, the same for all ranks: whether the optimizer ends them, or the n-th run of an action."""

    by_optimizer: bool
    by_occurrence: bool = False


def step_evidence(spans: pl.DataFrame) -> StepEvidence:
    """Return what the marked actions of some ranks, or of all, show about steps."""
    marked = _marked(spans)
    counts = _optimizer_steps(spans).group_by("rank").len()
    of_ranks = marked.select("rank").unique().join(counts, on="rank", how="left")["len"].fill_null(0)
    return StepEvidence(bool(marked["kind"].is_in(BACKWARDS).any()), tuple(of_ranks.to_list()))


def is_out_of_order(spans: pl.DataFrame, way: Way) -> bool:
    """Return whether a backward of one of these ranks would come before its forward in a step, or without it."""
    return _is_out_of_order(_numbered(spans, way))


def with_steps(spans: pl.DataFrame, way: Way) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the spans of some ranks with steps, and when these began: rank, step, start_ns, sorted by start_ns."""
    numbered = _numbered(spans, way)
    own = numbered.with_columns(pl.col("step").cast(pl.Int32)).unique(["rank", "start_ns", *KEY])
    known = spans.drop("step").join(own, on=["rank", "start_ns", *KEY], how="left", maintain_order="left")
    begun = numbered.group_by("rank", "step").agg(pl.min("start_ns")).sort("start_ns")
    latest = known.select("rank", "start_ns").with_row_index().sort("start_ns").join_asof(
        begun.rename({"step": "latest"}), on="start_ns", by="rank", check_sortedness=False
    ).sort("index")["latest"]  # fmt: skip
    step = pl.coalesce("step", _steps_of_transfers(known), latest.cast(pl.Int32))
    return known.with_columns(step=step), begun


def first_microbatches(spans: pl.DataFrame) -> pl.DataFrame:
    """Return step and first of spans with steps: the lowest micro-batch of each step."""
    return spans.filter(pl.col("kind").is_in(ACTION_KINDS)).group_by("step").agg(first=pl.min("microbatch"))


def are_numbered_through(firsts: pl.DataFrame) -> bool:
    """Return whether micro-batches are numbered through the whole run, by `first_microbatches` of all ranks."""
    return firsts.height > 1 and bool((firsts.sort("step")["first"].diff().drop_nulls() > 0).all())


def with_shifted_microbatches(spans: pl.DataFrame, firsts: pl.DataFrame) -> pl.DataFrame:
    """Return spans whose micro-batches count from 0 in every step, if they are numbered through the whole run."""
    if not are_numbered_through(firsts):
        return spans
    shifts = spans.join(firsts, on="step", how="left", maintain_order="left")["first"].fill_null(0)
    return spans.with_columns((pl.col("microbatch") - shifts).cast(pl.Int32))


def note_of_steps(steps: int) -> Diagnostic:
    """Return the diagnostic that states how many steps were found."""
    text = f"the training marks no steps: {counted(steps, 'step')} by the optimizer and by repeated actions"
    return Diagnostic("info", text, count=steps, code="steps.divided")


def _marked(spans: pl.DataFrame) -> pl.DataFrame:
    """Return rank, start_ns and KEY of the marked actions, sorted."""
    placed = pl.all_horizontal(pl.col("stage", "microbatch").is_not_null())
    marked = spans.filter(pl.col("kind").is_in(ACTION_KINDS) & (pl.col("lane") == COMPUTE) & placed)
    return marked.select("rank", "start_ns", *KEY).sort("rank", "start_ns")


def _numbered(spans: pl.DataFrame, way: Way) -> pl.DataFrame:
    """Return the marked actions with their steps."""
    actions = _marked(spans)
    if way.by_occurrence:
        return actions.with_columns(step=_occurrence("rank"))
    return actions.with_columns(step=_by_repetition(actions, spans, way))


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


def _by_repetition(actions: pl.DataFrame, spans: pl.DataFrame, way: Way) -> pl.Series:
    """Return the step of each action: it changes with the optimizer, and where an action is repeated."""
    epochs = _optimizer_steps_before(actions, spans) if way.by_optimizer else pl.lit(0, pl.Int64)
    epoch = actions.with_columns(epoch=epochs)
    part = epoch.with_columns(part=_occurrence("rank", "epoch").cum_max().over("rank", "epoch"))
    is_new = (pl.col("epoch").diff() != 0) | (pl.col("part").diff() != 0)
    return part.select(is_new.fill_null(value=False).cum_sum().over("rank").alias("step"))["step"]


def _optimizer_steps_before(actions: pl.DataFrame, spans: pl.DataFrame) -> pl.Series:
    """Return how often the optimizer had stepped before each action."""
    optimizer = _optimizer_steps(spans)
    counted = optimizer.with_columns(epoch=pl.int_range(1, pl.len() + 1).over("rank")).sort("start_ns")
    found = actions.select("rank", "start_ns").with_row_index().sort("start_ns").join_asof(
        counted, on="start_ns", by="rank", check_sortedness=False
    )  # fmt: skip
    return found.sort("index")["epoch"].fill_null(0)


def _optimizer_steps(spans: pl.DataFrame) -> pl.DataFrame:
    return spans.filter(pl.col("kind") == "optimizer").select("rank", "start_ns").sort("rank", "start_ns")


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
