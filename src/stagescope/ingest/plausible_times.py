"""Timestamps that cannot be right: of another century, or far from everything else that their rank did.

One such timestamp would stretch the run, and every share of its time, without an error anywhere. Nothing is known about
how long a training runs or pauses, so only what is separated from the rest by more than a day, and by more than ten
times the length of the rest, counts as implausible, and only if it is a small part.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from stagescope.model.diagnostics import Diagnostic
from stagescope.model.implied import implied_steps
from stagescope.model.tables import STEPS
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

    from stagescope.model import Timeline

MAX_NS = 2**62
"""146 years: differences of larger timestamps do not fit 64 bits."""

DAY_NS = 86_400 * 10**9
YEAR_NS = 365.25 * DAY_NS
TIMES_AS_FAR = 10
LARGEST_PART = 0.2

SPAN_TIMES = ("start_ns", "end_ns")
WAIT_TIMES = ("wait_start_ns", "wait_end_ns")

IS_LONG = (
    (pl.col("last_ns").cast(pl.Float64) - pl.col("first_ns").cast(pl.Float64) > DAY_NS)
    | (pl.col("last_ns") >= MAX_NS)
    | (pl.col("first_ns") <= -MAX_NS)
)
"""Whether times may be implausible. The difference of two of them may not fit 64 bits."""

INTERVALS = pl.DataFrame(schema={"rank": pl.Int32, "first_ns": pl.Int64, "last_ns": pl.Int64})

DROPPED = "are more than a day from everything else of their rank, and were dropped"


class Interval(NamedTuple):
    """From the first to the last plausible moment."""

    first_ns: int
    last_ns: int

    def contains(self, moments_ns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return whether each moment is in the interval."""
        inside: npt.NDArray[np.bool_] = (moments_ns >= self.first_ns) & (moments_ns <= self.last_ns)
        return inside


class Moments:
    """Moments of one clock, a part at a time: the number of those of each day, the first and the last one."""

    def __init__(self) -> None:
        self._of_day: dict[int, tuple[int, int, int]] = {}

    def add(self, moments_ns: npt.NDArray[Any]) -> None:
        """Add moments; those from MAX_NS on do not count."""
        if not len(moments_ns):
            return
        first_ns, last_ns = int(moments_ns.min()), int(moments_ns.max())
        if first_ns <= -MAX_NS or last_ns >= MAX_NS:
            self.add(moments_ns[(moments_ns > -MAX_NS) & (moments_ns < MAX_NS)])
        elif first_ns // DAY_NS == last_ns // DAY_NS:
            self._add_to(first_ns // DAY_NS, len(moments_ns), first_ns, last_ns)
        else:
            ordered = np.sort(moments_ns)
            days, starts, counts = np.unique(ordered // DAY_NS, return_index=True, return_counts=True)
            ends = starts + counts - 1
            for day, count, start, end in zip(
                *(each.tolist() for each in (days, counts, starts, ends)), strict=True
            ):
                self._add_to(day, count, int(ordered[start]), int(ordered[end]))

    def _add_to(self, day: int, count: int, first_ns: int, last_ns: int) -> None:
        before, first_before_ns, last_before_ns = self._of_day.get(day, (0, first_ns, last_ns))
        self._of_day[day] = before + count, min(first_before_ns, first_ns), max(last_before_ns, last_ns)

    def plausible_interval(self) -> Interval:
        """Return the interval of the moments that are plausible; (0, 0) without any.

        It contains every moment below MAX_NS if no small part of them is separated from the others.
        """
        if not self._of_day:
            return Interval(0, 0)
        # Moments of one day are never more than a day apart.
        days = [self._of_day[day] for day in sorted(self._of_day)]
        counts, firsts_ns, lasts_ns = np.array(days, np.int64).T
        whole = Interval(int(firsts_ns[0]), int(lasts_ns[-1]))
        if whole.last_ns - whole.first_ns <= DAY_NS:
            return whole
        pauses = np.flatnonzero(firsts_ns[1:] - lasts_ns[:-1] > DAY_NS)
        starts, stops = np.append(0, pauses + 1), np.append(pauses + 1, len(days))
        before = np.append(0, np.cumsum(counts))
        sizes = before[stops] - before[starts]
        largest = int(sizes.argmax())
        start, stop = int(starts[largest]), int(stops[largest])
        length_ns = int(lasts_ns[stop - 1] - firsts_ns[start])
        gaps_ns = [
            int(firsts_ns[edge] - lasts_ns[edge - 1]) for edge in (start, stop) if 0 < edge < len(days)
        ]
        total = int(before[-1])
        others = total - int(sizes[largest])
        is_apart = bool(gaps_ns) and min(gaps_ns) > TIMES_AS_FAR * length_ns
        if is_apart and 2 * others < total and others <= max(2, LARGEST_PART * total):
            return Interval(int(firsts_ns[start]), int(lasts_ns[stop - 1]))
        return whole


def plausible_interval(*moments_ns: npt.NDArray[Any]) -> Interval:
    """Return the interval of the moments of one clock that are plausible, see Moments."""
    found = Moments()
    for each in moments_ns:
        found.add(each)
    return found.plausible_interval()


def without_implausible_times(timeline: Timeline) -> Timeline:
    """Return the timeline without spans, waits, steps, counters and kernels at implausible times.

    Diagnostics count them.

    A step whose times are implausible gets those of its spans.
    """
    intervals = _intervals_of_ranks(timeline)
    if intervals.is_empty():
        return timeline
    spans, of_spans = _without(timeline, timeline.spans, intervals, SPAN_TIMES, "spans")
    spans, of_waits = _without_waits(timeline, spans, intervals)
    steps, of_steps = _without(timeline, timeline.steps, intervals, SPAN_TIMES, "")
    lost = timeline.steps.join(steps, on=("step", "rank"), how="anti")
    again = implied_steps(spans.join(lost.select("step", "rank"), on=("step", "rank"), how="semi"))
    counters, of_counters = _without(
        timeline, timeline.counters, intervals, ("time_ns",), "values of counters"
    )
    kernels, of_kernels = _without(timeline, timeline.kernels, intervals, SPAN_TIMES, "kernels")
    steps = pl.concat([steps, again]).sort(STEPS.order)
    kept = replace(timeline, spans=spans, steps=steps, counters=counters, kernels=kernels)
    return kept.with_diagnostics([*of_spans, *of_waits, *of_steps, *of_counters, *of_kernels])


def require_possible_total(timeline: Timeline) -> None:
    """Raise InputError if the spans of a rank last so long together that sums of times do not fit 64 bits.

    That is the case if one column of times has another unit or origin than the other one.
    """
    length_ns = (pl.col("end_ns").cast(pl.Float64) - pl.col("start_ns").cast(pl.Float64)).clip(0)
    totals = timeline.spans.group_by("rank").agg(total_ns=length_ns.sum())
    wrong = totals.filter(pl.col("total_ns") >= MAX_NS).join(timeline.ranks, on="rank").sort("rank")
    for rank, total_ns, source in wrong.select("rank", "total_ns", "source").iter_rows():
        years = f"{total_ns / YEAR_NS:,.0f}"
        text = f"the spans of rank {rank} last {years} years: their starts and ends have different units or origins"
        raise InputError.damaged(source or "the run", text)


def _intervals_of_ranks(timeline: Timeline) -> pl.DataFrame:
    """Return `rank`, `first_ns` and `last_ns` of the plausible times of the ranks that have implausible ones."""
    found: list[tuple[int, int, int]] = []
    # Almost always the whole run is short, which is known without grouping.
    suspicious = _extents(timeline, by_rank=True) if not _extents(timeline).is_empty() else INTERVALS
    for rank, first_ns, last_ns in suspicious.iter_rows():
        own = timeline.spans.filter(pl.col("rank") == rank)
        interval = plausible_interval(*(own[name].to_numpy() for name in SPAN_TIMES))
        if interval.first_ns > first_ns or interval.last_ns < last_ns:
            found.append((rank, *interval))
    return pl.DataFrame(found, INTERVALS.schema, orient="row")


def _extents(timeline: Timeline, *, by_rank: bool = False) -> pl.DataFrame:
    """Return the first and the last time of the run, or of each rank, where these are suspiciously far apart."""
    tables = (
        (timeline.spans, SPAN_TIMES + WAIT_TIMES),
        (timeline.steps, SPAN_TIMES),
        (timeline.counters, ("time_ns",)),
        (timeline.kernels, SPAN_TIMES),
    )
    keys = [pl.col("rank") if by_rank else pl.lit(0, pl.Int32).alias("rank")]
    ends = [
        (table.group_by(keys).agg if by_rank else table.select)(
            *([] if by_rank else keys),
            pl.min_horizontal(pl.min(*names)).alias("first_ns"),
            pl.max_horizontal(pl.max(*names)).alias("last_ns"),
        )
        for table, names in tables
    ]
    return pl.concat(ends).group_by("rank").agg(pl.min("first_ns"), pl.max("last_ns")).filter(IS_LONG)


def _without(
    timeline: Timeline, table: pl.DataFrame, intervals: pl.DataFrame, times: tuple[str, ...], what: str
) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return a table without rows that have a time outside of the interval of their rank."""
    known = table.join(intervals, on="rank", how="left", maintain_order="left")
    is_right = pl.all_horizontal(_is_inside(name) for name in times)
    wrong = known.filter(~is_right)
    if wrong.is_empty():
        return table, []
    notes = _notes(timeline, wrong, times, f"{what} {DROPPED}") if what else []
    return known.filter(is_right).select(table.columns), notes


def _without_waits(
    timeline: Timeline, spans: pl.DataFrame, intervals: pl.DataFrame
) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return the spans without waits that are outside of the interval of their rank; the spans are kept."""
    known = spans.join(intervals, on="rank", how="left", maintain_order="left")
    is_right = pl.all_horizontal(_is_inside(name).fill_null(value=True) for name in WAIT_TIMES)
    wrong = known.filter(~is_right)
    kept = known.with_columns(pl.when(is_right).then(name).alias(name) for name in WAIT_TIMES)
    return kept.select(spans.columns), _notes(timeline, wrong, WAIT_TIMES, f"waits {DROPPED}")


def _is_inside(name: str) -> pl.Expr:
    """Return whether a time is plausible, which all are of a rank without an interval."""
    return pl.col("first_ns").is_null() | pl.col(name).is_between("first_ns", "last_ns")


def _notes(timeline: Timeline, wrong: pl.DataFrame, times: tuple[str, ...], message: str) -> list[Diagnostic]:
    sources = timeline.ranks.select("rank", "source")
    found = (
        wrong.group_by("rank")
        .agg(pl.len(), pl.first(*times))
        .join(sources, on="rank", how="left")
        .sort("rank")
    )
    return [
        Diagnostic(
            "error",
            message,
            row["source"],
            row["rank"],
            "first: " + ", ".join(f"{name} {row[name]}" for name in times),
            row["len"],
            code="timestamps.implausible",
        )
        for row in found.iter_rows(named=True)
    ]
