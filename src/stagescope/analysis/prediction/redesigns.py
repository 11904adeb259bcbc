"""Redesigns: another division of the model among the stages, and the other schedules of the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.prediction.changes import OtherSchedule
from stagescope.analysis.prediction.layer_layout import layers_per_stage, predict_layout
from stagescope.analysis.prediction.schedule_ranges import predict_schedules
from stagescope.analysis.prediction.tried_changes import UNSUPPORTED, TriedChanges
from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.analysis.prediction.evidence import Evidence
    from stagescope.analysis.prediction.layer_layout import LayoutPrediction, Unusual
    from stagescope.analysis.prediction.schedule_ranges import SchedulePrediction
    from stagescope.analysis.prediction.what_if import Measured


SLOWER = 1.05
"""An action whose kind takes so many times as long as on its replicas in that step shows nothing about its stage."""


class Redesigns(NamedTuple):
    """Columns of IMPROVEMENTS, diagnostics about what was not tested, and what was."""

    table: pl.DataFrame
    diagnostics: tuple[Diagnostic, ...]
    tested: TriedChanges


def find_redesigns(measured: Measured, schedule: str | None, evidence: Evidence) -> Redesigns:
    """Return columns of IMPROVEMENTS for another layout of the layers and for the other schedules of the catalog.

    `schedule` is the one that ran. Costs of a change, such as the memory of another schedule, are not part of the gain.
    """
    step_ns = measured.step_ns(measured.groups.window_ns(measured.actions.table))
    predictions = evidence.predictions or predict_schedules(measured, schedule)
    layout = predict_layout(measured, evidence.layers, _unusual(measured, evidence))
    rows = [_row(step_ns, each) for each in predictions.found]
    if layout is not None:
        changed = {"change": layout.change, "method": "replay", "note": layout.note}
        rows.insert(0, {**_times(step_ns, layout), **changed})
    table = pl.DataFrame(rows, schema_overrides={"note": pl.String, "memory": pl.String})
    diagnostics = tuple(
        Diagnostic(
            "info",
            f"schedules not tested: {', '.join(names)}; {reason}",
            count=len(names),
            code="schedules.untested",
        )
        for reason, names in predictions.untested.items()
    )
    tested = TriedChanges(
        schedules=[each.name for each in predictions.found],
        has_layout=layout is not None,
        untested={**predictions.untested, UNSUPPORTED: predictions.unsupported},
        reduced=predictions.reduced,
    )
    of_layers = _layer_diagnostics(evidence.layers, measured.mean_costs.stages)
    return Redesigns(table, (*diagnostics, *of_layers), tested)


def _unusual(measured: Measured, evidence: Evidence) -> Unusual:
    """Return what shows nothing about layers, also where there are too few steps to claim that a rank is slow."""
    classes = evidence.ledger.classes
    slower = classes.costs_ns("balanced_ns") > SLOWER * classes.costs_ns("peer_ns")
    rows = measured.actions.table["row"].filter(pl.Series(slower)).to_list()
    return evidence.unusual._replace(rows=(*evidence.unusual.rows, *rows))


def _layer_diagnostics(layers: Sequence[int], stages: int) -> list[Diagnostic]:
    if not layers or layers_per_stage(layers, stages) is not None:
        return []
    message = (
        f"the layers ({', '.join(map(str, layers))}) do not fit {stages} stages; give one number per stage"
    )
    return [Diagnostic("warning", message, code="layers.mismatch")]


def _times(step_ns: float, prediction: SchedulePrediction | LayoutPrediction) -> dict[str, object]:
    """Return the columns with times and assumptions; the predicted step is the middle of its range."""
    middle_ns = (prediction.low_ns + prediction.high_ns) / 2
    return {
        "measured_step_ns": step_ns,
        "predicted_step_ns": middle_ns,
        "gain_ns": step_ns - middle_ns,
        "gain_fraction": (step_ns - middle_ns) / step_ns if step_ns else None,
        "condition": "",
        "low_step_ns": prediction.low_ns,
        "high_step_ns": prediction.high_ns,
        "assumptions": prediction.assumptions,
    }


def _row(step_ns: float, prediction: SchedulePrediction) -> dict[str, object]:
    return {
        **_times(step_ns, prediction),
        "change": str(OtherSchedule(prediction.name)),
        "method": "simulation",
        "note": None,
        "activations_to_measured": prediction.memory.activations,
        "needs_more_memory": prediction.memory.is_more,
        "memory": prediction.memory.text,
    }
