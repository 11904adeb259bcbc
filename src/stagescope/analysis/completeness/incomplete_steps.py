"""Steps that were not recorded whole: what a file lost would otherwise count as idle time of its rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.kinds import FED_JOBS
from stagescope.vocabulary.number_ranges import compact_ranges

if TYPE_CHECKING:
    from collections.abc import Collection

FORWARD = "forward"


def find_torn_steps(spans: pl.DataFrame, pipelines: pl.DataFrame) -> set[int]:
    """Return the steps in which a stage lacks micro-batches that other stages of its pipeline ran.

    Forwards are compared with forwards, backwards of either form with each other, among the stages that ran any in
    that step. A stage without a single one is not judged here (analysis/completeness/missing_data.py).
    """
    is_known = pl.all_horizontal(pl.col("step", "stage", "microbatch").is_not_null())
    is_compared = pl.col("kind").is_in(FED_JOBS)
    jobs = spans.lazy().filter(is_known & is_compared).select("rank", "kind", "step", "stage", "microbatch")
    counts = (
        jobs.join(pipelines.lazy(), on="rank")
        .group_by("pipeline", "step", "stage", (pl.col("kind") == FORWARD).alias("is_forward"))
        .agg(pl.col("microbatch").n_unique().alias("jobs"))
        .group_by("pipeline", "step", "is_forward")
        .agg((pl.min("jobs") < pl.max("jobs")).alias("is_torn"))
    )
    return set(counts.filter("is_torn").collect()["step"])


def torn_diagnostics(torn: Collection[int], *, left_out: bool) -> list[Diagnostic]:
    """Return what became of steps that were not recorded whole; empty where there are none."""
    if not torn:
        return []
    steps = f"step{'s' if len(torn) > 1 else ''} {compact_ranges(sorted(torn))}"
    done = "listed and left out of the totals" if left_out else "what is missing counts as idle time"
    return [Diagnostic("warning", f"jobs of some stages are missing in {steps}: {done}", count=len(torn))]
