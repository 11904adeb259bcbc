"""What analysis adds to a picture or a page: idle intervals, the critical path, the ideal schedule."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl


@dataclass(frozen=True)
class AnalysisLayers:
    """What analysis gives to the viewer, each part optional.

    `idle` has rank, step, start_ns, end_ns, cause, waits_for (row of the spans table, null) and text; `critical_path`
    row (of the spans table) and slack_ns, in order of time; `ideal` is a spans table, the schedule as it would run
    without the run's troubles, on the run's clock. `objects` are JSON by name: verdict, ledger, comparison.
    """

    idle: pl.DataFrame | None = None
    critical_path: pl.DataFrame | None = None
    ideal: pl.DataFrame | None = None
    objects: Mapping[str, Any] = field(default_factory=dict)
