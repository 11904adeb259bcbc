"""Incomplete steps: actions that a file lost would otherwise count as idle time of their rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.kinds import EXCHANGING_KINDS
from stagescope.vocabulary.number_ranges import compact_ranges

if TYPE_CHECKING:
    from collections.abc import Collection

FORWARD = "forward"


def find_incomplete_steps(spans: pl.DataFrame, pipelines: pl.DataFrame) -> set[int]:
    """Return the steps in which a stage lacks micro-batches that other stages of its pipeline ran.

    Forwards are compared with forwards, and backwards of either form with each other, among the stages that ran any in
    that step. A stage without a single action is not judged here (completeness/missing_data.py).
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


def incomplete_step_diagnostics(incomplete: Collection[int], *, left_out: bool) -> list[Diagnostic]:
    """Return how incomplete steps were treated; empty if there are none."""
    if not incomplete:
        return []
    steps = f"step{'s' if len(incomplete) > 1 else ''} {compact_ranges(sorted(incomplete))}"
    done = "listed and left out of the totals" if left_out else "missing actions count as idle time"
    message = f"actions of some stages are missing in {steps}: {done}"
    return [Diagnostic("warning", message, count=len(incomplete), code="steps.incomplete")]
