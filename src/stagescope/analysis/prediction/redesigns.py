"""Redesigns: another division of the model among the stages, and the other schedules of the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.prediction.changes import EqualStages, OtherSchedule
from stagescope.analysis.prediction.schedule_ranges import predict_schedules
from stagescope.analysis.prediction.what_if import measure_replays, predict_steps
from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.replay_basis import ReplayBasis
    from stagescope.analysis.prediction.schedule_ranges import SchedulePrediction


class Redesigns(NamedTuple):
    """Columns of IMPROVEMENTS, and diagnostics about what was not tested."""

    table: pl.DataFrame
    diagnostics: tuple[Diagnostic, ...]


def find_redesigns(
    actions: Actions, schedule: str | None, steps: Collection[int], basis: ReplayBasis
) -> Redesigns:
    """Return columns of IMPROVEMENTS for equal stages and the other schedules that support these sizes.

    `schedule` is the one that ran, `basis` is from find_replay_basis. Costs of a change, such as the memory of another
    schedule, are not part of the gain.
    """
    measured = measure_replays(actions, basis, steps)
    equal = predict_steps(actions, [(EqualStages(),)], steps, basis).table
    predictions = predict_schedules(measured, schedule)
    step_ns = equal["measured_step_ns"][0]
    table = pl.concat([equal, _rows(predictions.found, step_ns)], how="diagonal_relaxed")
    diagnostics = tuple(
        Diagnostic(
            "info",
            f"schedules not tested: {', '.join(names)}; {reason}",
            count=len(names),
            code="schedules.untested",
        )
        for reason, names in predictions.untested.items()
    )
    return Redesigns(table, diagnostics)


def _rows(predictions: Iterable[SchedulePrediction], step_ns: float) -> pl.DataFrame:
    """Return a row per prediction; the predicted step is the middle of its range."""
    rows = []
    for each in predictions:
        middle_ns = (each.low_ns + each.high_ns) / 2
        rows.append({
            "change": str(OtherSchedule(each.name)),
            "measured_step_ns": step_ns,
            "predicted_step_ns": middle_ns,
            "gain_ns": step_ns - middle_ns,
            "gain_fraction": (step_ns - middle_ns) / step_ns if step_ns else None,
            "method": "simulation",
            "condition": "",
            "low_step_ns": each.low_ns,
            "high_step_ns": each.high_ns,
            "assumptions": each.assumptions,
            "activations_to_measured": each.memory.activations,
            "needs_more_memory": each.memory.is_more,
            "memory": each.memory.text,
        })  # fmt: skip
    return pl.DataFrame(rows)
