"""The pipeline that ends last in an iteration: which one it is, and what its time consists of.

All others wait for it, so only what it loses makes the iteration longer. The average over all ranks shows their waiting
instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.idle.shares import whole_percents
from stagescope.vocabulary.causes import BY_COLUMN, CAUSE_COLUMNS, OUTSIDE_CAUSES

if TYPE_CHECKING:
    from stagescope.analysis.explanation import Explanation

FEWEST_PIPELINES = 2
USUAL_FRACTION = 0.5
"""A pipeline is named as the last one if it was in at least this many of the iterations."""

MOST_PARTS = 4
OUTSIDE = tuple(cause.column for cause in OUTSIDE_CAUSES)


def last_pipelines_text(explanation: Explanation) -> str | None:
    """Return which pipeline the others waited for, or that it changes; None with a single pipeline."""
    iterations = explanation.iterations
    pipelines = iterations["pipeline"].n_unique()
    if pipelines < FEWEST_PIPELINES:
        return None
    counts = iterations.filter("is_last").group_by("pipeline").agg(times=pl.col("step").n_unique())
    usual = counts.sort("times", "pipeline", descending=[True, False]).row(0, named=True)
    steps = iterations["step"].n_unique()
    if usual["times"] >= USUAL_FRACTION * steps:
        return f"the pipeline of rank {usual['pipeline']} is last in {usual['times']} of {steps} iterations"
    return f"the last pipeline changes: {counts.height} of {pipelines} pipelines were last at least once"


def slowest_pipeline_sentence(explanation: Explanation) -> str:
    """Return what the iterations of the last pipeline consist of; empty with a single pipeline.

    In its ledger a straggler is the work that it has more than its replicas, and not the idle time of the others.
    """
    if explanation.iterations["pipeline"].n_unique() < FEWEST_PIPELINES:
        return ""
    parts = last_pipeline_parts(explanation)
    percents = zip(whole_percents(list(parts.values())), parts, strict=True)
    named = sorted(
        ((percent, name) for percent, name in percents if percent and name in BY_COLUMN), reverse=True
    )
    listed = ", ".join(f"{percent} % {BY_COLUMN[name].label}" for percent, name in named[:MOST_PARTS])
    ideal = round(100 * parts["ideal_work_ns"])
    return f"The last pipeline sets the iteration; its time is {ideal} % ideal work{', ' if listed else ''}{listed}."


def last_pipeline_parts(explanation: Explanation) -> dict[str, float]:
    """Return ideal_work_ns and each cause of the last pipelines, as fractions of their iterations; they sum to 1."""
    last = explanation.iterations.filter("is_last")
    of_ranks = last.group_by("step", "pipeline").agg(pl.col("iteration_ns", *OUTSIDE).mean())
    rows = of_ranks.join(explanation.ledger.steps, on=["step", "pipeline"])
    attributed = ("ideal_work_ns", *CAUSE_COLUMNS[:-1], *OUTSIDE)
    total = rows.select(pl.col("iteration_ns", *attributed).sum()).row(0, named=True)
    whole_ns = total["iteration_ns"] or 1.0
    parts = {name: total[name] / whole_ns for name in attributed}
    return {**parts, CAUSE_COLUMNS[-1]: 1 - sum(parts.values())}
