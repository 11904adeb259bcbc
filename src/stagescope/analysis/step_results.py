"""What is measured of the steps in the totals one after the other, so that the results of several ranges are joined.

An analysis belongs here if what it finds in a step depends on that step and the ones next to it. What compares steps
with each other, such as a trend, starts from these results (explanation.py).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.idle.overlap import measure_overlap
from stagescope.analysis.idle.phases import cut_phases
from stagescope.analysis.idle.step_windows import windows_of_bubbles
from stagescope.analysis.iteration.outside_activity import OutsideActivity, measure_outside_activity
from stagescope.analysis.iteration.outside_times import measure_own_work
from stagescope.analysis.other_work import find_other_work
from stagescope.analysis.statistics.action_samples import FEWEST_SAMPLES, StepSamples, sample_steps
from stagescope.analysis.statistics.link_samples import StepLinks, sample_step_links
from stagescope.analysis.statistics.outlier_actions import (
    TimedActions,
    UsualDurations,
    find_outlier_actions,
    learn_durations,
)
from stagescope.analysis.statistics.replicas import find_reduction_waits
from stagescope.analysis.statistics.sample_comparisons import RunSamples, compare_samples
from stagescope.model.large_tables import chosen_rows
from stagescope.model.step_ranges import is_in_steps
from stagescope.vocabulary.kinds import TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from stagescope.analysis.intermediates import Intermediates
    from stagescope.analysis.statistics.sample_comparisons import SampleComparisons
    from stagescope.analysis.statistics.step_trend import OutlierWindows


class ChosenSteps(NamedTuple):
    """The steps in the totals of a run, and those of them that took unusually long, whose messages are kept."""

    counted: Collection[int]
    unusual: Collection[int]


class StepResults(NamedTuple):
    """Results of some steps in the totals.

    `samples` and `links` are samples of actions and messages, `messages` those of unusual steps, from match_messages;
    `reduction_waits` is from find_reduction_waits, `phases` is the table STEP_PHASES, `overlap` the table OVERLAP,
    `other_work` from find_other_work, `own_work` from measure_own_work, `activity` from measure_outside_activity,
    `pauses` are those of an IterationLedger, and `outliers` is the table OUTLIER_ACTIONS. `waits_inside` are the ranks
    that wait for collectives inside of actions.
    """

    samples: StepSamples
    links: StepLinks
    messages: pl.DataFrame
    reduction_waits: pl.DataFrame
    phases: pl.DataFrame
    overlap: pl.DataFrame
    other_work: pl.DataFrame
    own_work: pl.DataFrame
    activity: OutsideActivity
    pauses: pl.DataFrame
    outliers: pl.DataFrame
    waits_inside: tuple[int, ...]


class JoinedResults(NamedTuple):
    """Results of all steps in the totals, and what compares the samples of all ranges of steps, which is called once.

    `of_steps` has no samples and no messages, which take much memory.
    """

    of_steps: StepResults
    compare: Callable[[], SampleComparisons]


def join_one(results: StepResults, known: Intermediates, unusual: OutlierWindows) -> JoinedResults:
    """Return the results of a run in one range of steps; `unusual` are the unusual ones of `known`."""
    samples, links = results.samples, results.links
    of_steps = results._replace(
        samples=samples._replace(table=samples.table.clear(), actions=samples.actions.clear()),
        links=links._replace(table=links.table.clear(), messages=links.messages.clear()),
        messages=results.messages.clear(),
    )
    measured = RunSamples([samples], [links], results.messages)
    return JoinedResults(
        of_steps, partial(compare_samples, known.timeline, known.windows.pipelines, measured, unusual)
    )


def measure_steps(known: Intermediates, chosen: ChosenSteps) -> StepResults:
    """Return the results of the steps in the totals among those of `known`. Never raises."""
    return measure_spans(known, chosen, measure_waits(known, chosen))


class WaitResults(NamedTuple):
    """Those of StepResults that are found with the actions, their replays or the ledger."""

    overlap: pl.DataFrame
    pauses: pl.DataFrame
    outliers: pl.DataFrame
    waits_inside: tuple[int, ...]


def measure_waits(known: Intermediates, chosen: ChosenSteps) -> WaitResults:
    """Return the first part of `measure_steps`, after which the actions of `known` and their replays are not used."""
    is_counted = _is_counted(known, chosen)
    spans, bubbles = known.timeline.spans, known.windows.bubbles
    return WaitResults(
        overlap=measure_overlap(spans, bubbles, known.busy, known.actions).filter(is_counted),
        pauses=known.iteration_ledger.pauses.filter(is_counted),
        outliers=find_outliers(known, chosen.counted),
        waits_inside=tuple(known.actions.inside.every["rank"].unique().sort()),
    )


def measure_spans(known: Intermediates, chosen: ChosenSteps, waits: WaitResults) -> StepResults:
    """Return what `measure_steps` does, given its first part."""
    timeline, pipelines = known.timeline, known.windows.pipelines
    is_counted = _is_counted(known, chosen)
    has_few_steps = len(chosen.counted) < FEWEST_SAMPLES
    # Transfers are only needed as matched messages. Dropping their spans saves large copies.
    counted = timeline.with_spans(timeline.spans.filter(is_counted & ~pl.col("kind").is_in(TRANSFERS)))
    messages = chosen_rows(known.messages, is_counted)
    windows = known.windows.bubbles.filter(is_counted)
    return StepResults(
        samples=sample_steps(counted.spans, has_few_steps=has_few_steps),
        links=sample_step_links(messages, has_few_steps=has_few_steps),
        messages=messages.filter(pl.col("step").is_in(list(chosen.unusual))),
        reduction_waits=find_reduction_waits(counted, windows_of_bubbles([windows]), pipelines),
        phases=cut_phases(counted.spans, windows, known.busy),
        other_work=find_other_work(counted.spans),
        own_work=measure_own_work(windows, known.iteration_steps, known.between_steps.unions),
        activity=measure_outside_activity(timeline.spans, known.iterations.filter(is_counted)),
        **waits._asdict(),
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
