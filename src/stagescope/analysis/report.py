"""The report: where the time of every step and rank went, in a few exact figures."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.completeness.comparable import apart_diagnostics, ranks_apart
from stagescope.analysis.completeness.incomplete_steps import (
    find_incomplete_steps,
    incomplete_step_diagnostics,
)
from stagescope.analysis.completeness.missing_data import errors_first, find_gaps
from stagescope.model.bubbles import DENOMINATOR, step_bubbles
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.pipelines import find_pipelines
from stagescope.model.simulated import is_in_cost_units
from stagescope.vocabulary.kinds import ACTION_KINDS

if TYPE_CHECKING:
    from stagescope.analysis.explanation import Explanation
    from stagescope.analysis.verdict import Verdict
    from stagescope.model import Timeline

FIRST_STEP_RATIO = 1.25
"""How much longer than the median of the others step 0 must be to be left out of the totals."""

FEWEST_OTHER_STEPS = 2


@dataclass(frozen=True)
class StepFigures:
    """One training step over all ranks.

    With several pipelines (data-parallel replicas) the step reaches from the first start to the last end of
    all, `window_ns` is the longest window of one pipeline, and the fraction is idle over window, both summed
    over all ranks.
    """

    step: int
    start_ns: int
    end_ns: int
    window_ns: int
    bubble_fraction: float
    in_totals: bool


@dataclass(frozen=True)
class RankFigures:
    """One rank, summed over the steps in the totals; busy_ns + idle_ns = window_ns."""

    rank: int
    machine: str | None
    stages: tuple[int, ...]
    busy_ns: int
    idle_ns: int
    receive_wait_ns: int
    send_wait_ns: int
    window_ns: int
    bubble_fraction: float


@dataclass(frozen=True)
class BubbleFigures:
    """The bubble of the whole run: idle over window, summed over `steps` and all ranks, and per rank.

    `denominator` says in words what the fractions are fractions of. `fraction` is None when no step was
    recorded.
    """

    fraction: float | None
    per_rank: dict[int, float]
    denominator: str
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Report:
    """The figures of one timeline, and everything that has to be known to trust them, errors first.

    `schedule` is what the run declared; `microbatches` is how many one pipeline ran per step, None where steps or
    pipelines differ or nothing was recorded. `explanation` and `verdict` say why the steps took as long as they did,
    where that was asked for (analysis/explained_report.py). `apart` are the ranks that nothing is said of, because
    the machines of their pipeline are not on one clock (analysis/completeness/comparable.py). `in_cost_units` says
    that times are those of a simulation with relative costs (model/simulated.py).
    """

    steps: tuple[StepFigures, ...]
    ranks: tuple[RankFigures, ...]
    bubble: BubbleFigures
    diagnostics: tuple[Diagnostic, ...]
    schedule: str | None = None
    microbatches: int | None = None
    explanation: Explanation | None = field(default=None, compare=False)
    verdict: Verdict | None = None
    apart: tuple[int, ...] = ()
    in_cost_units: bool = False


def build_report(timeline: Timeline) -> Report:
    """Return the figures of a timeline, without what explains them.

    Every step is listed; the totals leave out step 0 when it is the first of three or more and took more than
    1.25 times the median of the others, because connections are set up and shapes inferred in it; a
    diagnostic says so then. They leave out steps of which a rank lost actions too, as long as there are others.
    Never raises: a timeline without pipeline actions gives a report without steps.
    """
    return report_figures(timeline, measure_windows(timeline))


class Windows(NamedTuple):
    """What find_pipelines and step_bubbles say of the pipelines that can be measured, and the ranks of the others."""

    pipelines: pl.DataFrame
    bubbles: pl.DataFrame
    apart: list[int]


def measure_windows(timeline: Timeline) -> Windows:
    """Return the pipelines of a timeline and the windows of those whose ranks are on one clock."""
    every = find_pipelines(timeline.spans, timeline.ranks)
    apart = ranks_apart(timeline, every)
    pipelines = every.filter(~pl.col("rank").is_in(apart)) if apart else every
    return Windows(pipelines, step_bubbles(timeline.spans, pipelines), apart)


def report_figures(timeline: Timeline, windows: Windows) -> Report:
    """Return what build_report does, where the windows are known."""
    pipelines, bubbles, apart = windows
    per_step = _per_step(bubbles)
    incomplete = find_incomplete_steps(timeline.spans, pipelines) & set(per_step["step"])
    leaves_incomplete = len(incomplete) < per_step.height
    whole = (
        ~pl.col("step").is_in(list(incomplete)) if incomplete and leaves_incomplete else pl.lit(value=True)
    )
    set_up = _set_up_in_first_step(per_step.filter(whole))
    in_totals = whole & (pl.col("step") != 0) if set_up else whole
    steps = tuple(
        StepFigures(**row) for row in per_step.with_columns(in_totals=in_totals).iter_rows(named=True)
    )
    ranks = _per_rank(timeline, bubbles.filter(in_totals))
    gaps = [
        *find_gaps(timeline, bubbles, pipelines),
        *incomplete_step_diagnostics(incomplete, left_out=leaves_incomplete),
    ]
    found = [*gaps, *apart_diagnostics(apart), *set_up]
    said = timeline.with_diagnostics(found).diagnostics
    return Report(
        steps=steps,
        ranks=ranks,
        bubble=_bubble(ranks, tuple(step.step for step in steps if step.in_totals)),
        diagnostics=errors_first(said),
        schedule=_only(timeline.ranks["schedule"]),
        microbatches=_microbatches(timeline.spans, pipelines),
        apart=tuple(apart),
        in_cost_units=is_in_cost_units(timeline),
    )


def _per_step(bubbles: pl.DataFrame) -> pl.DataFrame:
    return (
        bubbles.group_by("step")
        .agg(
            pl.min("window_start_ns").alias("start_ns"),
            pl.max("window_end_ns").alias("end_ns"),
            pl.max("window_ns"),
            _fraction(pl.sum("idle_ns"), pl.sum("window_ns")),
        )
        .sort("step")
    )


def _per_rank(timeline: Timeline, counted: pl.DataFrame) -> tuple[RankFigures, ...]:
    stages = (
        timeline.spans.filter(pl.col("kind").is_in(ACTION_KINDS))
        .group_by("rank")
        .agg(pl.col("stage").drop_nulls().unique().sort().alias("stages"))
    )
    sums = (
        counted.group_by("rank")
        .agg(pl.sum("busy_ns", "idle_ns", "receive_wait_ns", "send_wait_ns", "window_ns"))
        .sort("rank")
    )
    rows = (
        sums.with_columns(_fraction(pl.col("idle_ns"), pl.col("window_ns")))
        .join(timeline.ranks.select("rank", "machine"), on="rank", how="left", maintain_order="left")
        .join(stages, on="rank", how="left", maintain_order="left")
    )
    return tuple(RankFigures(**{**row, "stages": tuple(row["stages"])}) for row in rows.iter_rows(named=True))


def _fraction(idle_ns: pl.Expr, window_ns: pl.Expr) -> pl.Expr:
    """Return idle over window; a window without length has no bubble."""
    return pl.when(window_ns > 0).then(idle_ns / window_ns).otherwise(0.0).alias("bubble_fraction")


def _bubble(ranks: tuple[RankFigures, ...], steps: tuple[int, ...]) -> BubbleFigures:
    window_ns = sum(rank.window_ns for rank in ranks)
    idle_ns = sum(rank.idle_ns for rank in ranks)
    return BubbleFigures(
        fraction=(idle_ns / window_ns if window_ns else 0.0) if steps else None,
        per_rank={rank.rank: rank.bubble_fraction for rank in ranks},
        denominator=DENOMINATOR,
        steps=steps,
    )


def _set_up_in_first_step(per_step: pl.DataFrame) -> list[Diagnostic]:
    """Return why step 0 stays out of the totals; empty when it belongs there or was not recorded."""
    first, others = per_step.filter(pl.col("step") == 0), per_step.filter(pl.col("step") > 0)
    if first.is_empty() or others.height < FEWEST_OTHER_STEPS:
        return []
    first_ns, usual_ns = first["window_ns"][0], median(others["window_ns"])
    if first_ns <= FIRST_STEP_RATIO * usual_ns:
        return []
    longer = (
        f"{first_ns / usual_ns:.2f} times the median of the others" if usual_ns else "longer than all others"
    )
    return [Diagnostic("info", f"step 0 took {longer}; it is listed and left out of the totals")]


def _microbatches(spans: pl.DataFrame, pipelines: pl.DataFrame) -> int | None:
    """Return the micro-batches per step of a pipeline, None where the counts differ."""
    actions = spans.filter(pl.col("kind").is_in(ACTION_KINDS) & pl.col("step").is_not_null())
    counts = (
        actions.join(pipelines, on="rank")
        .group_by("step", "pipeline")
        .agg(pl.col("microbatch").drop_nulls().n_unique())
    )["microbatch"].unique()
    return int(counts[0]) or None if len(counts) == 1 else None


def _only(values: pl.Series) -> str | None:
    """Return the one value that a column has besides null, None where there is none or more."""
    present = values.drop_nulls().unique()
    return str(present[0]) if len(present) == 1 else None
