"""Brings the clocks of all machines of a run to one, with a guaranteed error."""

from stagescope.clocks.align import MAX_PPM, Aligned, align_clocks
from stagescope.clocks.report import (
    ClockReport,
    ContradictoryPair,
    MachineClock,
    Rejected,
    StepFound,
    Witness,
    report_json,
)
from stagescope.clocks.sentences import clock_line

__all__ = [
    "MAX_PPM",
    "Aligned",
    "ClockReport",
    "ContradictoryPair",
    "MachineClock",
    "Rejected",
    "StepFound",
    "Witness",
    "align_clocks",
    "clock_line",
    "report_json",
]
