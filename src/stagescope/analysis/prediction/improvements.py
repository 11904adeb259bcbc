"""Possible improvements: fixes of what is broken or slow, and redesigns, each with the predicted step time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.prediction.fixes import find_fixes
from stagescope.analysis.prediction.redesigns import find_redesigns
from stagescope.analysis.prediction.what_if import WHAT_IF
from stagescope.model.tables import Column, Table

if TYPE_CHECKING:
    from collections.abc import Collection

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.replay_basis import ReplayBasis

FIX, REDESIGN = KINDS = ("fix", "redesign")
KindOfChange = pl.Enum(list(KINDS))

LEAST_GAIN_FRACTION = 0.005
"""Gains below this fraction of the step are not listed."""

IMPROVEMENTS = Table(
    "improvements",
    "one change that would shorten the step by 0.5 % or more; fixes first, the largest gain of each kind first",
    (),
    (
        Column(
            "kind",
            KindOfChange,
            "",
            "`fix`: something broken or slow works like its peers; `redesign`: another schedule or layer layout.",
        ),
        *WHAT_IF.columns,
        Column("low_step_ns", pl.Float64, "ns", "Shortest step under the assumptions."),
        Column("high_step_ns", pl.Float64, "ns", "Longest step under the assumptions."),
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
            "Whether it holds more activations than the measured order, or every stage on two ranks.",
        ),
    ),
)

UNCHANGED = {
    "low_step_ns": pl.col("predicted_step_ns"),
    "high_step_ns": pl.col("predicted_step_ns"),
    "assumptions": pl.lit(""),
    "activations_to_measured": pl.lit(1.0),
    "needs_more_memory": pl.lit(value=False),
}
"""The columns that fixes and redesigns may omit."""


def find_improvements(
    actions: Actions,
    stragglers: pl.DataFrame,
    schedule: str | None,
    steps: Collection[int],
    basis: ReplayBasis | None = None,
) -> pl.DataFrame:
    """Return the table IMPROVEMENTS: what find_fixes and find_redesigns predict.

    `schedule` is the one that ran. `basis` is from find_replay_basis for these actions; None: it is computed here.
    """
    if not actions.table["step"].is_in(list(steps)).any():
        return IMPROVEMENTS.empty()
    fixes = find_fixes(actions, stragglers, steps, basis)
    redesigns = find_redesigns(actions, schedule, steps, basis)
    every = pl.concat([_complete(fixes, FIX), _complete(redesigns, REDESIGN)])
    worth = every.filter(pl.col("gain_fraction") >= LEAST_GAIN_FRACTION)
    return worth.sort("kind", "gain_ns", descending=[False, True], maintain_order=True)


def _complete(predicted: pl.DataFrame, kind: str) -> pl.DataFrame:
    """Return predictions with all columns of IMPROVEMENTS."""
    omitted = {name: value for name, value in UNCHANGED.items() if name not in predicted.columns}
    return predicted.with_columns(kind=pl.lit(kind), **omitted).select(
        pl.col(name).cast(dtype) for name, dtype in IMPROVEMENTS.schema.items()
    )
