"""Possible improvements: fixes of what is broken or slow, and redesigns, each with the predicted step time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl
import polars.selectors as cs

from stagescope.analysis.graph.replay_basis import find_replay_basis
from stagescope.analysis.prediction.fixes import find_fixes
from stagescope.analysis.prediction.redesigns import find_redesigns
from stagescope.analysis.prediction.schedule_ranges import predict_schedules
from stagescope.analysis.prediction.tried_changes import INCOMPLETE, NOTHING_TRIED, TriedChanges
from stagescope.analysis.prediction.what_if import WHAT_IF, measure_replays
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.tables import Column, Table
from stagescope.schedules.catalog import NAMES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.replay_basis import ReplayBasis
    from stagescope.analysis.prediction.evidence import Evidence
    from stagescope.analysis.prediction.schedule_ranges import SchedulePredictions

FIX, REDESIGN = KINDS = ("fix", "redesign")
KindOfChange = pl.Enum(list(KINDS))

LEAST_GAIN_FRACTION = 0.005
"""Gains below this fraction of the iteration are not listed."""

LEAST_BOUND_FRACTION = 0.02
"""Bounds, which cannot be attained, are listed from this fraction: some communication is exposed in every run."""

IMPROVEMENTS = Table(
    "improvements",
    "one change that would shorten the iteration by 0.5 % (a bound: by 2 %) or more; fixes first, then redesigns, the "
    "best of each first",
    (),
    (
        Column(
            "kind",
            KindOfChange,
            "",
            "`fix`: something broken, slow or unbalanced works like its peers; `redesign`: another schedule or layout.",
        ),
        WHAT_IF.columns[0],
        Column(
            "measured_step_ns",
            pl.Float64,
            "ns",
            "Mean iteration; if nothing but windows was recorded, mean over the steps of the longest window.",
        ),
        *WHAT_IF.columns[2:],
        Column("low_step_ns", pl.Float64, "ns", "Shortest step under the assumptions."),
        Column("high_step_ns", pl.Float64, "ns", "Longest; measured_step_ns: predicted_step_ns is a bound."),
        Column("assumptions", pl.String, "", "What the range covers; empty: the prediction has no range."),
        Column(
            "activations_to_measured",
            pl.Float64,
            "",
            "Peak activations of the fullest rank, relative to the measured order.",
        ),
        Column(
            "needs_more_memory",
            pl.Boolean,
            "",
            "Whether any rank holds more activations than in the measured order, or more parameters.",
        ),
        Column("memory", pl.String, "", "Which ranks need more memory, and how much; empty: none."),
    ),
)

UNCHANGED = {
    "low_step_ns": pl.col("predicted_step_ns"),
    "high_step_ns": pl.col("predicted_step_ns"),
    "assumptions": pl.lit(""),
    "activations_to_measured": pl.lit(1.0),
    "needs_more_memory": pl.lit(value=False),
    "memory": pl.lit(""),
}
"""The values of columns that fixes and redesigns may omit or leave null."""


class Improvements(NamedTuple):
    """The table IMPROVEMENTS, diagnostics about what was not tested, and what was."""

    table: pl.DataFrame
    diagnostics: tuple[Diagnostic, ...]
    tested: TriedChanges = NOTHING_TRIED


def find_improvements(
    actions: Actions,
    evidence: Evidence,
    schedule: str | None,
    steps: Collection[int],
    basis: ReplayBasis | None = None,
) -> Improvements:
    """Return the improvements: what find_fixes and find_redesigns predict.

    `schedule` is the one that ran. `basis` is from find_replay_basis for these actions; None: it is computed here.
    Empty if timestamps contradict the order of the actions.
    """
    if actions.is_contradictory or not actions.table["step"].is_in(list(steps)).any():
        return Improvements(IMPROVEMENTS.empty(), ())
    basis = basis or find_replay_basis(actions)
    measured = measure_replays(actions, basis, steps)
    fixes = find_fixes(measured, evidence)
    every = _complete(fixes, FIX)
    untested: tuple[Diagnostic, ...] = ()
    tested = TriedChanges(untested={INCOMPLETE: [name for name in NAMES if name != schedule]})
    # What other schedules would gain for a part of a pipeline does not hold for the whole.
    if not evidence.is_incomplete:
        redesigns = find_redesigns(measured, schedule, evidence)
        untested, tested = redesigns.diagnostics, redesigns.tested
        if not redesigns.table.is_empty():
            best_first = redesigns.table.sort(
                "gain_ns", descending=True, nulls_last=True, maintain_order=True
            )
            of_iterations = _of_iterations(best_first, evidence.iterations.mean_ns)
            every = pl.concat([every, _complete(of_iterations, REDESIGN)])
    possible = every.filter(pl.min_horizontal("predicted_step_ns", "low_step_ns") > 0)
    omitted = _impossible(every.height - possible.height)
    is_bound = pl.col("high_step_ns") >= pl.col("measured_step_ns")
    least = pl.when(is_bound).then(LEAST_BOUND_FRACTION).otherwise(LEAST_GAIN_FRACTION)
    return Improvements(
        possible.filter(pl.col("gain_fraction") >= least),
        (*untested, *omitted),
        tested._replace(fixes=fixes.height),
    )


def predict_other_schedules(
    actions: Actions, basis: ReplayBasis, schedule: str | None, steps: Collection[int]
) -> SchedulePredictions | None:
    """Return what other schedules would take, which depends on actions alone; None if there are none to start from.

    The arguments are those of find_improvements.
    """
    if actions.is_contradictory or not actions.table["step"].is_in(list(steps)).any():
        return None
    return predict_schedules(measure_replays(actions, basis, steps), schedule)


def _impossible(count: int) -> Iterator[Diagnostic]:
    """Yield a warning about predictions of no time at all: a cause cannot cost more than the step."""
    if count:
        text = "predictions of a step time of zero or less were omitted: timestamps contradict the order of the actions"
        yield Diagnostic("warning", text, count=count, code="predictions.impossible")


def _of_iterations(predicted: pl.DataFrame, iteration_ns: float | None) -> pl.DataFrame:
    """Return predictions for windows as predictions for iterations: what is outside stays as measured."""
    if iteration_ns is None or predicted.is_empty():
        return predicted
    outside_ns = iteration_ns - predicted["measured_step_ns"][0]
    return predicted.with_columns(
        cs.ends_with("_step_ns") + outside_ns, gain_fraction=pl.col("gain_ns") / iteration_ns
    )


def _complete(predicted: pl.DataFrame, kind: str) -> pl.DataFrame:
    """Return predictions with all columns of IMPROVEMENTS."""
    values = {
        name: pl.col(name).fill_null(value) if name in predicted.columns else value
        for name, value in UNCHANGED.items()
    }
    return predicted.with_columns(kind=pl.lit(kind), **values).select(
        pl.col(name).cast(dtype) for name, dtype in IMPROVEMENTS.schema.items()
    )
