"""What was understood of a trace whose actions were mapped or inferred, as a table before any conclusion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.vocabulary.kinds import ACTION_KINDS
from stagescope.vocabulary.number_ranges import compact_ranges
from stagescope.vocabulary.printable import printable

if TYPE_CHECKING:
    from stagescope.model import Timeline

MAPPED = "trace.mapped"
INTERPRETED = (MAPPED, "actions.assumed_names", "actions.inferred")
"""Codes of diagnostics by which the actions of a run are an interpretation of a trace."""

LONGEST = 60
UNKNOWN = "unknown"


def understood_lines(timeline: Timeline) -> list[str]:
    """Return ranks, stages, micro-batches, steps and actions per step, and what share of the slices is used.

    Empty for a run whose recording states its actions.
    """
    codes = timeline.diagnostics["code"]
    if not codes.is_in(INTERPRETED).any():
        return []
    actions = timeline.spans.filter(pl.col("kind").is_in(ACTION_KINDS))
    rows = {
        "ranks": _numbers(actions["rank"]),
        "stages": _numbers(actions["stage"]),
        "micro-batches": _numbers(actions["microbatch"]),
        "steps": _numbers(actions["step"]),
        "actions per step": _per_step(actions),
    }
    mapped = timeline.diagnostics.filter(pl.col("code") == MAPPED)["message"].to_list()
    lines = ["understood as:", *(f"  {name:<16}  {text}" for name, text in rows.items())]
    return [*lines, *(f"  {'slices':<16}  {printable(text)}" for text in mapped)]


def _numbers(values: pl.Series) -> str:
    known = values.drop_nulls().unique().sort().to_list()
    if not known:
        return UNKNOWN
    ranges = compact_ranges(known)
    shown = ranges if len(ranges) <= LONGEST else f"{known[0]} to {known[-1]}, with gaps"
    without = values.null_count()
    return f"{len(known):,} ({shown})" + (f"; {without:,} actions without one" if without else "")


def _per_step(actions: pl.DataFrame) -> str:
    counts = sorted(actions.drop_nulls("step").group_by("step").len()["len"].to_list())
    if not counts:
        return UNKNOWN
    return f"{counts[0]:,}" if counts[0] == counts[-1] else f"{counts[0]:,} to {counts[-1]:,}"
