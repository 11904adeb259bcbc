"""What is measured of the steps in the totals one after the other, so that the results of several ranges are joined.

An analysis belongs here if what it finds in a step depends on that step and the ones next to it. What compares steps
with each other, such as a trend, starts from these results (explanation.py).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.collectives.lateness import Lateness, measure_lateness
from stagescope.analysis.counters.parts import SampledCells, ShownCounters, show_counters
from stagescope.analysis.idle.overlap import OVERLAP, measure_overlap
from stagescope.analysis.idle.phases import STEP_PHASES, cut_phases
from stagescope.analysis.idle.step_windows import windows_of_bubbles
from stagescope.analysis.iteration.outside_activity import OutsideActivity, measure_outside_activity
from stagescope.analysis.iteration.outside_times import measure_own_work
from stagescope.analysis.other_pipelines import spans_of, windows_with
from stagescope.analysis.other_work import find_other_work, sum_other_work
from stagescope.analysis.statistics.action_samples import (
    Sampling,
    StepSamples,
    choose_sampling,
    sample_steps,
    unite_samples,
)
from stagescope.analysis.statistics.link_samples import StepLinks, sample_step_links, unite_links
from stagescope.analysis.statistics.outlier_actions import (
    TimedActions,
    UsualDurations,
    find_outlier_actions,
    learn_durations,
)
from stagescope.analysis.statistics.replicas import find_reduction_waits
from stagescope.analysis.statistics.sample_comparisons import RunSamples, compare_samples
from stagescope.model.large_tables import chosen_rows, united_rows
from stagescope.model.outlines import with_others
from stagescope.model.step_ranges import is_in_steps
from stagescope.vocabulary.kinds import TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from stagescope.analysis.intermediates import Intermediates
    from stagescope.analysis.statistics.sample_comparisons import SampleComparisons
    from stagescope.analysis.statistics.step_trend import OutlierWindows


class ChosenSteps(NamedTuple):
    """The steps in the totals of a run, and those of them that took unusually long, whose messages are kept.

    `sampling` is how the steps are divided into samples if they are few; None: each step is one.
    """

    counted: Collection[int]
    unusual: Collection[int]
    sampling: Sampling | None


def choose_divided_sampling(
    counted: Collection[int], microbatches: Iterable[pl.DataFrame]
) -> Sampling | None:
    """Return how the steps in the totals are divided into samples; None: each step is one.

    `microbatches` is from count_microbatches, some steps after the others.
    """
    is_counted = pl.col("step").is_in(list(counted))
    known = united_rows((rows.filter(is_counted) for rows in microbatches), ["step", "microbatches"])
    sampling = choose_sampling(known["step"], int(known["microbatches"].max() or 0))  # type: ignore[arg-type]
    return sampling if sampling.parts > 1 else None


class WaitResults(NamedTuple):
    """What is found with the actions, their replays or the ledger.

    `overlap` is the table OVERLAP, `outliers` the table OUTLIER_ACTIONS. `waits_inside` are the ranks that wait for
    collectives inside of actions.
    """

    overlap: pl.DataFrame
    outliers: pl.DataFrame
    waits_inside: tuple[int, ...]


class PipelineResults(NamedTuple):
    """What pipelines show without the ledgers of others.

    `samples` and `links` are samples of actions and messages, `messages` those of unusual steps, from match_messages;
    `reduction_waits` is from find_reduction_waits, `phases` is the table STEP_PHASES, `other_work` from
    find_other_work.
    """

    samples: StepSamples
    links: StepLinks
    messages: pl.DataFrame
    reduction_waits: pl.DataFrame
    phases: pl.DataFrame
    other_work: pl.DataFrame
    waits: WaitResults


class OutsideResults(NamedTuple):
    """What is outside of windows, which depends on when all pipelines of an iteration end.

    `own_work` is from measure_own_work, `activity` from measure_outside_activity, `pauses` are those of an
    IterationLedger, `lateness` is the table LATENESS.
    """

    own_work: pl.DataFrame
    activity: OutsideActivity
    pauses: pl.DataFrame
    lateness: pl.DataFrame


class StepResults(NamedTuple):
    """Results of some steps in the totals."""

    pipelines: PipelineResults
    outside: OutsideResults


class JoinedResults(NamedTuple):
    """Results of all steps in the totals, and what compares the samples of all ranges of steps, which is called once.

    `of_steps` has no samples, messages, waits in reductions, pauses and lateness, which take much memory; the last
    three are in other fields: `reduction_waits` and `pauses`, some steps after the others, and `lateness`. `counters`
    is what those of the run show.
    """

    of_steps: StepResults
    compare: Callable[[], SampleComparisons]
    reduction_waits: Iterable[pl.DataFrame]
    pauses: Iterable[pl.DataFrame]
    lateness: Lateness
    counters: ShownCounters


def join_one(
    results: StepResults, known: Intermediates, chosen: ChosenSteps, unusual: OutlierWindows
) -> JoinedResults:
    """Return the results of a run in one range of steps; `unusual` are the unusual ones of `known`."""
    shown = results.pipelines
    samples, links, messages = shown.samples, shown.links, shown.messages
    without = shown._replace(
        samples=samples._replace(table=samples.table.clear()),
        links=links._replace(table=links.table.clear()),
        messages=messages.clear(),
        reduction_waits=shown.reduction_waits.clear(),
    )
    measured = RunSamples([samples], [links], messages, chosen.sampling)
    pauses, lateness = results.outside.pauses, results.outside.lateness
    outside = results.outside._replace(pauses=pauses.clear(), lateness=lateness.clear())
    sampled = SampledCells(known.sample.steps, known.sample.windows.pipelines)
    return JoinedResults(
        StepResults(without, outside),
        partial(compare_samples, known.timeline, known.windows.pipelines, measured, unusual),
        [shown.reduction_waits],
        [pauses],
        Lateness(lateness.select("step").unique(), [lateness]),
        show_counters(known.timeline.counters, chosen.counted, sampled),
    )


def measure_steps(known: Intermediates, chosen: ChosenSteps) -> StepResults:
    """Return the results of the steps in the totals among those of `known`. Never raises."""
    of_pipelines = measure_spans(known, chosen, measure_waits(known, chosen))
    return StepResults(of_pipelines, measure_outside(known, chosen))


def join_results(parts: Sequence[PipelineResults]) -> PipelineResults:
    """Return the results of all pipelines of some steps, given those of some each."""
    if len(parts) == 1:
        return parts[0]
    return PipelineResults(
        samples=unite_samples([each.samples for each in parts]),
        links=unite_links([each.links for each in parts]),
        messages=pl.concat(each.messages for each in parts),
        reduction_waits=pl.concat(each.reduction_waits for each in parts),
        phases=pl.concat(each.phases for each in parts).sort(STEP_PHASES.order, maintain_order=True),
        other_work=sum_other_work(pl.concat(each.other_work for each in parts)),
        waits=join_waits([each.waits for each in parts], pl.concat(each.waits.overlap for each in parts)),
    )


def join_waits(parts: Sequence[WaitResults], overlap: pl.DataFrame) -> WaitResults:
    """Return what is found with the actions of several pipelines or steps, whose `overlap` is given in any order."""
    outliers = pl.concat([each.outliers for each in parts])
    return WaitResults(
        overlap=overlap.sort(OVERLAP.order, maintain_order=True),
        outliers=outliers.sort("excess_ns", descending=True, maintain_order=True),
        waits_inside=tuple(sorted({rank for each in parts for rank in each.waits_inside})),
    )


def measure_waits(known: Intermediates, chosen: ChosenSteps) -> WaitResults:
    """Return what is found with the actions of `known` and their replays, which nothing needs afterwards."""
    spans, bubbles = known.timeline.spans, known.windows.bubbles
    return WaitResults(
        overlap=measure_overlap(spans, bubbles, known.busy, known.actions).filter(_is_counted(known, chosen)),
        outliers=find_outliers(known, chosen.counted),
        waits_inside=tuple(known.actions.inside.every["rank"].unique().sort()),
    )


def measure_spans(known: Intermediates, chosen: ChosenSteps, waits: WaitResults) -> PipelineResults:
    """Return what pipelines show of the steps in the totals, given the result of measure_waits."""
    timeline, is_counted = known.timeline, _is_counted(known, chosen)
    # Transfers are only needed as matched messages. Dropping their spans saves large copies.
    counted = timeline.spans.filter(is_counted & ~pl.col("kind").is_in(TRANSFERS))
    messages = chosen_rows(known.messages, is_counted)
    return PipelineResults(
        samples=sample_steps(counted, chosen.sampling),
        links=sample_step_links(messages, chosen.sampling),
        messages=messages.filter(pl.col("step").is_in(list(chosen.unusual))),
        reduction_waits=_reduction_waits(known, chosen, counted),
        phases=cut_phases(counted, known.windows.bubbles.filter(is_counted), known.busy),
        other_work=find_other_work(counted, known.busy),
        waits=waits,
    )


def _reduction_waits(known: Intermediates, chosen: ChosenSteps, counted: pl.DataFrame) -> pl.DataFrame:
    """Return the result of find_reduction_waits for the pipelines of `known`, whose counted spans are given."""
    others, everywhere = spans_of(known.others), windows_with(known.windows, known.others)
    is_counted = _is_counted(known, chosen)
    every = with_others(counted, None if others is None else others.filter(is_counted))
    windows = windows_of_bubbles(everywhere.bubbles.filter(is_counted))
    waits = find_reduction_waits(known.timeline.with_spans(every), windows, everywhere.pipelines)
    return waits.filter(pl.col("pipeline").is_in(known.windows.pipelines["pipeline"].unique().implode()))


def measure_outside(known: Intermediates, chosen: ChosenSteps) -> OutsideResults:
    """Return what is outside of the windows of the steps in the totals."""
    is_counted = _is_counted(known, chosen)
    windows, unions = known.windows.bubbles.filter(is_counted), known.between_steps.unions
    return OutsideResults(
        own_work=measure_own_work(windows, known.iteration_steps, unions),
        activity=measure_outside_activity(known.timeline.spans, known.iterations.filter(is_counted)),
        pauses=known.iteration_ledger.pauses.filter(is_counted),
        lateness=measure_lateness(
            known.meetings, known.iteration_steps.filter(is_counted), known.windows.pipelines
        ),
    )


def _is_counted(known: Intermediates, chosen: ChosenSteps) -> pl.Expr:
    return pl.col("step").is_in(list(chosen.counted)) & is_in_steps(known.steps)


def usual_durations(known: Intermediates, steps: Collection[int]) -> UsualDurations:
    """Return how long actions usually take in `steps`, those in the totals of the run."""
    if known.usual is not None and known.usual.durations is not None:
        return known.usual.durations
    return learn_durations(_timed(known.sample), steps, known.sample.sample_ratio)


def find_outliers(known: Intermediates, steps: Collection[int]) -> pl.DataFrame:
    """Return the table OUTLIER_ACTIONS of the actions of `known` in `steps`, those in the totals of the run."""
    usual = usual_durations(known, steps)
    return find_outlier_actions(_timed(known), known.basis, usual, steps, known.timeline.spans)


def _timed(known: Intermediates) -> TimedActions:
    return TimedActions(known.actions, known.costs.classes.length_of_action)
