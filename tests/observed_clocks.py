"""What a run in memory shows about its clocks: all observations, and its collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.clocks.observations import Gathered, gather_observations, observe

if TYPE_CHECKING:
    import polars as pl

    from stagescope.model import Timeline


def gathered(timeline: Timeline, clocks: pl.DataFrame) -> Gathered:
    """Return what a run shows; `clocks` has the columns rank and clock (a number)."""
    return gather_observations([observe(timeline, clocks)], timeline.diagnostics, clocks)


def observations(timeline: Timeline, clocks: pl.DataFrame) -> pl.DataFrame:
    """Return all observations of a run."""
    return gathered(timeline, clocks).table
