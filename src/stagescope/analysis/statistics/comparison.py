"""Two runs compared: what became slower or faster, where, and whether that exceeds the variation between steps.

Step 7 of one run has nothing in common with step 7 of the other, so each run is a set of steps, and a difference is one
of means. Its interval (Welch) comes from the variation between the steps of each run; steps that resemble their
neighbors widen it. What all steps of one run have in common, such as the machine, no interval can cover: compare
several runs of the same configuration to see how large that is.

A single step that took far longer than the others widens the interval so much that it hides a clear difference. If
nothing can be claimed about the iteration otherwise, such outliers are left out. They are listed in any case.

Claimed differences exceed a minimum that is worth naming, and at most 5 % of them are expected to be false.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from stagescope.analysis.counters.data_sizes import throughput
from stagescope.analysis.report import build_report
from stagescope.analysis.statistics.configuration import changes_between, find_configuration
from stagescope.analysis.statistics.differences import (
    DEFAULT_LEAST,
    DIFFERENCES,
    LONG_STEPS,
    RUNS,
    Least,
    find_differences,
    find_long_steps,
    without_long_steps,
)
from stagescope.analysis.statistics.run_series import (
    BACKWARDS,
    SUBJECTS,
    action_series,
    find_action_costs,
    fold_unrecorded,
    iteration_series,
    link_series,
    rank_series,
    window_series,
    with_whole_backwards,
)
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.number_ranges import compact_ranges, steps_text, verb

if TYPE_CHECKING:
    from stagescope.analysis.report import Report
    from stagescope.analysis.statistics.configuration import Configuration
    from stagescope.model import Timeline
    from stagescope.vocabulary.steps import Skipped

__all__ = ["DIFFERENCES", "LONG_STEPS", "Comparison", "Least", "compare_runs", "compare_totals"]

ITERATION, MICROBATCH = "iteration", "micro-batch"


Throughput = tuple[str, str, float]


@dataclass(frozen=True)
class Comparison:
    """The table DIFFERENCES, largest first within each subject, and diagnostics about what could not be compared.

    `changes` are clauses about what the runs are, such as another schedule. `per` is what the times are per:
    ``iteration``, or ``micro-batch`` if the runs have different numbers of them. `long_steps` (LONG_STEPS) are
    outliers; `leaves_out` is whether the table is without them, and `other` is the row of the iteration in the other
    way, None without outliers. `least` has the smallest differences worth naming. `throughput` is that of both runs as
    (unit, scope, per_second), see STEP_DATA; None if a run counted no data. `unknown_because` states of both runs why
    their bubble is unknown; empty where it is known.
    """

    table: pl.DataFrame
    diagnostics: tuple[Diagnostic, ...]
    changes: tuple[str, ...] = ()
    per: str = ITERATION
    long_steps: pl.DataFrame | None = None
    leaves_out: bool = False
    other: dict[str, Any] | None = None
    least: Least = DEFAULT_LEAST
    throughput: tuple[Throughput | None, Throughput | None] = (None, None)
    unknown_because: tuple[str, str] = ("", "")

    def __repr__(self) -> str:
        claimed = int(self.table["is_claimed"].sum())
        return f"Comparison({self.table.height} differences, {claimed} of them claimed)"


class _Run(NamedTuple):
    """A run to compare: its report, the steps that count, its configuration and the costs of its actions."""

    report: Report
    steps: list[int]
    configuration: Configuration
    actions: pl.DataFrame


def compare_totals(before: Timeline, after: Timeline, skipped: Skipped | None = None) -> Comparison:
    """Return what compare_runs does for the steps that are in the totals of each run's report.

    `skipped` are further steps to leave out of both runs. A diagnostic lists the steps that are left out.
    """
    diagnostics = []
    runs = []
    for name, timeline in zip(RUNS, (before, after), strict=True):
        report = build_report(timeline, skipped)
        left_out = report.steps.filter(~pl.col("in_totals"))["step"].to_list()
        if left_out:
            be = verb(left_out, "is", "are")
            message = f"{name} run: {steps_text(left_out)} {be} not in the totals; left out"
            diagnostics.append(Diagnostic("info", message, code="comparison.excluded_steps"))
        runs.append(_gather(report, list(report.bubble.steps)))
    found = _compare(runs[0], runs[1], DEFAULT_LEAST)
    return replace(found, diagnostics=(*diagnostics, *found.diagnostics))


def compare_runs(before: Timeline, after: Timeline, least: Least = DEFAULT_LEAST) -> Comparison:
    """Return the differences of `after` from `before` over all their steps.

    The iteration and its parts are those of the pipeline that ended last in each step. Actions are matched by stage and
    kind, and only if both runs have the same number of stages; ranks and links if they hold the same stages. What
    cannot be matched is left out with a diagnostic. Never raises.
    """
    reports = [build_report(run) for run in (before, after)]
    one, other = (_gather(report, report.steps["step"].to_list()) for report in reports)
    return _compare(one, other, least)


def _gather(report: Report, steps: list[int]) -> _Run:
    costs = find_action_costs(report.intermediates.timeline)
    return _Run(report, steps, find_configuration(report, steps), costs.filter(pl.col("step").is_in(steps)))


def _compare(before: _Run, after: _Run, least: Least) -> Comparison:
    one, other, diagnostics = _matched(before, after)
    per = ITERATION
    if before.configuration.microbatches != after.configuration.microbatches:
        per = MICROBATCH
    series, folded = fold_unrecorded((_series(one, per, other), _series(other, per, one)))
    long_steps = find_long_steps(series)
    table = find_differences(*series, least)
    chosen, rest = table, None
    if long_steps.height:
        without = find_differences(*without_long_steps(series, long_steps), least)
        chosen, rest = (table, without) if _is_clear(table) else (without, table)
    return Comparison(
        chosen,
        (*diagnostics, *map(_differs, folded), *_of_each(before, after)),
        tuple(changes_between(before.configuration, after.configuration)),
        per,
        long_steps,
        leaves_out=long_steps.height > 0 and chosen is not table,
        other=None if rest is None else next(rest.iter_rows(named=True), None),
        least=least,
        throughput=(_throughput(before), _throughput(after)),
        unknown_because=(before.report.bubble.unknown_because, after.report.bubble.unknown_because),
    )


def _throughput(run: _Run) -> Throughput | None:
    data, rate = run.report.data, throughput(run.report.data, run.steps)
    return None if rate is None else (data["unit"][0], data["scope"][0], rate)


def _is_clear(table: pl.DataFrame) -> bool:
    """Return whether a difference of the iteration is claimed."""
    return bool(table.filter(pl.col("subject") == SUBJECTS[0])["is_claimed"].any())


def _series(run: _Run, per: str, other: _Run) -> pl.DataFrame:
    """Return all series of a run that the other run can have as well, in the steps that count."""
    intermediates = run.report.intermediates
    series = [iteration_series(intermediates), window_series(intermediates)]
    if run.configuration.stages == other.configuration.stages:
        placed = pl.col("rank").is_in(_ranks_with_same_stages(run.actions, other.actions).implode())
        series += [action_series(run.actions), rank_series(run.actions.filter(placed))]
    every = pl.concat(series)
    if per == MICROBATCH and run.configuration.microbatches:
        every = every.with_columns(pl.col("value_ns") / run.configuration.microbatches)
    if run.configuration.stages == other.configuration.stages:
        links = link_series(intermediates.timeline, run.steps)
        ends = _ranks_with_same_stages(run.actions, other.actions).implode()
        every = pl.concat([every, links.filter(pl.col("rank").is_in(ends) & pl.col("peer").is_in(ends))])
    return every.filter(pl.col("step").is_in(run.steps))


def _ranks_with_same_stages(actions: pl.DataFrame, others: pl.DataFrame) -> pl.Series:
    """Return the ranks that hold the same stages in both runs."""
    held = [
        one.select("rank", "stage")
        .unique()
        .sort("rank", "stage")
        .group_by("rank", maintain_order=True)
        .agg("stage")
        for one in (actions, others)
    ]
    return held[0].join(held[1], on=["rank", "stage"], how="semi")["rank"]


def _matched(before: _Run, after: _Run) -> tuple[_Run, _Run, list[Diagnostic]]:
    """Return both runs with actions that can be matched, and diagnostics about what differs, with the consequence."""
    one, other = before.configuration, after.configuration
    if one.stages != other.stages:
        message = f"{one.stages} and {other.stages} stages: actions, ranks and links are not compared"
        return before, after, [_differs(message)]
    found = []
    if one.microbatches != other.microbatches:
        counts = f"{one.microbatches:g} and {other.microbatches:g} micro-batches per step"
        found.append(_differs(f"{counts}: times are per micro-batch"))
    kinds = [set(run.actions["kind"].unique()) for run in (before, after)]
    if set(BACKWARDS) & kinds[0] != set(BACKWARDS) & kinds[1]:
        before, after = (run._replace(actions=with_whole_backwards(run.actions)) for run in (before, after))
        message = (
            "the runs split backwards differently: both halves together are compared with full backwards"
        )
        found.append(_differs(message))
    ranks = [run.actions["rank"].unique().to_list() for run in (before, after)]
    if set(ranks[0]) != set(ranks[1]):
        shown = " and ".join(compact_ranges(each) for each in ranks)
        found.append(_differs(f"ranks {shown}: only shared ranks are compared"))
    return before, after, found


def _of_each(before: _Run, after: _Run) -> list[Diagnostic]:
    """Return the diagnostics of both ledgers."""
    return [
        replace(one, message=f"{name} run: {one.message}")
        for name, run in zip(RUNS, (before, after), strict=True)
        for one in run.report.intermediates.ledger.diagnostics
    ]


def _differs(message: str) -> Diagnostic:
    return Diagnostic("info", message, code="comparison.differs")
