"""Aligns the clocks of all machines of a run, with a guaranteed bound on the error.

The steps, each in a module of its own: observations (pairs of ordered events), reductions, collectives and
recorded_offsets collect the facts in tables (observation_table), and exits how far apart the ranks of a collective
leave it; evidence turns them into arrays; lines, rate_changes and slews find clocks that were slewed, and prepared
removes that from the observations; conflicts, adjustments and ambiguous_edges find outliers and clocks that were set;
limits, bounds and reference_bounds compute the guaranteed bounds; windows (with grouped and knots) and estimate compute
the best estimate within them, and uncertainty its error; solution runs these in order; correction and groups turn the
result into corrections of raw timestamps; summary, report and report_text describe it. docs/clocks.md explains the
assumptions and the method.
"""

from stagescope.clocks.alignment import (
    Aligned,
    ClocksOfRun,
    SolvedClocks,
    align_clocks,
    clocks_of_run,
    extents_of,
    solve_clocks,
    timestamps_of,
    with_corrections,
)
from stagescope.clocks.exits import EXIT_NS
from stagescope.clocks.grid import MAX_PPM
from stagescope.clocks.observations import Observed, PartOfRun, joined_slices, observe, transfers_between
from stagescope.clocks.report import (
    ClockAdjustment,
    ClockReport,
    ExitSkew,
    InconsistentPair,
    MachineClock,
    Observation,
    Outlier,
    SlewedClock,
    report_from_json,
    report_json,
)
from stagescope.clocks.report_text import candidates_text, clock_line

__all__ = [
    "EXIT_NS",
    "MAX_PPM",
    "Aligned",
    "ClockAdjustment",
    "ClockReport",
    "ClocksOfRun",
    "ExitSkew",
    "InconsistentPair",
    "MachineClock",
    "Observation",
    "Observed",
    "Outlier",
    "PartOfRun",
    "SlewedClock",
    "SolvedClocks",
    "align_clocks",
    "candidates_text",
    "clock_line",
    "clocks_of_run",
    "extents_of",
    "joined_slices",
    "observe",
    "report_from_json",
    "report_json",
    "solve_clocks",
    "timestamps_of",
    "transfers_between",
    "with_corrections",
]
