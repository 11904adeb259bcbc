"""What analysis adds to a picture or a page: idle intervals, the critical path, the ideal schedule."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl


@dataclass(frozen=True)
class AnalysisLayers:
    """Results of the analysis for a picture or a page, each optional.

    `idle` has rank, step, start_ns, end_ns, waiting_for, waits_for (row of the spans table, null) and text; for the
    page, also cause and culprit (a row, null).
    `critical_path` has row (of the spans table), in order of time; `slack` has row and slack_ns of every action.
    `ideal` is a spans table: the schedule without transfers, stragglers and stage imbalance, on the run's clock.
    `bubbles` is what `step_bubbles` returns for the measured pipelines, `steps` has step, window_ns, bubble_fraction,
    in_totals and excess_ns (null, or how much longer than usual an outlier is). `objects` are JSON by name: verdict,
    ledger, comparison, understood.
    """

    idle: pl.DataFrame | None = None
    critical_path: pl.DataFrame | None = None
    slack: pl.DataFrame | None = None
    bubbles: pl.DataFrame | None = None
    steps: pl.DataFrame | None = None
    ideal: pl.DataFrame | None = None
    objects: Mapping[str, Any] = field(default_factory=dict)
