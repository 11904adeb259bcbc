"""Apply the schedule that the caller stated to ranks whose files state none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.diagnostics import Diagnostic
from stagescope.schedules.spellings import is_spelling, known_schedule

if TYPE_CHECKING:
    from stagescope.model import Timeline


def with_schedule(timeline: Timeline, spelled: str | None) -> Timeline:
    """Return the timeline with `spelled` as the schedule of ranks whose files state none.

    An unknown schedule name leaves the timeline unchanged and adds a warning.
    """
    name = known_schedule(spelled)
    if name is None:
        if is_spelling(spelled):
            return timeline
        text = f"unknown schedule {spelled!r}: ignored"
        return timeline.with_diagnostics([Diagnostic("warning", text, code="schedule.unknown")])
    stated = pl.col("schedule").fill_null(pl.lit(name, pl.String))
    return replace(timeline, ranks=timeline.ranks.with_columns(stated))
