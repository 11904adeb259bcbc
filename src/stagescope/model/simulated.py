"""Timelines of simulated steps: exact times, in units of cost if the costs were relative.

Relative costs such as F = 1, B = 2 are simulated as milliseconds. The name of the timeline's clock records that, so
that a picture can show times as the user gave them: 3, not 3 ms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.vocabulary.durations import duration_text

if TYPE_CHECKING:
    from stagescope.model.timeline import Timeline

COST_UNIT_NS = 1_000_000
"""The simulated duration of a cost of 1."""

SIMULATED_CLOCK = "simulated"
COST_UNIT_CLOCK = "simulated, 1 ms is 1 unit of cost"
SIMULATED_CLOCKS = (SIMULATED_CLOCK, COST_UNIT_CLOCK)


def is_simulated(timeline: Timeline) -> bool:
    """Return whether all ranks' times come from a simulation."""
    return _all_on(timeline, SIMULATED_CLOCKS)


def is_in_cost_units(timeline: Timeline) -> bool:
    """Return whether all ranks' times are in units of cost, `COST_UNIT_NS` each."""
    return _all_on(timeline, (COST_UNIT_CLOCK,))


def simulated_time_text(time_ns: int, *, in_cost_units: bool, decimals: int = 3) -> str:
    """Return a time with its unit, or as a plain number if it is in units of cost.

    >>> simulated_time_text(3_500_000, in_cost_units=True), simulated_time_text(3_500_000, in_cost_units=False)
    ('3.5', '3.500 ms')
    """
    if not in_cost_units:
        return duration_text(time_ns)
    return f"{time_ns / COST_UNIT_NS:.{decimals}f}".rstrip("0").rstrip(".")


def _all_on(timeline: Timeline, clocks: tuple[str, ...]) -> bool:
    on = timeline.ranks.select(pl.col("clock").is_in(clocks).fill_null(value=False)).to_series()
    return bool(len(on)) and bool(on.all())
