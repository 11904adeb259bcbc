"""The report: where the time of every step and rank went, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.bubble import measure_bubble
from stagescope.analysis.collectives.summary import sum_collectives, summarize_kinds, summarize_ranks
from stagescope.analysis.completeness.inferred_pipelines import (
    NO_PIPELINE,
    inferred_pipeline_diagnostics,
    is_no_pipeline,
    no_pipeline_diagnostics,
)
from stagescope.analysis.completeness.missing_data import errors_first, find_missing_data
from stagescope.analysis.completeness.missing_ranks import missing_rank_diagnostics
from stagescope.analysis.completeness.unaligned import unaligned_diagnostics
from stagescope.analysis.counters.data_sizes import measure_step_data, throughput
from stagescope.analysis.counters.memory import measure_rank_memory
from stagescope.analysis.explanation import explain
from stagescope.analysis.findings import find_findings
from stagescope.analysis.idle.interval_culprits import name_interval_culprits
from stagescope.analysis.idle.step_windows import windows_alike
from stagescope.analysis.intermediates import intermediates_of
from stagescope.analysis.iteration.accumulation import unite_steps
from stagescope.analysis.iteration.culprit_sums import CausesOfSteps
from stagescope.analysis.iteration.culprits import find_culprits
from stagescope.analysis.iteration.last_pipeline import measure_losses_of_steps
from stagescope.analysis.kernels.communication import (
    measure_kernel_communication,
    summarize_kernel_communication,
)
from stagescope.analysis.prediction.ideal import declared_schedule
from stagescope.analysis.sampled_steps import sample_diagnostics
from stagescope.analysis.slowdown.slowdowns import measure_slowdowns
from stagescope.analysis.statistics.step_lengths import measure_step_lengths
from stagescope.analysis.statistics.step_trend import find_outlier_windows
from stagescope.analysis.statistics.transfer_totals import measure_transfers
from stagescope.analysis.totals import measure_totals
from stagescope.analysis.unrecorded import losses_without_unrecorded, without_unrecorded
from stagescope.analysis.verdict import Verdict, give_verdict
from stagescope.model.diagnostics import diagnostics_table
from stagescope.model.large_tables import united_rows
from stagescope.model.lazy import TableParts, parts_of
from stagescope.model.messages import match_messages
from stagescope.model.simulated import is_in_cost_units

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from stagescope.analysis.bubble import Bubble
    from stagescope.analysis.collectives.summary import CollectiveSums
    from stagescope.analysis.explanation import Explanation
    from stagescope.analysis.intermediates import Intermediates
    from stagescope.model import Timeline
    from stagescope.model.diagnostics import Diagnostic
    from stagescope.vocabulary.steps import Skipped

WIDEST_REPR = 8
"""Ranks that repr shows; the rest is counted."""


def _saved_or(compute: Callable[[Report], pl.DataFrame]) -> cached_property[pl.DataFrame]:
    """Return a property that is computed on first use, or loaded in a report that was saved (saved_report.py)."""

    def table(report: Report) -> pl.DataFrame:
        load = report.saved.get(compute.__name__)
        return compute(report) if load is None else load()

    table.__doc__ = compute.__doc__
    return cached_property(table)


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """Where the time of a run went. Its tables are Polars DataFrames with declared columns (docs/analysis-tables.md).

    `steps` (REPORT_STEPS) and `ranks` (REPORT_RANKS) are always computed. `stages`, `losses`, `culprits`, `outliers`,
    `findings`, `improvements`, `late_ranks`, `collective_kinds` and `collective_ranks` are about the steps in the
    totals; `ledger`, `iterations`, `collectives`, `idle`, `critical_path` and `slack` have rows for all steps that
    could be measured (`steps` has `in_totals`). These are computed on first use, once, and shared with every export.

    `transfers` sums the messages between ranks over all steps. `memory` and `data` come from counters,
    `kernel_communication` and `kernel_communication_kinds` from kernels; they cover all steps, and are empty where none
    were recorded or read.

    `timeline` is the run that was analyzed. `bubble` is the idle fraction of the windows; `bubble.definitions` has
    other definitions of it. `diagnostics` is everything needed to judge the numbers, errors first. `schedule` is what
    the run declared; `microbatches` is how many one pipeline ran per step, None if steps or pipelines differ.
    `unaligned` are ranks without metrics, because the machines of their pipeline are not on one clock. `in_cost_units`
    marks a simulation with relative costs (model/simulated.py). `explanation` and `verdict` are None in a report
    without explanation (`analyze(run, explain=False)`). `saved` loads tables that were saved, by name.
    `pieces` yield the rows of tables that are larger than memory, by their names in analysis/saved.
    """

    steps: pl.DataFrame
    ranks: pl.DataFrame
    bubble: Bubble
    diagnostics: tuple[Diagnostic, ...]
    timeline: Timeline
    intermediates: Intermediates
    schedule: str | None = None
    microbatches: int | None = None
    unaligned: tuple[int, ...] = ()
    in_cost_units: bool = False
    explanation: Explanation | None = field(default=None)
    verdict: Verdict | None = None
    saved: Mapping[str, Callable[[], pl.DataFrame]] = field(default_factory=dict)
    pieces: Mapping[str, Callable[[], Iterator[pl.DataFrame]]] = field(default_factory=dict)

    @property
    def stage_count(self) -> int:
        """How many stages the run has; the number of ranks if no stage was recorded."""
        return self.ranks["stages"].explode().drop_nulls().n_unique() or self.ranks.height

    @property
    def steps_per_iteration(self) -> int:
        """How many steps of the schedule an iteration has: more than 1 if gradients are accumulated over them."""
        if self.explanation is not None:
            return self.explanation.steps_per_iteration
        return self.intermediates.accumulation.size_among(self.bubble.steps)

    @_saved_or
    def step_lengths(self) -> pl.DataFrame:
        """The table STEP_LENGTHS: length and bubble of every step, and by how much outliers are longer than usual."""
        if self.explanation is not None:
            return measure_step_lengths(self.steps, self.explanation.trends.outliers)
        chosen = pl.col("step").is_in(list(self.bubble.steps))
        windows = windows_alike(self.intermediates.step_windows.filter(chosen))
        return measure_step_lengths(self.steps, find_outlier_windows([windows]).windows)

    @property
    def stages(self) -> pl.DataFrame:
        """The table STAGE_WORK: what one micro-batch costs on every stage."""
        return self._explained.stage_work

    @_saved_or
    def ledger(self) -> pl.DataFrame:
        """The table LEDGER: the step of every pipeline, divided among ideal work and causes of lost time."""
        return without_unrecorded(self.intermediates.ledger.steps, self.intermediates.unrecorded)

    @_saved_or
    def iterations(self) -> pl.DataFrame:
        """The table ITERATIONS: the iteration time of every rank, divided among compute and causes of lost time."""
        known = self.intermediates
        return without_unrecorded(unite_steps(known.iterations, known.accumulation), known.unrecorded)

    @_saved_or
    def losses(self) -> pl.DataFrame:
        """The table LOSSES: what the iterations of the last pipelines consist of, over the steps in the totals."""
        return losses_without_unrecorded(self._explained.losses, self.intermediates.unrecorded)

    @_saved_or
    def step_losses(self) -> pl.DataFrame:
        """The table STEP_LOSSES: what the iteration of the last pipeline consists of, in every step."""
        return measure_losses_of_steps(self.intermediates)

    @_saved_or
    def culprits(self) -> pl.DataFrame:
        """The table CULPRITS: which rank or link makes which rank idle, by cause, over the steps in the totals."""
        found, ledger = self._explained, self.intermediates.ledger
        iterations = found.iterations
        of_steps = CausesOfSteps(iterations, ledger.steps, ledger.ranks, ledger.origins)
        members = iterations.select("pipeline", "rank").unique()
        return find_culprits([of_steps], members, found.outside_culprits, found.steps_per_iteration)

    @property
    def outliers(self) -> pl.DataFrame:
        """The table OUTLIER_ACTIONS: actions that took far longer than usual, and what they cost."""
        return self._explained.outliers

    @cached_property
    def idle(self) -> pl.DataFrame:
        """The table IDLE_INTERVALS: every idle interval of every rank, with cause, culprit and what it waited for."""
        known = self.intermediates
        return name_interval_culprits(
            known.idle_intervals, known.actions, known.inputs, known.ledger, known.basis
        )

    @property
    def critical_path(self) -> pl.DataFrame:
        """The table CRITICAL_PATH of every pipeline and step."""
        return self.intermediates.critical_path

    @property
    def slack(self) -> pl.DataFrame:
        """The table SLACK: how much later every action could have ended without a longer step."""
        return self.intermediates.slack

    @_saved_or
    def findings(self) -> pl.DataFrame:
        """The table FINDINGS: stragglers, slow links, outlier actions and steps, trends and slow replicas."""
        return find_findings(self._explained)

    @property
    def improvements(self) -> pl.DataFrame:
        """The table IMPROVEMENTS: changes that would shorten an iteration, fixes first."""
        return self._explained.improvements

    @property
    def collectives(self) -> pl.DataFrame:
        """The table COLLECTIVES: every recorded collective on every rank, and who arrived last."""
        return self.intermediates.collectives

    @property
    def late_ranks(self) -> pl.DataFrame:
        """The table LATE_RANKS: ranks for which others waited at collectives between two steps."""
        return self._explained.late_ranks

    @_saved_or
    def collective_kinds(self) -> pl.DataFrame:
        """The table COLLECTIVE_KINDS: exposed and hidden time per kind of group and operation."""
        iterations = len(self.bubble.steps) // self.steps_per_iteration
        return summarize_kinds(self._collective_sums, iterations)

    @_saved_or
    def collective_ranks(self) -> pl.DataFrame:
        """The table COLLECTIVE_RANKS: how often and by how much every rank came last."""
        return summarize_ranks(self._collective_sums)

    @_saved_or
    def latest_collectives(self) -> pl.DataFrame:
        """The collectives in the totals to which a rank came latest after the others, at most 100, one row each."""
        return self._collective_sums.latest

    @cached_property
    def _collective_sums(self) -> CollectiveSums:
        is_counted = pl.col("step").is_in(list(self.bubble.steps))
        parts = parts_of(self.intermediates, "collectives")
        return sum_collectives(TableParts(parts, lambda rows: rows.filter(is_counted)))

    @_saved_or
    def transfers(self) -> pl.DataFrame:
        """The table TRANSFER_TOTALS: what every rank sent to every other one, over all steps."""
        if self.unaligned:  # they exchange messages as well
            return measure_transfers(match_messages(self.timeline.spans))
        return self.intermediates.transfers

    @_saved_or
    def slowdowns(self) -> pl.DataFrame:
        """The table SLOWDOWNS: S, S_t, S_w, M_S and M_W of ByteDance's what-if analysis."""
        sample = self.intermediates.sample
        timeline = sample.timeline.with_spans(sample.own_spans)
        every = None if sample.others is None else self.intermediates.windows.pipelines["pipeline"]
        return measure_slowdowns(timeline, sample.windows.pipelines, self.bubble.steps, every)

    @_saved_or
    def kernel_communication(self) -> pl.DataFrame:
        """The table KERNEL_COMMUNICATION: exposed and hidden communication of every action and overlapped pair."""
        return measure_kernel_communication(self.timeline.kernels)

    @_saved_or
    def kernel_communication_kinds(self) -> pl.DataFrame:
        """The table KERNEL_COMMUNICATION_KINDS: the same for each kind of action, for pairs, and for the run."""
        return summarize_kernel_communication(self.timeline.kernels, self.kernel_communication)

    @_saved_or
    def memory(self) -> pl.DataFrame:
        """The table RANK_MEMORY: the most memory that each rank used, as far as counters were recorded."""
        return measure_rank_memory(self.timeline.counters)

    @_saved_or
    def data(self) -> pl.DataFrame:
        """The table STEP_DATA: tokens or samples of every step whose data were counted, also per second."""
        known = self.intermediates
        pipelines, ranks = known.windows.pipelines, self.timeline.ranks
        return measure_step_data(self.timeline.counters, pipelines, ranks, known.iteration_steps)

    @property
    def throughput(self) -> float | None:
        """Tokens or samples per second of the iterations in the totals; None if they are unknown."""
        return throughput(self.data, self.bubble.steps)

    @cached_property
    def _explained(self) -> Explanation:
        return self.explanation or explain(self.intermediates, self.bubble.steps)

    def __repr__(self) -> str:
        fraction = self.bubble.fraction
        bubble = "no steps" if fraction is None else f"bubble {100 * fraction:.1f} %"
        head = str(self.verdict) if self.verdict else f"{self.ranks.height} ranks, {bubble}"
        shown = self.ranks.head(WIDEST_REPR).select("rank", "busy_ns", "idle_ns", "bubble_fraction")
        lines = [f"{'rank':>6} {'busy ms':>10} {'idle ms':>10} {'bubble':>7}"] if shown.height else []
        lines += [
            f"{rank:>6} {busy_ns / 1e6:>10.4g} {idle_ns / 1e6:>10.4g} {100 * share:>5.1f} %"
            for rank, busy_ns, idle_ns, share in shown.iter_rows()
        ]
        hidden = self.ranks.height - shown.height
        return "\n".join([f"Report: {head}", *lines, *([f"... {hidden} more ranks"] if hidden else [])])


def build_report(timeline: Timeline, skipped: Skipped | None = None) -> Report:
    """Return the metrics of a timeline, without explanation and verdict.

    Every step is listed; the totals leave out a slow first step, incomplete steps (measure_totals) and `skipped` ones,
    and a diagnostic lists them. Never raises: a timeline without forward or backward actions gives a report without
    steps.
    """
    return report_of(timeline, intermediates_of(timeline), skipped)


def report_of(timeline: Timeline, intermediates: Intermediates, skipped: Skipped | None = None) -> Report:
    """Return the metrics of a timeline, given its intermediate results; see build_report."""
    unaligned, sample = intermediates.windows.unaligned, intermediates.sample
    sampled, every = (each.windows.pipelines["pipeline"].n_unique() for each in (sample, intermediates))
    totals = measure_totals(intermediates, skipped)
    found = [
        *inferred_pipeline_diagnostics(timeline),
        *find_missing_data(intermediates, timeline),
        *missing_rank_diagnostics(intermediates.missing),
        *sample_diagnostics(sample.steps, sample.sample_ratio, (sampled, every)),
        *unaligned_diagnostics(unaligned),
        *totals.diagnostics,
    ]
    return Report(
        steps=totals.steps,
        ranks=totals.ranks,
        bubble=measure_bubble(intermediates, totals.counted),
        diagnostics=errors_first(timeline.with_diagnostics(found).diagnostics),
        timeline=timeline,
        intermediates=intermediates,
        schedule=declared_schedule(timeline.ranks),
        microbatches=_microbatches(parts_of(intermediates, "microbatch_counts")),
        unaligned=tuple(unaligned),
        in_cost_units=is_in_cost_units(timeline),
    )


def build_explained_report(
    timeline: Timeline, layers: tuple[int, ...] = (), skipped: Skipped | None = None
) -> Report:
    """Return the report of a timeline with `explanation` and `verdict`; see build_report for its metrics.

    `layers` are the layers of every stage or their total. Its diagnostics include what the analyses could not use, or
    that the run is no pipeline. Never raises.
    """
    report = build_report(timeline, skipped)
    return explained(report, explain(report.intermediates, report.bubble.steps, layers))


def explained(report: Report, explanation: Explanation) -> Report:
    """Return a report with its explanation and its verdict."""
    bubbles = report.intermediates.windows.parts
    no_pipeline = is_no_pipeline(bubbles, report.stage_count, report.microbatches)
    found = no_pipeline_diagnostics() if no_pipeline else []
    diagnostics = diagnostics_table([*report.diagnostics, *explanation.diagnostics, *found])
    return replace(
        report,
        explanation=explanation,
        verdict=Verdict(NO_PIPELINE, "", ()) if no_pipeline else give_verdict(report, explanation),
        diagnostics=errors_first(diagnostics),
    )


def unexplained(report: Report) -> Report:
    """Return a report without what `explained` added: what build_report returns for the same timeline."""
    if report.explanation is None or report.verdict is None:
        return report
    found = no_pipeline_diagnostics() if report.verdict.why == NO_PIPELINE else []
    added = Counter(each.severity for each in (*report.explanation.diagnostics, *found))
    own: list[Diagnostic] = []
    # They were appended before a stable sort by severity, so that they are the last ones of each severity.
    for each in reversed(report.diagnostics):
        if added[each.severity]:
            added[each.severity] -= 1
        else:
            own.append(each)
    return replace(report, explanation=None, verdict=None, diagnostics=tuple(reversed(own)))


def _microbatches(counted: Iterable[pl.DataFrame]) -> int | None:
    """Return the micro-batches per step of a pipeline; None if the counts differ."""
    counts = united_rows(counted, ["microbatches"]).to_series()
    return int(counts[0]) or None if len(counts) == 1 else None
