"""The contents of a picture of one step, independent of how it is drawn: rows, spans, lanes and waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.model import step_actions
from stagescope.model.bubbles import step_bubbles
from stagescope.model.clock_groups import clock_groups
from stagescope.model.pipelines import find_pipelines
from stagescope.model.simulated import is_in_cost_units, is_simulated, simulated_time_text
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.durations import Axis, Tick, time_axis
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.kinds import ACTION_KINDS, COMPUTE, TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stagescope.model import Timeline
    from stagescope.model.clock_groups import ClockGroup

MINOR_KINDS = ("optimizer", "grad_reduce", "loss")
UNALIGNED = "clock not aligned"
TOUCHING_FRACTION = 1 / 2000
"""Actions that overlap by less than this fraction of the picture (half a pixel) count as touching."""


class ChartSpan(NamedTuple):
    """One row of a chart's `spans`, for code that draws span by span."""

    row: int
    kind: str
    stage: int | None
    chunk: int
    microbatch: int | None
    name: str | None
    start_ns: int
    end_ns: int
    lane: int
    lane_count: int
    strip: bool
    fused: bool

    @property
    def shade(self) -> int:
        """The chunk that determines the shade of the span; only pipeline actions have one."""
        return self.chunk if self.kind in ACTION_KINDS else 0


class Section(NamedTuple):
    """Rows with a common clock, if there are several clocks: the first of them, and their title."""

    row: int
    title: str


@dataclass(frozen=True)
class StepChart:
    """One step, ready to be drawn; times are relative to its first action.

    `spans` has one row per drawn span: row (index into `ranks`), kind, stage, chunk, microbatch, name, start_ns,
    end_ns, lane and lane_count (overlapping actions share the height of their row), strip (runs next to an action, as
    a gradient reduction does), fused (one of the two actions of an overlapped pair that ran as one: both have the
    same start and end). `waits` has row, start_ns, end_ns of the blocking part of each transfer, as far as it is in
    the picture. `in_cost_units` states that times are in units of cost.

    Machines with unaligned clocks are separate `sections`: `ranks` are in their order, and the times of each are
    relative to the first action there. Times of different sections cannot be compared, so there is no bubble.
    `other_rank_count` ranks of the step are not drawn. `origins_ns` is the time 0 of each rank.

    Analysis results are present if they were given (exporters/pictures/figure.py): `idle` has row, start_ns, end_ns
    and cause of idle time, `critical_path` has row, start_ns and end_ns, in order of time; a null row is not drawn.
    """

    step: int | None
    recorded_steps: tuple[int, ...]
    ranks: tuple[int, ...]
    schedules: tuple[str, ...]
    spans: pl.DataFrame
    waits: pl.DataFrame
    start_ns: int
    end_ns: int
    bubble_fraction: float | None
    not_drawn_count: int
    reversed_count: int
    simulated: bool
    in_cost_units: bool
    sections: tuple[Section, ...] = ()
    other_rank_count: int = 0
    origins_ns: Mapping[int, int] = field(default_factory=dict)
    idle: pl.DataFrame | None = None
    critical_path: pl.DataFrame | None = None

    @property
    def length_ns(self) -> int:
        """Time from the left edge of the picture to the right edge."""
        return self.end_ns - self.start_ns

    @cached_property
    def chunk_count(self) -> int:
        """The largest number of model chunks on a rank."""
        return 1 + int(self.spans.select(pl.col("chunk").max().fill_null(0)).item())

    @cached_property
    def microbatch_count(self) -> int:
        """The number of micro-batches of the pipeline actions."""
        return self.spans.filter(pl.col("kind").is_in(ACTION_KINDS))["microbatch"].drop_nulls().n_unique()


def chart_step(timeline: Timeline, step: int | None = None) -> StepChart:
    """Return the chart of `step`, or of the typical step if None.

    Spans without a step are drawn only if no span has one. Raises InputError if the step was not recorded.
    """
    recorded = tuple(timeline.spans["step"].drop_nulls().unique().sort().to_list())
    if step is not None and step not in recorded:
        raise InputError.no_step(step, recorded)
    step = typical_step(timeline) if step is None else step
    spans = timeline.spans.filter(pl.col("step").eq_missing(step))
    reversed_count = spans.filter(pl.col("end_ns") < pl.col("start_ns")).height
    spans = spans.with_columns(pl.max_horizontal("start_ns", "end_ns").alias("end_ns"))
    groups = clock_groups(timeline)
    bubble_fraction = _bubble_fraction(spans, timeline.ranks) if len(groups) <= 1 else None
    origins_ns = _origins_ns(timeline, step, spans, groups)
    spans = from_origins(spans, origins_ns, ("start_ns", "end_ns", "wait_start_ns", "wait_end_ns"))
    ranks = tuple(rank for group in groups for rank in group.ranks)
    drawn = _drawn_spans(spans, ranks)
    start_ns, end_ns = min(0, *_edges(drawn["start_ns"].min())), max(1, *_edges(drawn["end_ns"].max()))
    waits = _waits(spans, ranks, start_ns, end_ns)
    return StepChart(
        step=step,
        recorded_steps=recorded,
        ranks=ranks,
        schedules=tuple(timeline.ranks["schedule"].drop_nulls().unique().sort().to_list()),
        spans=drawn,
        waits=waits,
        start_ns=start_ns,
        end_ns=end_ns,
        bubble_fraction=bubble_fraction,
        not_drawn_count=spans.height - drawn.height - waits.height,
        reversed_count=reversed_count,
        simulated=is_simulated(timeline),
        in_cost_units=is_in_cost_units(timeline),
        sections=_sections(groups),
        origins_ns=origins_ns,
    )


def chart_axis(chart: StepChart, most: int) -> Axis:
    """Return at most `most` evenly spaced marks of the time axis; the unit is empty for units of cost."""
    axis = time_axis(chart.end_ns, most)
    if not chart.in_cost_units:
        return axis
    return Axis("", tuple(Tick(tick.time_ns, time_text(chart, tick.time_ns)) for tick in axis.ticks))


def time_text(chart: StepChart, time_ns: int) -> str:
    """Return a time with its unit, or as a number of units of cost."""
    return simulated_time_text(time_ns, in_cost_units=chart.in_cost_units, decimals=6)


def chart_title(chart: StepChart) -> str:
    """Return the one-line title of a picture: schedule, ranks, micro-batches, step, bubble."""
    ranks = counted(len(chart.ranks) + chart.other_rank_count, "rank")
    shown = f"{len(chart.ranks)} of {ranks}" if chart.other_rank_count else ranks
    facts = [", ".join(chart.schedules)[:60] or "Pipeline", shown]
    if chart.microbatch_count:
        facts.append(counted(chart.microbatch_count, "micro-batch", "micro-batches"))
    if chart.step is not None and not chart.simulated:
        facts.append(f"step {chart.step}")
    if chart.bubble_fraction is not None:
        facts.append(f"bubble {100 * chart.bubble_fraction:.1f} %")
    return " · ".join(facts)


def span_rows(drawn: pl.DataFrame) -> list[ChartSpan]:
    """Return the rows of a chart's `spans` one by one."""
    return [ChartSpan(*values) for values in drawn.select(ChartSpan._fields).iter_rows()]


def typical_step(timeline: Timeline) -> int | None:
    """Return the default step: the one of median duration among those with the most common number of actions.

    None if no span belongs to a step.
    """
    return step_actions.typical_step(step_actions.count_actions(timeline.spans.lazy()).collect())


def _sections(groups: tuple[ClockGroup, ...]) -> tuple[Section, ...]:
    """Return the sections of a picture, empty if all ranks share a clock."""
    if len(groups) <= 1:
        return ()
    rows = accumulate((len(group.ranks) for group in groups), initial=0)
    return tuple(Section(row, f"{group.name}: {UNALIGNED}") for row, group in zip(rows, groups, strict=False))


def from_origins(frame: pl.DataFrame, origins_ns: Mapping[int, int], times: Iterable[str]) -> pl.DataFrame:
    """Return a frame that has `rank`, with its times relative to the rank's origin."""
    origin_ns = pl.col("rank").replace_strict(origins_ns, return_dtype=pl.Int64)
    return frame.with_columns(pl.col(*times) - origin_ns)


def _origins_ns(
    timeline: Timeline, step: int | None, spans: pl.DataFrame, groups: tuple[ClockGroup, ...]
) -> dict[int, int]:
    """Return for each rank when the step began on its clock: at the first action there, where the report's step starts.

    Without actions, it is the recorded start of the step on the first rank that began it, or the first span.
    """
    actions = spans.filter(pl.col("kind").is_in(ACTION_KINDS))
    steps = timeline.steps.filter(pl.col("step").eq_missing(step))
    origins_ns: dict[int, int] = {}
    for group in groups:
        own = pl.col("rank").is_in(group.ranks)
        starts = (frame.filter(own)["start_ns"].min() for frame in (actions, steps, spans))
        start_ns = next((start for start in starts if isinstance(start, int)), 0)
        origins_ns |= dict.fromkeys(group.ranks, start_ns)
    return origins_ns


def _edges(time_ns: object) -> Iterable[int]:
    """Return the time as an argument of min() or max(), empty if there is none."""
    return (time_ns,) if isinstance(time_ns, int) else (0,)


def _waits(spans: pl.DataFrame, ranks: tuple[int, ...], since_ns: int, until_ns: int) -> pl.DataFrame:
    """Return the waits of StepChart, clipped: a receive may have waited since long before the step."""
    waits = spans.filter(
        pl.col("kind").is_in(TRANSFERS),
        pl.col("wait_start_ns") <= until_ns,
        pl.col("wait_end_ns") >= since_ns,
    )
    start_ns, end_ns = (
        pl.col("wait_start_ns").clip(since_ns),
        pl.col("wait_end_ns").clip(upper_bound=until_ns),
    )
    return waits.select(_row(ranks), start_ns=start_ns, end_ns=end_ns)


def _row(ranks: tuple[int, ...]) -> pl.Expr:
    return (
        pl.col("rank")
        .replace_strict(list(ranks), list(range(len(ranks))), return_dtype=pl.Int32)
        .alias("row")
    )


def _drawn_spans(spans: pl.DataFrame, ranks: tuple[int, ...]) -> pl.DataFrame:
    """Return the spans of StepChart, sorted by row and start; strips come after the actions next to them."""
    is_action = pl.col("kind").is_in(ACTION_KINDS)
    shown = (
        is_action
        | pl.col("kind").is_in(MINOR_KINDS)
        | ((pl.col("kind") == "other") & (pl.col("lane") == COMPUTE))
    )
    # Some sources have stages but no chunks: the lowest stage of a rank is then its first chunk.
    chunk = pl.coalesce("chunk", pl.col("stage").rank("dense").over("rank").cast(pl.Int32) - 1, pl.lit(0))
    drawn = spans.filter(shown).select(
        _row(ranks),
        "kind",
        "stage",
        chunk.alias("chunk"),
        "microbatch",
        "pair",
        "name",
        "start_ns",
        "end_ns",
    )
    drawn = drawn.sort("row", "start_ns", "end_ns", maintain_order=True)
    span_ns = drawn.select((pl.col("end_ns").max() - pl.col("start_ns").min()).fill_null(0)).item()
    touching_ns = int(span_ns * TOUCHING_FRACTION)
    actions = _with_lanes(drawn.filter(is_action), touching_ns)
    together = pl.len().over("row", "pair", "start_ns", "end_ns") == 2  # noqa: PLR2004  # a pair is two
    fused = pl.col("pair").is_not_null() & (pl.col("lane_count") == 2) & together  # noqa: PLR2004  # as before
    both = pl.concat([actions, _with_strips(drawn.filter(~is_action), actions, touching_ns)])
    return both.with_columns(fused=fused).drop("pair")


def _with_lanes(actions: pl.DataFrame, touching_ns: int) -> pl.DataFrame:
    """Return the actions with lane and lane_count: more than one lane where actions of a row overlap."""
    reach_ns = pl.col("end_ns").cum_max().shift(1).over("row")
    begins = (pl.col("start_ns") >= reach_ns - touching_ns).fill_null(value=True)
    actions = actions.with_columns(begins.cum_sum().alias("cluster"), pl.lit(0, pl.Int32).alias("lane"))
    crowded = actions["cluster"].is_duplicated()
    lanes = actions["lane"].to_numpy().copy()
    lanes[crowded.to_numpy()] = _pack(actions.filter(crowded), touching_ns)
    return actions.with_columns(pl.Series("lane", lanes, pl.Int32)).with_columns(
        (pl.col("lane").max().over("cluster") + 1).alias("lane_count"), pl.lit(value=False).alias("strip")
    ).drop("cluster")  # fmt: skip


def _pack(actions: pl.DataFrame, touching_ns: int) -> list[int]:
    """Return a lane for each of the overlapping actions: the first free one; a backward below its paired forward."""
    lanes: list[int] = []
    free_from_ns: list[int] = []
    cluster_before = None
    partner = pl.col("pair").is_not_null() & (pl.col("kind") != "forward")
    rows = actions.select("cluster", "start_ns", "end_ns", partner.cast(pl.Int32).alias("wish"))
    for cluster, start_ns, end_ns, wish in rows.iter_rows():
        if cluster != cluster_before:
            cluster_before, free_from_ns = cluster, [start_ns] * 2
        free = [lane for lane, free_ns in enumerate(free_from_ns) if free_ns <= start_ns + touching_ns]
        lane = wish if wish in free else next(iter(free), len(free_from_ns))
        free_from_ns[lane : lane + 1] = [end_ns]
        lanes.append(lane)
    return lanes


def _with_strips(minor: pl.DataFrame, actions: pl.DataFrame, touching_ns: int) -> pl.DataFrame:
    """Return the other spans with `strip` set if an action of the same row runs at the same time."""
    low_ns = min(0, *_edges(actions["start_ns"].min()), *_edges(minor["start_ns"].min()))
    high_ns = max(0, *_edges(actions["end_ns"].max()), *_edges(minor["end_ns"].max()))
    stride_ns = high_ns - low_ns + 2 * touching_ns + 1  # rows one after the other on a single axis
    action_start, action_end = (
        _on_one_axis(actions, name, low_ns, stride_ns) for name in ("start_ns", "end_ns")
    )
    start, end = (_on_one_axis(minor, name, low_ns, stride_ns) for name in ("start_ns", "end_ns"))
    reach = np.concatenate([[-stride_ns], np.maximum.accumulate(action_end)])
    beside = reach[np.searchsorted(action_start, end - touching_ns)] > start + touching_ns
    return minor.with_columns(
        pl.lit(0, pl.Int32).alias("lane"),
        pl.lit(1, pl.Int32).alias("lane_count"),
        pl.Series("strip", beside, pl.Boolean),
    )


def _on_one_axis(
    drawn: pl.DataFrame, name: str, low_ns: int, stride_ns: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return (
        drawn.select(pl.col("row").cast(pl.Int64) * stride_ns + pl.col(name) - low_ns).to_series().to_numpy()
    )


def _bubble_fraction(spans: pl.DataFrame, ranks: pl.DataFrame) -> float | None:
    """Return idle over window of the step, summed over ranks as in the report; None without actions."""
    bubbles = step_bubbles(spans, find_pipelines(spans, ranks))
    window_ns = int(bubbles["window_ns"].sum())
    return int(bubbles["idle_ns"].sum()) / window_ns if window_ns else None
