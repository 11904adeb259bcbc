"""Incomplete steps: actions that a file lost would otherwise count as idle time of their rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.diagnostics import Diagnostic
from stagescope.model.large_tables import reduced, united_rows
from stagescope.vocabulary.kinds import EXCHANGING_KINDS
from stagescope.vocabulary.number_ranges import compact_ranges

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

FORWARD = "forward"

USUAL_FRACTION = 0.6
"""A rank that ran in more than this part of the steps of its pipeline, between its own first and last, runs in all.

One that runs in every other step from the first to the last, such as 0, 2 and 4, runs in three of five.
"""


def find_incomplete_steps(spans: pl.DataFrame, pipelines: pl.DataFrame) -> set[int]:
    """Return the steps in which a stage lacks micro-batches that other stages of its pipeline ran.

    Forwards are compared with forwards, and backwards of either form with each other, among the stages that ran any in
    that step. A stage without a single action is not judged here (see find_steps_without_ranks).
    """
    is_known = pl.all_horizontal(pl.col("step", "stage", "microbatch").is_not_null())
    is_compared = pl.col("kind").is_in(EXCHANGING_KINDS)
    actions = (
        spans.lazy().filter(is_known & is_compared).select("rank", "kind", "step", "stage", "microbatch")
    )
    counts = (
        actions.join(pipelines.lazy(), on="rank")
        .group_by("pipeline", "step", "stage", (pl.col("kind") == FORWARD).alias("is_forward"))
        .agg(pl.col("microbatch").n_unique().alias("action_count"))
        .group_by("pipeline", "step", "is_forward")
        .agg((pl.min("action_count") < pl.max("action_count")).alias("is_incomplete"))
    )
    return set(counts.filter("is_incomplete").collect()["step"])


def find_steps_without_ranks(bubbles: Iterable[pl.DataFrame]) -> set[int]:
    """Return the steps in which a rank has no action, although it usually runs with the others of its pipeline.

    `bubbles` are the rows of step_bubbles, some steps after the others. A rank that begins later than the others, or
    ends earlier, has lost nothing between its own steps, and one that is absent from many of them may have none to run.
    """
    has_gaps = _with_gaps(bubbles)
    if has_gaps.is_empty():  # as usual: the rest takes much longer for a large run
        return set()
    has_gap = pl.col("pipeline").is_in(has_gaps.implode())
    of_ranks = pl.concat([rows.select("step", "pipeline", "rank").filter(has_gap) for rows in bubbles])
    steps = of_ranks.select("step", "pipeline").unique()
    # Numbers of the steps of each pipeline without gaps: what no rank ran is not missing on any.
    steps = steps.with_columns(place=pl.col("step").rank("dense").over("pipeline").cast(pl.Int64))
    between = (
        of_ranks.join(steps, on=["step", "pipeline"])
        .group_by("pipeline", "rank")
        .agg(pl.len().alias("ran"), first=pl.min("place"), last=pl.max("place"))
        .with_columns(expected=pl.col("last") - pl.col("first") + 1)
        .filter((pl.col("ran") < pl.col("expected")) & (pl.col("ran") > USUAL_FRACTION * pl.col("expected")))
    )
    expected = between.join(steps, on="pipeline").filter(pl.col("place").is_between("first", "last"))
    return set(expected.join(of_ranks, on=["step", "pipeline", "rank"], how="anti")["step"])


def _with_gaps(bubbles: Iterable[pl.DataFrame]) -> pl.Series:
    """Return the pipelines of which not every rank ran in every step."""
    members = united_rows(bubbles, ["pipeline", "rank"])
    ranks = members.group_by("pipeline").agg(ranks=pl.len())
    of_parts = (rows.group_by("pipeline").agg(pl.len(), pl.n_unique("step")) for rows in bubbles)
    sizes = reduced(of_parts, lambda rows: rows.group_by("pipeline").agg(pl.sum("len", "step")))
    sizes = sizes.join(ranks, on="pipeline")
    found: pl.Series = sizes.filter(pl.col("len") < pl.col("step") * pl.col("ranks"))["pipeline"]
    return found


def incomplete_step_diagnostics(
    incomplete: Collection[int], lost: Collection[int] = (), *, left_out: bool
) -> list[Diagnostic]:
    """Return how incomplete steps were treated; empty if there are none.

    A warning is enough where a recording begins or ends within a step. In the steps that are `lost`, which
    find_steps_without_ranks returns, data are missing between others.
    """
    if not incomplete:
        return []
    steps = f"step{'s' if len(incomplete) > 1 else ''} {compact_ranges(sorted(incomplete))}"
    done = "listed and left out of the totals" if left_out else "missing actions count as idle time"
    message = f"actions of some stages are missing in {steps}: {done}"
    severity = "error" if set(lost).intersection(incomplete) else "warning"
    return [Diagnostic(severity, message, count=len(incomplete), code="steps.incomplete")]
