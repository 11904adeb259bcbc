"""The part of a report's JSON that explains its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from stagescope.analysis.idle.ledger import DENOMINATOR as WINDOW
from stagescope.analysis.unrecorded import losses_without_unrecorded, without_unrecorded
from stagescope.vocabulary.causes import CAUSE_COLUMNS

if TYPE_CHECKING:
    from stagescope.analysis.explanation import Explanation
    from stagescope.analysis.prediction.ideal import Ideal

MOST_OUTLIERS = 100
"""Outlier actions in the JSON; the table has all of them."""

PHASE_TIMES = ("duration_ns", "busy_ns", "idle_ns")


def explanation_json(explanation: Explanation, declared: str | None = None) -> dict[str, object]:
    """Return the keys that an explanation adds; docs/report.md lists them. `declared` is the declared schedule.

    Table rows are objects with the columns of the declared table as keys; times are integer nanoseconds.
    """
    stragglers = explanation.stragglers.table
    return {
        "schedule": _schedule(explanation.ideal, declared),
        "ledger": {
            "denominator": WINDOW,
            "steps": without_unrecorded(explanation.ledger.steps, explanation.unrecorded).to_dicts(),
            "idle": without_unrecorded(explanation.idle, explanation.unrecorded).to_dicts(),
        },
        "iterations": _iterations(explanation),
        "phases": _summed(explanation.phases, ["rank", "phase"], PHASE_TIMES),
        "stages": _stages(explanation),
        "overlap": _summed(explanation.overlap, ["rank"], _times(explanation.overlap)),
        "critical_path": _critical_path(explanation.critical_path),
        "stragglers": {
            "compared": stragglers.height,
            "claimed": stragglers.filter("is_claimed").to_dicts(),
        },
        "changing_ranks": explanation.stragglers.changing.to_dicts(),
        "trends": explanation.trends.trends.to_dicts(),
        "outlier_steps": explanation.trends.outliers.to_dicts(),
        "outlier_actions": {
            "pattern": explanation.outlier_pattern.text or None,
            "actions": explanation.outliers.head(MOST_OUTLIERS).to_dicts(),
        },
        "replicas": explanation.replicas.table.to_dicts(),
        "improvements": explanation.improvements.to_dicts(),
    }


def _iterations(explanation: Explanation) -> dict[str, object] | None:
    """Return the mean iteration and its parts, and the same per step; None if no iteration was recorded as a whole."""
    lost, iterations = explanation.lost_time, explanation.iterations
    if lost is None or lost.basis != "iteration":
        return None
    parts = ("iteration_ns", "busy_ns", *CAUSE_COLUMNS)
    by_step = iterations.group_by("step", maintain_order=True).agg(pl.col(parts).mean())
    by_step = without_unrecorded(by_step, lost.unrecorded)
    last = iterations.filter("is_last").select("step", last_pipeline="pipeline").unique("step")
    return {
        "denominator": lost.denominator,
        "iterations": lost.iterations,
        "steps_per_iteration": lost.steps_per_iteration,
        "fractions": {
            name: None if name in lost.unrecorded else lost.fraction(name) for name in CAUSE_COLUMNS
        },
        "last_pipeline": losses_without_unrecorded(explanation.losses, explanation.unrecorded).to_dicts(),
        "steps": by_step.join(last, on="step", maintain_order="left").to_dicts(),
    }


def _schedule(ideal: Ideal, declared: str | None) -> dict[str, object]:
    distances = ideal.ranks["distance_fraction"].drop_nulls()
    return {
        "declared": declared,
        "name": ideal.schedule,
        "source": ideal.source,
        "evidence": ideal.evidence,
        "ideal_step_ns": ideal.makespan_ns,
        "order_distance_fraction": distances.mean() if len(distances) else None,
    }


def _stages(explanation: Explanation) -> list[dict[str, Any]]:
    """Return one object per stage: its work per micro-batch, and the distribution of its actions by kind."""
    all_ranks = explanation.stage_costs.filter(pl.col("rank").is_null()).drop("rank")
    costs = {
        stage: [{name: value for name, value in row.items() if name != "stage"} for row in rows.to_dicts()]
        for (stage,), rows in all_ranks.group_by("stage")
    }
    return [{**row, "costs": costs.get(row["stage"], [])} for row in explanation.stage_work.to_dicts()]


def _critical_path(path: pl.DataFrame) -> dict[str, object]:
    """Return the length of the parts of all paths, and the path of the step with the median length."""
    duration_ns = pl.col("end_ns") - pl.col("start_ns")
    parts = path.group_by("part").agg(duration_ns.sum().alias("ns")).sort("part")
    lengths = (
        path.group_by("pipeline", "step").agg(duration_ns.sum().alias("ns")).sort("ns", "pipeline", "step")
    )
    if lengths.is_empty():
        return {"parts": {}, "step": None, "pipeline": None, "path": []}
    median = lengths.row((lengths.height - 1) // 2, named=True)
    chosen = (pl.col("pipeline") == median["pipeline"]) & (pl.col("step") == median["step"])
    return {
        "parts": {str(part): ns for part, ns in parts.iter_rows()},
        "pipeline": median["pipeline"],
        "step": median["step"],
        "path": path.filter(chosen).drop("pipeline", "step").to_dicts(),
    }


def _times(table: pl.DataFrame) -> tuple[str, ...]:
    return tuple(name for name in table.columns if name.endswith("_ns"))


def _summed(table: pl.DataFrame, keys: list[str], times: tuple[str, ...]) -> list[dict[str, Any]]:
    sums = [pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).alias(name) for name in times]
    return table.group_by(keys).agg(sums).sort(keys).to_dicts()
