"""Aligns the clocks of all machines of a run, from the run itself, with a guaranteed bound on the error."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.clocks.collectives import matched_collectives
from stagescope.clocks.correction import correction_of
from stagescope.clocks.groups import shift_groups
from stagescope.clocks.observations import gather_observations
from stagescope.clocks.prepared import prepare
from stagescope.clocks.recorded_offsets import recorded_offset_observations
from stagescope.clocks.report import ClockReport
from stagescope.clocks.report_text import diagnostics_of, mismatch_notes
from stagescope.clocks.slews import widened_for_unsure, with_slew
from stagescope.clocks.solution import solve
from stagescope.clocks.steadiness import unsteady_groups
from stagescope.clocks.summary import AlignmentResult, methods_of, summarize
from stagescope.model import CLOCKS, COUNTERS, KERNELS, SPANS, STEPS
from stagescope.model.validate import conform

if TYPE_CHECKING:
    from collections.abc import Collection

    from stagescope.clocks.correction import Correction
    from stagescope.clocks.evidence import Coarse, Floats, Ints
    from stagescope.clocks.prepared import Prepared
    from stagescope.clocks.solution import Solution
    from stagescope.model import Timeline

MAX_PPM = 200.0
"""The largest drift between two clocks that the bounds allow for: quartz oscillators are within 100 ppm of their
nominal rate, mostly within 50."""

SLEWED = 2.0
"""Where slews were removed, or rates changed without an explanation, the estimated error is larger by this factor: when
rates changed, and what they were, is known less well than the model assumes. docs/clocks.md has the coverage."""

TIMESTAMPS = ("start_ns", "end_ns", "wait_start_ns", "wait_end_ns")


@dataclass(frozen=True)
class Aligned:
    """A timeline with aligned clocks, and the report of how well they are aligned."""

    timeline: Timeline
    clocks: ClockReport


def align_clocks(timeline: Timeline, max_ppm: float = MAX_PPM) -> Aligned:
    """Return the timeline with all timestamps on the clock of the smallest rank, and the report of the alignment.

    In `clocks`, each corrected clock has one row per linear piece of its correction, with the guaranteed bound of its
    error. The bound holds under the assumptions of docs/clocks.md: no clock drifts from the reference by more than
    `max_ppm`, and no effect precedes its cause. Machines without messages to the others keep their timestamps, have
    null errors and are named in a warning. Where all ranks share one clock, nothing is changed and the report has no
    machines.
    """
    names = _clock_names(timeline.ranks, timeline.spans)
    clocks = names["clock"].unique(maintain_order=True).to_list()
    if len(clocks) <= 1:
        report = ClockReport((), max_ppm=max_ppm)
        return Aligned(replace(timeline, alignment=report), report)
    number = {clock: index for index, clock in enumerate(clocks)}
    numbered = names.with_columns(pl.col("clock").replace_strict(number, return_dtype=pl.Int32))
    recorded = recorded_offset_observations(timeline, number)
    collectives = matched_collectives(timeline, numbered)
    table = pl.concat([gather_observations(timeline, numbered, collectives), recorded]).sort(
        "source", "target", "sent_ns", "received_ns", maintain_order=True
    )
    # Recorded offsets are measured against one more clock, which belongs to no machine.
    count = len(clocks) + (1 if len(recorded) else 0)
    rate_error_ns = _rate_errors_ns(timeline.clocks, clocks)
    prepared = prepare(table, rate_error_ns[:count], max_ppm)
    solution = solve(prepared.evidence, count, max_ppm, (prepared.zones, prepared.corners))
    timestamps = _timestamps_by_clock(timeline, numbered, len(clocks))
    corrections = _corrections(prepared, solution, timestamps, max_ppm)
    corrections = [each.widened(error_ns) for each, error_ns in zip(corrections, rate_error_ns, strict=False)]
    found = AlignmentResult(
        names, tuple(clocks), table, prepared, solution, tuple(corrections), tuple(timestamps)
    )
    report = summarize(found, timeline, max_ppm)
    moved = _moved(timeline, numbered, corrections)
    rows = _clock_rows(timeline, found, report)
    return Aligned(
        replace(moved, clocks=rows, alignment=report).with_diagnostics(
            [*diagnostics_of(report), *mismatch_notes(collectives.mismatched)]
        ),
        report,
    )


def _corrections(
    prepared: Prepared, solution: Solution, timestamps: list[Ints], max_ppm: float
) -> list[Correction]:
    """Return the correction of every clock, for raw timestamps."""
    slews, coarse = prepared.slews, prepared.coarse
    steady = [
        slews[clock].removed(own_ns) if clock in slews else own_ns for clock, own_ns in enumerate(timestamps)
    ]
    corrections = [correction_of(solution, coarse, clock, own_ns) for clock, own_ns in enumerate(steady)]
    drift_ns = 2e-6 * max_ppm * _length_ns(steady, coarse)
    corrections = shift_groups(corrections, solution, prepared.evidence, coarse, drift_ns)
    corrections = [
        with_slew(each, slews[clock]) if clock in slews else each for clock, each in enumerate(corrections)
    ]
    corrections = widened_for_unsure(corrections, slews, solution.reference, timestamps)
    factors = _estimate_factors(solution, slews)
    corrections = [
        each.with_estimate(factors.get(reference, 1.0))
        for reference, each in zip(solution.reference.tolist(), corrections, strict=False)
    ]
    # Where the clocks of a pair drift faster than assumed, no limit holds that was derived from any of its group.
    is_unsteady = unsteady_groups(prepared, solution)
    return [
        each.without_bounds() if unsteady else each
        for each, unsteady in zip(corrections, is_unsteady.tolist(), strict=False)
    ]


def _estimate_factors(solution: Solution, slews: Collection[int]) -> dict[int, float]:
    """Return by which factor the estimated errors of groups with abrupt changes of rates are larger; nan for none."""
    reference = solution.reference.tolist()
    factors = {reference[clock]: SLEWED for each in solution.corners for clock in (each.one, each.other)}
    # Beside slews, the size of an adjustment is not certain, and neither is what it explains.
    return factors | {reference[clock]: np.nan if solution.attributed else SLEWED for clock in slews}


def _clock_names(ranks: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Return rank and clock, sorted by rank.

    If no rank names its clock, all are assumed to share one: sources without clocks are traces of a single machine.
    If only some do, each of the others has a clock of its own, which is the safe assumption.
    """
    every = pl.concat([ranks.select("rank"), spans.select("rank")]).unique()
    named = every.join(ranks.select("rank", "clock"), on="rank", how="left").sort("rank")
    if named["clock"].null_count() == len(named):
        return named.with_columns(clock=pl.lit("unknown clock"))
    own = "unknown clock of rank " + pl.col("rank").cast(pl.String)
    return named.with_columns(clock=pl.coalesce("clock", own))


def _rate_errors_ns(table: pl.DataFrame, clocks: list[str]) -> Floats:
    """Return the error of removing changes of the rate of each clock, and of the recorded common clock: 0."""
    known = dict(table.drop_nulls("rate_error_ns").select("clock", "rate_error_ns").iter_rows())
    return np.array([*(known.get(clock, 0) for clock in clocks), 0], float)


def _timestamps_by_clock(timeline: Timeline, numbered: pl.DataFrame, count: int) -> list[Ints]:
    """Return the distinct timestamps of each clock, sorted."""
    parts: list[list[Ints]] = [[] for _ in range(count)]
    for frame, names in ((timeline.spans, TIMESTAMPS), (timeline.steps, TIMESTAMPS[:2])):
        rows_of_clock = _rows_by_clock(frame, numbered, count)
        for name in names:
            is_known, at_ns = frame[name].is_not_null().to_numpy(), frame[name].fill_null(0).to_numpy()
            for own, rows in zip(parts, rows_of_clock, strict=True):
                own.append(at_ns[rows[is_known[rows]]])
    return [np.unique(np.concatenate(own)) for own in parts]


def _length_ns(timestamps: list[Ints], coarse: Coarse) -> float:
    """Return the time from the first timestamp of any clock to the last."""
    ends = [
        own[[0, -1]] - offset_ns
        for own, offset_ns in zip(timestamps, coarse.offset_ns.tolist(), strict=False)
        if len(own)
    ]
    return float(np.max(ends) - np.min(ends)) if ends else 0.0


def _moved(timeline: Timeline, numbered: pl.DataFrame, corrections: list[Correction]) -> Timeline:
    """Return the timeline with all timestamps on the common clock, rows in their declared order."""
    spans = _moved_columns(timeline.spans, numbered, corrections, TIMESTAMPS)
    steps = _moved_columns(timeline.steps, numbered, corrections, TIMESTAMPS[:2])
    counters = _moved_columns(timeline.counters, numbered, corrections, ("time_ns",))
    kernels = _moved_columns(timeline.kernels, numbered, corrections, TIMESTAMPS[:2])
    return replace(
        timeline,
        spans=spans.sort(SPANS.order, maintain_order=True),
        steps=steps.sort(STEPS.order, maintain_order=True),
        counters=counters.sort(COUNTERS.order, maintain_order=True),
        kernels=kernels.sort(KERNELS.order, maintain_order=True),
    )


def _moved_columns(
    frame: pl.DataFrame, numbered: pl.DataFrame, corrections: list[Correction], names: tuple[str, ...]
) -> pl.DataFrame:
    rows_of_clock = _rows_by_clock(frame, numbered, len(corrections))
    moved = {}
    for name in names:
        timestamps_ns = frame[name].fill_null(0).to_numpy().copy()
        for own, rows in zip(corrections, rows_of_clock, strict=True):
            timestamps_ns[rows] = own.at(timestamps_ns[rows])
        moved[name] = pl.when(pl.col(name).is_not_null()).then(pl.Series(name, timestamps_ns)).alias(name)
    return frame.with_columns(**moved)


def _rows_by_clock(frame: pl.DataFrame, numbered: pl.DataFrame, count: int) -> list[Ints]:
    """Return the rows of each clock, in their order."""
    clock = frame.select("rank").join(numbered, on="rank", how="left", maintain_order="left")["clock"]
    order = np.argsort(clock.to_numpy(), kind="stable")
    return np.split(order, np.searchsorted(clock.to_numpy()[order], np.arange(1, count)))


def _clock_rows(timeline: Timeline, found: AlignmentResult, report: ClockReport) -> pl.DataFrame:
    """Return the clocks table: one row per piece; its start is on the common clock, like every time of the timeline."""
    before = dict(timeline.clocks.select("clock", "offset_ns").iter_rows())
    rate_errors_ns = dict(timeline.clocks.select("clock", "rate_error_ns").iter_rows())
    parts = []
    for machine, correction, method in zip(
        report.machines, found.corrections, methods_of(found), strict=True
    ):
        columns = {
            "start_ns": correction.start_ns + correction.offset_ns,
            "offset_ns": correction.offset_ns + before.get(machine.clock, 0),
            # The slope of the piece. It is not a measurement of the oscillator: only `max_ppm` is guaranteed.
            "drift_ppm": correction.rate * 1e6,
            "error_lo_ns": _whole(correction.lower_ns, np.floor),
            "error_hi_ns": _whole(correction.upper_ns, np.ceil),
            "estimated_error_ns": _whole(correction.estimated_ns, np.ceil),
        }
        own = pl.DataFrame(columns).with_columns(
            clock=pl.lit(machine.clock),
            machine=pl.lit(machine.machine, pl.String),
            observation_count=pl.lit(machine.observation_count),
            rate_error_ns=pl.lit(rate_errors_ns.get(machine.clock), pl.Int64),
            method=pl.lit(f"{method}: {machine.state}"),
        )
        parts.append(conform(own, CLOCKS))
    return conform(pl.concat(parts), CLOCKS)


def _whole(values: np.ndarray, rounding: np.ufunc) -> pl.Series:
    there = np.isfinite(values)
    whole = pl.Series(rounding(np.where(there, values, 0.0)).astype(np.int64))
    return whole.to_frame("v").select(pl.when(pl.Series(there)).then("v")).to_series()
