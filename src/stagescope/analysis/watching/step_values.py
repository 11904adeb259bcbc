"""What each step of a running training took: the values that are watched, by the definitions of the report."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.report import build_report
from stagescope.analysis.statistics.compared_spans import measure_compared
from stagescope.analysis.statistics.run_series import (
    IDEAL_WORK,
    iteration_series,
    link_series,
    rank_series,
    window_series,
)
from stagescope.vocabulary.causes import CAUSES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagescope.model import Timeline

BUBBLE, ITERATION, STEP, PART, RANK, LINK = "bubble", "iteration", "step", "part", "rank", "link"

QUANTITIES: dict[str, bool] = {
    BUBBLE: False,
    **{cause.name: False for cause in CAUSES},
    ITERATION: True,
    STEP: True,
}
"""The quantities that a condition can name, and whether they are times. Causes are fractions of the iteration."""


class Subject(NamedTuple):
    """What a value is about: the whole step, a cause of lost time, a rank, or a link in one direction."""

    kind: str
    part: str | None = None
    rank: int | None = None
    peer: int | None = None
    direction: str | None = None


class StepValues(NamedTuple):
    """The values of one step: times in nanoseconds, and the bubble as a fraction. Unknown values are missing."""

    step: int
    values: Mapping[Subject, float]

    def quantity(self, name: str) -> float | None:
        """Return the value of one of QUANTITIES, None if it is unknown."""
        if QUANTITIES[name] or name == BUBBLE:
            return self.values.get(Subject(name))
        lost, whole = self.values.get(Subject(PART, name)), self.values.get(Subject(ITERATION))
        return None if lost is None or not whole else lost / whole


def within_steps(timeline: Timeline, first: int, last: int) -> Timeline:
    """Return the part of a timeline from step `first` to step `last`, with what was recorded between them."""
    chosen = pl.col("step").is_between(first, last)
    stepped = timeline.spans.filter(chosen)
    between = pl.lit(False)
    if stepped.height:
        begin, end = stepped["start_ns"].min(), stepped["end_ns"].max()
        between = pl.col("step").is_null() & (pl.col("start_ns") >= begin) & (pl.col("end_ns") <= end)
    return replace(
        timeline,
        spans=timeline.spans.filter(chosen | between),
        steps=timeline.steps.filter(chosen),
        counters=timeline.counters.filter(chosen),
    )


class DataRate(NamedTuple):
    """Tokens or samples per second of an iteration, as in the table STEP_DATA."""

    unit: str
    per_second: float


def measure_steps(timeline: Timeline, first: int, last: int) -> tuple[list[StepValues], dict[int, DataRate]]:
    """Return the values of the steps from `first` to `last`, as far as they can be measured, and their data rates.

    `timeline` has at least these steps and the one after the last, which ends its iteration.
    """
    report = build_report(timeline)
    known = report.intermediates
    whole = known.iterations.filter("is_whole")["step"].unique()
    steps = [step for step in range(first, last + 1) if step in set(report.steps["step"])]
    compared = measure_compared(known.timeline.spans, known.windows.pipelines, steps)
    series = pl.concat([
        iteration_series(report.step_losses, known.unrecorded).filter(
            pl.col("step").is_in(whole.implode()) & (pl.col("part") != IDEAL_WORK).fill_null(value=True)
        ),
        window_series(report.steps),
        rank_series(compared.actions),
        link_series(known.timeline, compared.links, steps),
    ]).filter(pl.col("step").is_between(first, last))  # fmt: skip
    bubbles = dict(report.steps.select("step", "bubble_fraction").iter_rows())
    values: dict[int, dict[Subject, float]] = {step: {Subject(BUBBLE): bubbles[step]} for step in steps}
    columns = series.select("step", "value_ns", "subject", "part", "rank", "peer", "kind")
    for step, value_ns, *subject in columns.iter_rows():
        if step in values:
            values[step][Subject(*subject)] = value_ns
    measured = [StepValues(step, found) for step, found in sorted(values.items())]
    rates = report.data.filter(pl.col("step").is_in(steps)).drop_nulls("per_second")
    of_steps = rates.select("step", "unit", "per_second").iter_rows()
    return measured, {step: DataRate(unit, rate) for step, unit, rate in of_steps if step in whole}
