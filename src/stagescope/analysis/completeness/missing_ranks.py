"""Ranks of a pipeline that were not recorded: what the others show about them.

A peer without a recording, or a gap in the numbers of the stages, is certain. A missing last stage leaves no gap. But a
last stage turns its forwards directly into backwards, while every other stage waits for the next one: only overlapping
schedules and those that run all forwards first have an order without that, and in them the last stage does not wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.kinds import TRANSFERS
from stagescope.vocabulary.number_ranges import compact_ranges

if TYPE_CHECKING:
    from collections.abc import Collection

    from stagescope.analysis.graph.actions import Actions

FORWARD = "forward"
BACKWARDS = ("backward", "backward_input")
LATE_LAST_STAGE = ("1f1b-overlap", "interleaved-overlap")
"""Schedules whose last stage never turns a forward directly into its backward."""

MAYBE_MISSING = "ranks.maybe_missing"

WAIT_FRACTION = 0.5
WAIT_FRACTION_AFTER_FORWARDS = 1.0
"""A stage that waits for the next one waits for at least a backward; half of it or more is no accident. After all
forwards it also waits for a forward, and a loss that was not recorded takes time as well.
"""


class MissingRanks(NamedTuple):
    """Ranks and stages that are missing for certain."""

    ranks: tuple[int, ...]
    stages: tuple[int, ...]

    def __bool__(self) -> bool:
        return bool(self.ranks or self.stages)

    def __str__(self) -> str:
        if self.ranks:
            return f"{_listed('rank', self.ranks)} missing"
        return f"{_listed('stage', self.stages)} missing" if self.stages else ""


def find_peers(spans: pl.DataFrame, pipelines: pl.DataFrame) -> frozenset[int]:
    """Return the ranks with which ranks of `pipelines` exchange messages: only these show what a pipeline exchanges."""
    of_pipeline = pl.col("kind").is_in(TRANSFERS) & pl.col("rank").is_in(pipelines["rank"].implode())
    return frozenset(spans.filter(of_pipeline)["peer"].drop_nulls().unique())


def find_missing_ranks(
    ranks: pl.DataFrame, pipelines: pl.DataFrame, peers: Collection[int], stages: pl.DataFrame
) -> MissingRanks:
    """Return the peers of recorded ranks that were not recorded, and gaps in the stages of a pipeline.

    `ranks` is the table RANKS, `pipelines` what find_pipelines returns, `peers` is from find_peers, and `stages` lists
    the stages of every rank (rank, stages). A rank that was recorded without an action is not missing.
    """
    recorded = {*pipelines["rank"], *ranks["rank"]}
    of_ranks = stages.explode("stages").drop_nulls("stages").join(pipelines, on="rank")
    held = of_ranks.group_by("pipeline").agg("stages")["stages"].to_list()
    gaps = {stage for each in held for stage in set(range(max(each))) - set(each)}
    return MissingRanks(tuple(sorted(set(peers) - recorded)), tuple(sorted(gaps)))


def missing_rank_diagnostics(missing: MissingRanks) -> list[Diagnostic]:
    """Return what is missing and how that shows; empty if nothing is."""
    found = []
    if missing.ranks:
        them = "it" if len(missing.ranks) == 1 else "them"
        message = f"{_listed('rank', missing.ranks)} missing: recorded ranks exchange messages with {them}"
        found.append(Diagnostic("error", message, count=len(missing.ranks), code="ranks.missing"))
    if missing.stages:
        them = "it" if len(missing.stages) == 1 else "them"
        message = f"{_listed('stage', missing.stages)} missing: no recorded rank runs {them}"
        found.append(Diagnostic("error", message, count=len(missing.stages), code="stages.missing"))
    return found


def _listed(noun: str, numbers: tuple[int, ...]) -> str:
    return f"{noun}{'s' if len(numbers) > 1 else ''} {compact_ranges(numbers)}"


def suspect_missing_last_stage(actions: Actions, schedule: str | None) -> Diagnostic | None:
    """Return a warning if the last recorded stage waits for a later one; None otherwise.

    `schedule` is the recognized one, None if unknown.
    """
    table = actions.table
    if table.is_empty() or actions.partners.height or schedule in LATE_LAST_STAGE:
        return None
    last = _last_stage(table)
    if last.filter("turns").height:
        return None
    first = _first_backwards(last)
    forwards_first = not last.filter(pl.col("is_forward") & (pl.col("start_ns") > pl.col("first_ns"))).height
    limit = WAIT_FRACTION_AFTER_FORWARDS if forwards_first else WAIT_FRACTION
    waits = first.height > 0 and float(first["waited"].median() or 0.0) >= limit  # type: ignore[arg-type]
    # An order without waiting is only suspicious where it is taken for a schedule that has no such last stage.
    if not waits and (forwards_first or schedule is None):
        return None
    message = (
        f"stage {last['stage'][0]} never runs a backward directly after its forward, as a last stage does: the last "
        "rank seems to be missing, so no schedule is named"
    )
    return Diagnostic("warning", message, code=MAYBE_MISSING)


def _last_stage(table: pl.DataFrame) -> pl.DataFrame:
    """Return the exchanging actions of the last stage of each pipeline, in their order.

    `turns` marks backwards directly after the forward of the same micro-batch, `first_ns` is the first backward.
    """
    exchanging = pl.col("kind").cast(pl.String).is_in([FORWARD, *BACKWARDS])
    # Actions are in the order of their ranks and steps: a shift within each is a shift of the table.
    has_before = pl.col("place") > 0
    before = {
        name: pl.when(has_before).then(pl.col(name).shift(1))
        for name in ("stage", "microbatch", "kind", "end_ns")
    }
    same = (before["stage"] == pl.col("stage")) & (before["microbatch"] == pl.col("microbatch"))
    is_forward = pl.col("kind").cast(pl.String) == FORWARD
    is_last = pl.col("stage") == pl.col("stage").max().over("pipeline")
    held = table.select("pipeline", "rank", "stage").unique().filter(is_last)
    # Ranks that hold the last stage are, of many stages, a small part of a large run.
    return (
        table.join(held.rename({"stage": "last"}), on=["pipeline", "rank"], maintain_order="left")
        .with_columns(
            turns=same & (before["kind"].cast(pl.String) == FORWARD) & ~is_forward,
            is_forward=is_forward,
            ended_ns=before["end_ns"],
        )
        .filter(exchanging & (pl.col("stage") == pl.col("last")))
        .with_columns(
            turns=pl.col("turns").fill_null(value=False),
            first_ns=pl.when(~pl.col("is_forward")).then("start_ns").min().over("pipeline", "step"),
        )
    )


def _first_backwards(last: pl.DataFrame) -> pl.DataFrame:
    """Return per pipeline and step how long the first backward waited, in its own durations (`waited`)."""
    lasted_ns = (pl.col("end_ns") - pl.col("start_ns")).clip(1)
    forwards = last.filter("is_forward").select("pipeline", "step", "microbatch", made_ns="end_ns")
    return (
        last.filter(~pl.col("is_forward") & (pl.col("start_ns") == pl.col("first_ns")))
        .join(forwards, on=["pipeline", "step", "microbatch"])
        .with_columns(ready_ns=pl.max_horizontal("ended_ns", "made_ns"))
        .select("pipeline", "step", waited=(pl.col("start_ns") - pl.col("ready_ns")) / lasted_ns)
    )
