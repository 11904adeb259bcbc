"""The clock of a simulated step: exact, and in units of cost where the costs were relative.

Relative costs such as F = 1, B = 2 are simulated as milliseconds. Their timeline's clock says so, so that a
picture can write the times as they were given: 3, not 3 ms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.vocabulary.durations import duration_text

if TYPE_CHECKING:
    from stagescope.model.timeline import Timeline

COST_UNIT_NS = 1_000_000
"""How long a cost of 1 is simulated to take."""

SIMULATED_CLOCK = "simulated"
COST_UNIT_CLOCK = "simulated, 1 ms is 1 unit of cost"
SIMULATED_CLOCKS = (SIMULATED_CLOCK, COST_UNIT_CLOCK)


def is_simulated(timeline: Timeline) -> bool:
    """Tell whether every rank's times are those of a simulation."""
    return _all_on(timeline, SIMULATED_CLOCKS)


def is_in_cost_units(timeline: Timeline) -> bool:
    """Tell whether every rank's times are to be read in units of cost, `COST_UNIT_NS` each."""
    return _all_on(timeline, (COST_UNIT_CLOCK,))


def simulated_time_text(time_ns: int, *, in_cost_units: bool, decimals: int = 3) -> str:
    """Return a time with its unit, or as a number of units of cost without one, as they were given.

    >>> simulated_time_text(3_500_000, in_cost_units=True), simulated_time_text(3_500_000, in_cost_units=False)
    ('3.5', '3.500 ms')
    """
    if not in_cost_units:
        return duration_text(time_ns)
    return f"{time_ns / COST_UNIT_NS:.{decimals}f}".rstrip("0").rstrip(".")


def _all_on(timeline: Timeline, clocks: tuple[str, ...]) -> bool:
    on = timeline.ranks.select(pl.col("clock").is_in(clocks).fill_null(value=False)).to_series()
    return bool(len(on)) and bool(on.all())
