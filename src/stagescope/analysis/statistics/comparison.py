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
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from stagescope.analysis.counters.data_sizes import throughput
from stagescope.analysis.report import build_report
from stagescope.analysis.statistics.compared_spans import (
    BACKWARDS,
    choose_compared,
    measure_compared,
    with_whole_backwards,
)
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
    SUBJECTS,
    action_series,
    fold_unrecorded,
    iteration_series,
    link_series,
    rank_series,
    window_series,
)
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.number_ranges import compact_ranges, steps_text, verb

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.analysis.explanation import Explanation
    from stagescope.analysis.intermediates import Intermediates
    from stagescope.analysis.report import Report
    from stagescope.analysis.statistics.compared_spans import ComparedSpans
    from stagescope.analysis.statistics.configuration import Configuration
    from stagescope.model import Timeline
    from stagescope.vocabulary.steps import Skipped

__all__ = [
    "DIFFERENCES", "LONG_STEPS", "ComparedRun", "Comparison", "Least", "compare_runs", "compare_totals",
    "gather_run", "gather_totals",
]  # fmt: skip

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


class ComparedRun(NamedTuple):
    """A run to compare: the metrics of its report, the steps that count, and what is needed of its spans.

    `excluded` are steps of the run that are left out because they are not in the totals.
    """

    report: Report
    steps: list[int]
    spans: ComparedSpans
    configuration: Configuration
    excluded: tuple[int, ...] = ()

    @property
    def known(self) -> Explanation | Intermediates:
        """What has the ledger, and what was not recorded; a report that was saved has its explanation."""
        return self.report.explanation or self.report.intermediates


def gather_run(timeline: Timeline, skipped: Skipped | None = None) -> ComparedRun:
    """Return what is compared of a run: the steps in the totals of its report, without those that are `skipped`."""
    report = build_report(timeline, skipped)
    return gather_totals(report, partial(_measured, report))


def gather_totals(report: Report, measure: Callable[[list[int]], ComparedSpans]) -> ComparedRun:
    """Return the same, given the report, and a function that returns what is compared of the spans in some steps."""
    excluded = report.steps.filter(~pl.col("in_totals"))["step"].to_list()
    return _gather(report, measure, list(report.bubble.steps))._replace(excluded=tuple(excluded))


def compare_totals(before: ComparedRun, after: ComparedRun) -> Comparison:
    """Return the differences of `after` from `before` over their steps; a diagnostic lists those that are left out.

    Other than that, this is as in compare_runs.
    """
    diagnostics = []
    for name, run in zip(RUNS, (before, after), strict=True):
        if run.excluded:
            be = verb(run.excluded, "is", "are")
            message = f"{name} run: {steps_text(run.excluded)} {be} not in the totals; left out"
            diagnostics.append(Diagnostic("info", message, code="comparison.excluded_steps"))
    found = _compare(before, after, DEFAULT_LEAST)
    return replace(found, diagnostics=(*diagnostics, *found.diagnostics))


def compare_runs(before: Timeline, after: Timeline, least: Least = DEFAULT_LEAST) -> Comparison:
    """Return the differences of `after` from `before` over all their steps.

    The iteration and its parts are those of the pipeline that ended last in each step. Actions are matched by stage and
    kind, and only if both runs have the same number of stages; ranks and links if they hold the same stages. What
    cannot be matched is left out with a diagnostic. Never raises.
    """
    reports = [build_report(run) for run in (before, after)]
    one, other = (_gather(each, partial(_measured, each), each.steps["step"].to_list()) for each in reports)
    return _compare(one, other, least)


def _measured(report: Report, steps: list[int]) -> ComparedSpans:
    known = report.intermediates
    return measure_compared(known.timeline.spans, known.windows.pipelines, steps)


def _gather(report: Report, measure: Callable[[list[int]], ComparedSpans], steps: list[int]) -> ComparedRun:
    spans = measure(choose_compared(steps, report.ranks.height))
    return ComparedRun(report, steps, spans, find_configuration(report, spans, steps))


def _compare(before: ComparedRun, after: ComparedRun, least: Least) -> Comparison:
    (one, other), diagnostics = _matched_actions(before, after)
    per = ITERATION
    if before.configuration.microbatches != after.configuration.microbatches:
        per = MICROBATCH
    placed = None
    if before.configuration.stages == after.configuration.stages:
        placed = _ranks_with_same_stages(one, other)
    series, folded = fold_unrecorded((_series(before, one, per, placed), _series(after, other, per, placed)))
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


def _throughput(run: ComparedRun) -> Throughput | None:
    data, rate = run.report.data, throughput(run.report.data, run.steps)
    return None if rate is None else (data["unit"][0], data["scope"][0], rate)


def _is_clear(table: pl.DataFrame) -> bool:
    """Return whether a difference of the iteration is claimed."""
    return bool(table.filter(pl.col("subject") == SUBJECTS[0])["is_claimed"].any())


def _series(run: ComparedRun, actions: pl.DataFrame, per: str, placed: pl.Series | None) -> pl.DataFrame:
    """Return all series of a run that the other run can have as well, in the steps that count.

    `placed` are the ranks with the same stages in both, None if the numbers of stages differ.
    """
    report = run.report
    series = [iteration_series(report.step_losses, run.known.unrecorded), window_series(report.steps)]
    if placed is not None:
        series += [
            action_series(actions),
            rank_series(actions.filter(pl.col("rank").is_in(placed.implode()))),
        ]
    every = pl.concat(series)
    if per == MICROBATCH and run.configuration.microbatches:
        every = every.with_columns(pl.col("value_ns") / run.configuration.microbatches)
    if placed is not None:
        links = link_series(report.timeline, run.spans.links, run.steps)
        is_placed = (pl.col(end).is_in(placed.implode()) for end in ("rank", "peer"))
        every = pl.concat([every, links.filter(*is_placed)])
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


def _matched_actions(
    before: ComparedRun, after: ComparedRun
) -> tuple[tuple[pl.DataFrame, pl.DataFrame], list[Diagnostic]]:
    """Return the actions of both runs that can be matched, and diagnostics about what differs, with the consequence."""
    runs, actions = (before.configuration, after.configuration), (before.spans.actions, after.spans.actions)
    if runs[0].stages != runs[1].stages:
        message = f"{runs[0].stages} and {runs[1].stages} stages: actions, ranks and links are not compared"
        return actions, [_differs(message)]
    found = []
    if runs[0].microbatches != runs[1].microbatches:
        counts = f"{runs[0].microbatches:g} and {runs[1].microbatches:g} micro-batches per step"
        found.append(_differs(f"{counts}: times are per micro-batch"))
    kinds = [set(each["kind"].unique()) for each in actions]
    if set(BACKWARDS) & kinds[0] != set(BACKWARDS) & kinds[1]:
        actions = (with_whole_backwards(actions[0]), with_whole_backwards(actions[1]))
        message = (
            "the runs split backwards differently: both halves together are compared with full backwards"
        )
        found.append(_differs(message))
    ranks = [each["rank"].unique().to_list() for each in actions]
    if set(ranks[0]) != set(ranks[1]):
        shown = " and ".join(compact_ranges(each) for each in ranks)
        found.append(_differs(f"ranks {shown}: only shared ranks are compared"))
    return actions, found


def _of_each(before: ComparedRun, after: ComparedRun) -> list[Diagnostic]:
    """Return the diagnostics of both ledgers, and of how both runs are compared."""
    return [
        replace(one, message=f"{name} run: {one.message}")
        for name, run in zip(RUNS, (before, after), strict=True)
        for one in (*run.known.ledger.diagnostics, *_sampled(run))
    ]


def _sampled(run: ComparedRun) -> list[Diagnostic]:
    compared, every = len(choose_compared(run.steps, run.report.ranks.height)), len(run.steps)
    if compared == every:
        return []
    message = f"actions, ranks and links are compared in {compared:,} of {every:,} steps, evenly over the run"
    return [Diagnostic("info", message, code="samples.skipped")]


def _differs(message: str) -> Diagnostic:
    return Diagnostic("info", message, code="comparison.differs")
