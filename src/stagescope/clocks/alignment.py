"""Aligns the clocks of all machines of a run, from the run itself, with a guaranteed bound on the error."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from stagescope.clocks.correction import correction_of
from stagescope.clocks.grid import MAX_PPM
from stagescope.clocks.groups import shift_groups
from stagescope.clocks.observations import gather_observations, observe
from stagescope.clocks.prepared import prepare
from stagescope.clocks.recorded_offsets import recorded_offset_observations
from stagescope.clocks.report import ClockReport
from stagescope.clocks.report_text import diagnostics_of, mismatch_notes
from stagescope.clocks.slews import widened_at_ends, widened_for_unsure, with_slew
from stagescope.clocks.solution import solve
from stagescope.clocks.steadiness import unsteady_groups
from stagescope.clocks.summary import AlignmentResult, methods_of, summarize
from stagescope.execution.memory import return_memory
from stagescope.model import CLOCKS, COUNTERS, KERNELS, SPANS, STEPS
from stagescope.model.validate import conform, in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, MutableSequence, Sequence

    from stagescope.clocks.correction import Correction
    from stagescope.clocks.evidence import Coarse, Floats, Ints
    from stagescope.clocks.observations import Observed
    from stagescope.clocks.prepared import Prepared
    from stagescope.clocks.solution import Solution
    from stagescope.model import Timeline
    from stagescope.model.diagnostics import Diagnostic

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
    every = pl.concat([timeline.ranks.select("rank"), timeline.spans.select("rank")]).unique()
    run = clocks_of_run(timeline, every)
    if len(run.clocks) <= 1:
        return Aligned(replace(timeline, alignment=(report := ClockReport((), max_ppm=max_ppm))), report)
    solved = solve_clocks(
        run,
        [observe(timeline, run.numbered)],
        [extents_of(timeline, run.numbered)],
        partial(timestamps_of, timeline, run.numbered),
        max_ppm,
    )
    moved = with_corrections(timeline, run.numbered, solved.corrections)
    return Aligned(
        replace(moved, clocks=solved.clocks, alignment=solved.report).with_diagnostics(solved.notes),
        solved.report,
    )


class ClocksOfRun(NamedTuple):
    """The clocks of a run: `numbered` has rank and clock, the number of one of `clocks`, in the order of ranks.

    `timeline` has the tables of ranks, clocks and diagnostics of the whole run; of its spans nothing is used.
    """

    timeline: Timeline
    names: pl.DataFrame
    clocks: tuple[str, ...]
    numbered: pl.DataFrame


class SolvedClocks(NamedTuple):
    """The correction of each clock, by its number, and what describes them: report, clocks table, diagnostics."""

    corrections: tuple[Correction, ...]
    report: ClockReport
    clocks: pl.DataFrame
    notes: tuple[Diagnostic, ...]


def clocks_of_run(timeline: Timeline, every: pl.DataFrame) -> ClocksOfRun:
    """Return the clocks of a run; `every` has the column rank, with all ranks that have a row in any table."""
    names = _clock_names(timeline.ranks, every)
    clocks = names["clock"].unique(maintain_order=True).to_list()
    number = {clock: index for index, clock in enumerate(clocks)}
    numbered = names.with_columns(pl.col("clock").replace_strict(number, return_dtype=pl.Int32))
    return ClocksOfRun(timeline, names, tuple(clocks), numbered)


def solve_clocks(
    run: ClocksOfRun,
    parts: MutableSequence[Observed],
    extents: Sequence[pl.DataFrame],
    timestamps_of_clocks: Callable[[Sequence[int]], Mapping[int, Ints]],
    max_ppm: float = MAX_PPM,
) -> SolvedClocks:
    """Return the corrections of all clocks of a run, from what all of its pipelines show about them.

    `parts` is emptied when they have been gathered: with 10,000 ranks and 100 steps, that saves 0.15 GB of 1.52 GB.
    `extents` are those of `extents_of`. `timestamps_of_clocks` returns all timestamps of some clocks; it is called for
    those that were set or slewed.
    """
    clocks = list(run.clocks)
    number = {clock: index for index, clock in enumerate(clocks)}
    extent = pl.concat(extents)
    spans_ns = extent.select(pl.min("start_ns"), pl.max("end_ns")).row(0)
    recorded = recorded_offset_observations(
        run.timeline.clocks, None if spans_ns[0] is None else spans_ns, number
    )
    return_memory()  # before and after the phases that take the most memory
    gathered = gather_observations(parts, run.timeline.diagnostics, run.numbered)
    return_memory()
    table = gathered.table
    if len(recorded):
        order = ("source", "target", "sent_ns", "received_ns")
        table = pl.concat([table, recorded]).sort(order, maintain_order=True)
    # Recorded offsets are measured against one more clock, which belongs to no machine.
    count = len(clocks) + (1 if len(recorded) else 0)
    rate_error_ns = _rate_errors_ns(run.timeline.clocks, clocks)
    prepared = prepare(table, rate_error_ns[:count], max_ppm)
    return_memory()
    # Threads of the linear algebra would wait actively for each other and for other workers, four times as long as they
    # compute, and round differently on another number of processors.
    with threadpool_limits(limits=1, user_api="blas"):
        solution = solve(prepared.evidence, count, max_ppm, (prepared.zones, prepared.corners))
    ends = _ends_of_clocks(extent, len(clocks))
    adjusted = sorted({each.clock for each in solution.grid.adjustments if each.clock < len(clocks)})
    timestamps = {**dict(enumerate(ends)), **(timestamps_of_clocks(adjusted) if adjusted else {})}
    every = [timestamps[clock] for clock in range(len(clocks))]
    corrections = _corrections(prepared, solution, every, max_ppm)
    corrections = [each.widened(error_ns) for each, error_ns in zip(corrections, rate_error_ns, strict=False)]
    found = AlignmentResult(
        run.names, run.clocks, table, prepared, solution, tuple(corrections), tuple(ends), gathered.exits
    )
    report = summarize(found, run.timeline, max_ppm)
    return SolvedClocks(
        tuple(corrections),
        report,
        _clock_rows(run.timeline, found, report),
        (*diagnostics_of(report), *mismatch_notes(gathered.collectives.mismatched)),
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
    corrections = widened_at_ends(corrections, slews, solution.reference, timestamps)
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


def _clock_names(ranks: pl.DataFrame, every: pl.DataFrame) -> pl.DataFrame:
    """Return rank and clock, sorted by rank.

    If no rank names its clock, all are assumed to share one: sources without clocks are traces of a single machine.
    If only some do, each of the others has a clock of its own, which is the safe assumption.
    """
    named = every.join(ranks.select("rank", "clock"), on="rank", how="left").sort("rank")
    if named["clock"].null_count() == len(named):
        return named.with_columns(clock=pl.lit("unknown clock"))
    own = "unknown clock of rank " + pl.col("rank").cast(pl.String)
    return named.with_columns(clock=pl.coalesce("clock", own))


def _rate_errors_ns(table: pl.DataFrame, clocks: list[str]) -> Floats:
    """Return the error of removing changes of the rate of each clock, and of the recorded common clock: 0."""
    known = dict(table.drop_nulls("rate_error_ns").select("clock", "rate_error_ns").iter_rows())
    return np.array([*(known.get(clock, 0) for clock in clocks), 0], float)


def extents_of(timeline: Timeline, numbered: pl.DataFrame) -> pl.DataFrame:
    """Return one row per clock: its first and last timestamp, and those of its spans (start_ns and end_ns)."""
    spans = timeline.spans.group_by("rank").agg(
        pl.min("start_ns"),
        pl.max("end_ns"),
        first_ns=pl.min_horizontal(pl.min(*TIMESTAMPS)),
        last_ns=pl.max_horizontal(pl.max(*TIMESTAMPS)),
    )
    steps = timeline.steps.group_by("rank").agg(
        first_ns=pl.min_horizontal(pl.min(*TIMESTAMPS[:2])),
        last_ns=pl.max_horizontal(pl.max(*TIMESTAMPS[:2])),
    )
    known = pl.concat([spans, steps], how="diagonal").join(numbered, on="rank")
    return (
        known.group_by("clock").agg(pl.min("start_ns", "first_ns"), pl.max("end_ns", "last_ns")).sort("clock")
    )


def timestamps_of(timeline: Timeline, numbered: pl.DataFrame, clocks: Sequence[int]) -> dict[int, Ints]:
    """Return the distinct timestamps of some clocks, sorted."""
    parts: dict[int, list[Ints]] = {clock: [] for clock in clocks}
    for frame, names in ((timeline.spans, TIMESTAMPS), (timeline.steps, TIMESTAMPS[:2])):
        for clock in clocks:
            own = frame.join(numbered.filter(pl.col("clock") == clock), on="rank", how="semi")
            parts[clock] += [own[name].drop_nulls().to_numpy() for name in names]
    return {clock: np.unique(np.concatenate(own)) for clock, own in parts.items()}


def _ends_of_clocks(extents: pl.DataFrame, count: int) -> list[Ints]:
    """Return the first and the last timestamp of each clock; nothing for one without any."""
    known = extents.group_by("clock").agg(pl.min("first_ns"), pl.max("last_ns"))
    ends = {clock: np.unique(np.array(own, np.int64)) for clock, *own in known.iter_rows()}
    return [ends.get(clock, np.empty(0, np.int64)) for clock in range(count)]


def _length_ns(timestamps: list[Ints], coarse: Coarse) -> float:
    """Return the time from the first timestamp of any clock to the last."""
    ends = [
        own[[0, -1]] - offset_ns
        for own, offset_ns in zip(timestamps, coarse.offset_ns.tolist(), strict=False)
        if len(own)
    ]
    return float(np.max(ends) - np.min(ends)) if ends else 0.0


def with_corrections(
    timeline: Timeline, numbered: pl.DataFrame, corrections: Sequence[Correction]
) -> Timeline:
    """Return a timeline, or that of some ranks, with all timestamps on the common clock, rows in their order."""
    spans = _moved_columns(timeline.spans, numbered, corrections, TIMESTAMPS)
    steps = _moved_columns(timeline.steps, numbered, corrections, TIMESTAMPS[:2])
    counters = _moved_columns(timeline.counters, numbered, corrections, ("time_ns",))
    kernels = _moved_columns(timeline.kernels, numbered, corrections, TIMESTAMPS[:2])
    return replace(
        timeline,
        spans=in_order(spans, SPANS),
        steps=in_order(steps, STEPS),
        counters=in_order(counters, COUNTERS),
        kernels=in_order(kernels, KERNELS),
    )


def _moved_columns(
    frame: pl.DataFrame, numbered: pl.DataFrame, corrections: Sequence[Correction], names: tuple[str, ...]
) -> pl.DataFrame:
    rows_of_clock = _rows_by_clock(frame["rank"].to_numpy(), numbered)
    moved = {}
    for name in names:
        before = frame[name]
        if before.null_count() == frame.height:
            continue
        raw_ns = before.fill_null(0).to_numpy()
        moved_ns = raw_ns.copy()
        for clock, rows in rows_of_clock:
            moved_ns[rows] = corrections[clock].at(raw_ns[rows])
        series = pl.Series(name, moved_ns)
        is_known = pl.col(name).is_not_null()
        moved[name] = pl.when(is_known).then(series).alias(name) if before.null_count() else series
    return frame.with_columns(**moved)


def _rows_by_clock(ranks: Ints, numbered: pl.DataFrame) -> list[tuple[int, slice | Ints]]:
    """Return clock and rows of each rank that has a clock, as one slice where rows are in the order of ranks."""
    clock_of = dict(numbered.select("rank", "clock").iter_rows())
    order: Ints | None = None
    if len(ranks) > 1 and (ranks[1:] < ranks[:-1]).any():
        order = np.argsort(ranks, kind="stable")
        ranks = ranks[order]
    edges = [0, *(np.flatnonzero(ranks[1:] != ranks[:-1]) + 1).tolist(), len(ranks)]
    return [
        (clock_of[int(ranks[first])], slice(first, last) if order is None else order[first:last])
        for first, last in pairwise(edges)
        if last > first and int(ranks[first]) in clock_of
    ]


def _clock_rows(timeline: Timeline, found: AlignmentResult, report: ClockReport) -> pl.DataFrame:
    """Return the clocks table: one row per piece; its start is on the common clock, like every time of the timeline."""
    before = dict(timeline.clocks.select("clock", "offset_ns").iter_rows())
    rate_errors_ns = dict(timeline.clocks.select("clock", "rate_error_ns").iter_rows())
    machines, corrections = report.machines, found.corrections
    methods = methods_of(found)
    pieces = [len(each.start_ns) for each in corrections]

    def of_pieces(column: str) -> np.ndarray:
        return np.concatenate([getattr(each, column) for each in corrections])

    def of_clocks(values: list[object], dtype: type[pl.DataType]) -> pl.Series:
        return pl.Series(values, dtype=dtype).gather(np.repeat(np.arange(len(pieces)), pieces))

    offset_ns = of_pieces("offset_ns")
    earlier_ns = np.repeat([before.get(each.clock, 0) for each in machines], pieces)
    rows = pl.DataFrame(
        {
            "clock": of_clocks([each.clock for each in machines], pl.String),
            "machine": of_clocks([each.machine for each in machines], pl.String),
            "start_ns": of_pieces("start_ns") + offset_ns,
            "offset_ns": offset_ns + earlier_ns,
            # The slope of the piece. It is not a measurement of the oscillator: only `max_ppm` is guaranteed.
            "drift_ppm": of_pieces("rate") * 1e6,
            "error_lo_ns": _whole(of_pieces("lower_ns"), np.floor),
            "error_hi_ns": _whole(of_pieces("upper_ns"), np.ceil),
            "estimated_error_ns": _whole(of_pieces("estimated_ns"), np.ceil),
            "observation_count": of_clocks([each.observation_count for each in machines], pl.Int64),
            "rate_error_ns": of_clocks([rate_errors_ns.get(each.clock) for each in machines], pl.Int64),
            "method": of_clocks(
                [f"{method}: {each.state}" for each, method in zip(machines, methods, strict=True)], pl.String
            ),
        }
    )
    return conform(rows, CLOCKS)


def _whole(values: np.ndarray, rounding: np.ufunc) -> pl.Series:
    there = np.isfinite(values)
    whole = pl.Series(rounding(np.where(there, values, 0.0)).astype(np.int64))
    return whole.to_frame("v").select(pl.when(pl.Series(there)).then("v")).to_series()
