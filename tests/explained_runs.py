"""Runs with a known explanation: by default 1F1B on 4 ranks with 8 micro-batches, three steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from delayed_runs import run
from stagescope.analysis import build_explained_report
from stagescope.schedules import order

if TYPE_CHECKING:
    from stagescope.analysis import Report
    from stagescope.model import Timeline

DURATION_NS = {"F": 10_000_000, "B": 20_000_000, "I": 10_000_000, "W": 10_000_000}


def schedule_run(
    name: str = "1f1b", *, ranks: int = 4, microbatches: int = 8, slower=None, **options
) -> Timeline:
    """Return the run of a schedule; `slower` has a factor per stage for the durations of its actions."""
    words = {
        rank: [str(action) for action in row]
        for rank, row in order(name, ranks=ranks, microbatches=microbatches).items()
    }

    def action_ns(part, _rank):
        return round(DURATION_NS[part.kind] * (slower or {}).get(part.stage, 1))

    return run(words, action_ns, **({"steps": 3} | options))


def explained(**options) -> Report:
    return build_explained_report(schedule_run(**options))


def with_wrong_clock(timeline, rank=1, shift_ns=-5000 * 10**9):
    """Return a timeline in which the timestamps of one rank contradict the dependencies of the actions."""
    shifted = [
        (pl.col(name) + pl.when(pl.col("rank") == rank).then(shift_ns).otherwise(0)).alias(name)
        for name in ("start_ns", "end_ns", "wait_start_ns", "wait_end_ns")
    ]
    return timeline.with_spans(timeline.spans.with_columns(shifted))
