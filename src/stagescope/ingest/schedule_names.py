"""The schedule that the caller says was run, on the ranks of which no file says it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.diagnostics import Diagnostic
from stagescope.schedules.spellings import is_spelling, known_schedule

if TYPE_CHECKING:
    from stagescope.model import Timeline


def with_schedule(timeline: Timeline, spelled: str | None) -> Timeline:
    """Return the timeline with the schedule that the caller says, on ranks whose files state none.

    A spelling that nobody knows changes nothing, and a warning says so.
    """
    name = known_schedule(spelled)
    if name is None:
        text = f"no schedule {spelled!r} is known here: nothing is made of it"
        return timeline if is_spelling(spelled) else timeline.with_diagnostics([Diagnostic("warning", text)])
    stated = pl.col("schedule").fill_null(pl.lit(name, pl.String))
    return replace(timeline, ranks=timeline.ranks.with_columns(stated))
