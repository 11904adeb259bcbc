"""The report of a stored run in bounded memory: its pipelines are surveyed, then its steps are analyzed in ranges.

A stored run has a file per pipeline, and what an analysis compares is in one step: all pipelines. So each file is read
once, by pipelines. What these show without causes is kept, and their spans are divided by steps into files. From those
of a sample of the steps is learned what is usual in the run. Then a range of steps at a time is analyzed, with the
steps next to it; of large steps, a group of pipelines at a time (divided_analysis.py). Which ranges and groups there
are depends on the run alone, and the results do not depend on them. Workers, of this machine or of a cluster, do all
that, and leave tables in files; one process joins them.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import polars as pl

from stagescope.analysis.completeness.unaligned import find_unaligned_ranks
from stagescope.analysis.ranges import (
    MeasuredRun,
    build_joined_report,
    choose_steps,
    join_surveys,
    with_culprits,
)
from stagescope.analysis.sampled_pipelines import has_large_steps
from stagescope.analysis.statistics.transfer_totals import add_transfers
from stagescope.api.counters_in_parts import analyze_counters, divide_counters
from stagescope.api.detached_tables import (
    attach,
    attach_later,
    detach,
    write_table,
)
from stagescope.api.divided_analysis import (
    analyze_groups,
    count_tasks,
    divide_pipelines,
    learn_in_groups,
)
from stagescope.api.joined_tables import AnalyzedRun, JoinedTables, joined_by_workers
from stagescope.api.range_files import (
    FOLDER,
    divide_survey,
    place_of_range,
    read_all_of,
    read_extents_of_steps,
    temporary_folder,
    write_shared_tables,
)
from stagescope.api.range_tasks import (
    Learned,
    LearnedSample,
    PipelinesWithoutSteps,
    RangeOfSteps,
    analyze_task,
    learn,
    survey_unit,
)
from stagescope.api.sampled_ranges import SampledSteps, choose_sampled_steps, samples_of
from stagescope.api.task_progress import TaskProgress
from stagescope.api.units import count_units, divide_into_units
from stagescope.model.lazy import with_later
from stagescope.model.step_division import needed_spans
from stagescope.model.tables import COUNTERS, KERNELS, SPANS
from stagescope.vocabulary.steps import StepRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from stagescope.analysis import Report
    from stagescope.analysis.counters.parts import JoinedCounters
    from stagescope.analysis.intermediates import Intermediates
    from stagescope.analysis.ranges import PipelineSurvey, RangeAnalysis, Reference, StepTables
    from stagescope.analysis.step_results import ChosenSteps
    from stagescope.api.divided_analysis import DividedPipelines
    from stagescope.api.range_tasks import SurveyedUnit
    from stagescope.api.sampled_ranges import Samples
    from stagescope.api.units import Unit
    from stagescope.execution import Executor
    from stagescope.model import Timeline
    from stagescope.model.diagnostics import Diagnostic
    from stagescope.model.stored_run import Manifest, Part

Result = TypeVar("Result")

SPANS_OF_RANGE = 1_000_000
"""Spans that are analyzed at once, with the steps next to them, unless a single step has more."""


class ReportOfRanges(NamedTuple):
    """The report of a run, and its tables that workers make."""

    report: Report
    joined: JoinedTables


def divide_into_ranges(steps: Sequence[int], span_count: int) -> tuple[StepRange, ...]:
    """Return ranges of the steps of a run, of about as many spans each as are analyzed at once.

    `steps` are sorted. The ranges have all numbers between them, too: a step may have spans without being listed.

    >>> divide_into_ranges([0, 1, 2, 5, 6, 7], 2_500_000)
    (StepRange(start=0, stop=2), StepRange(start=2, stop=6), StepRange(start=6, stop=8))
    """
    fitting = max(1, int(SPANS_OF_RANGE * len(steps) / max(span_count, 1)))
    count = -(-len(steps) // fitting)
    length = -(-len(steps) // count)
    bounds = [*steps[::length], steps[-1] + 1]
    return tuple(StepRange(*each) for each in pairwise(bounds))


@contextmanager
def analyzed_in_ranges(
    directory: Path,
    manifest: Manifest,
    executor: Executor,
    on_progress: Callable[[int, int], object] | None = None,
) -> Iterator[ReportOfRanges]:
    """Yield the report of a stored run, which is not in memory as a whole: its largest tables are in files until then.

    `on_progress` is called with the number of tasks that are done, and of all. The caller holds the lock of the
    run. Raises InputError if a file is damaged, and OSError.
    """
    with temporary_folder(directory), ExitStack() as ending:
        yield _analyze(directory, manifest, executor, on_progress, ending)


class _Work(NamedTuple):
    """What all steps of an analysis need: the run, its small tables and ranges, and who computes.

    `extents` is from extents_of_steps, and `counters` from divide_counters.
    """

    directory: Path
    manifest: Manifest
    executor: Executor
    progress: TaskProgress
    shared: Timeline
    extents: pl.DataFrame
    ranges: tuple[StepRange, ...]
    has_steps: bool
    counters: tuple[tuple[Part, ...], ...]

    @property
    def folder(self) -> Path:
        """Where tables are between the steps of the analysis."""
        return self.directory / FOLDER

    @property
    def is_divided(self) -> bool:
        """Whether steps are so large that they are analyzed in groups of pipelines."""
        return has_large_steps(self.extents.height, self.manifest.span_count)

    def units(self, sampled: SampledSteps) -> list[Unit]:
        """Return the files of spans, with what is needed of them for the ranges and for the sampled steps."""
        ranges = (*self.ranges, *sampled.own.steps.ranges) if self.has_steps else ()
        begin = 0 if self.is_divided else len(ranges)
        if sampled.learns_apart:
            ranges = (*ranges, *sampled.learned.steps.ranges)
        units = divide_into_units(self.directory, self.manifest, tuple(needed_spans(self.extents, ranges)))
        return [each._replace(outlined=range(begin, len(ranges))) for each in units]

    def run(self, function: Callable[[Any], Result], items: Sequence[Any]) -> Iterator[Result]:
        """Run a function on items, and report the progress."""
        return self.progress.of(self.executor.map(function, items))


class _SurveyedRun(NamedTuple):
    """What is known of all pipelines, their files, the sampled steps, what is wrong, and the `unaligned` ranks.

    `transfers` are those between unaligned ranks, which are in nothing else. `counts` has unit, rank and len: how many
    spans the others have in which unit.
    """

    known: Intermediates
    of_steps: StepTables
    units: Sequence[Unit]
    sampled: SampledSteps
    damage: list[Diagnostic]
    unaligned: list[int]
    transfers: pl.DataFrame
    counts: pl.DataFrame


def _analyze(
    directory: Path,
    manifest: Manifest,
    executor: Executor,
    on_progress: Callable[[int, int], object] | None,
    ending: ExitStack,
) -> ReportOfRanges:
    """Return the report of `analyzed_in_ranges`, whose largest tables are in files of its folder until `ending`."""
    folder = directory / FOLDER
    executor.prepare(survey_unit, count_units(manifest))
    shared = write_shared_tables(directory, manifest, folder)
    extents = read_extents_of_steps(directory, manifest)
    steps = _steps_of(extents, manifest)
    ranges = divide_into_ranges(steps, manifest.span_count) if steps else _one_each(directory, manifest)
    of_run = (directory, manifest, executor, TaskProgress(on_progress), shared, extents)
    work = _Work(*of_run, ranges, has_steps=bool(steps), counters=divide_counters(manifest))
    surveyed = _survey(work, steps)
    run = _analyze_ranges(work, surveyed)
    counters = analyze_counters(work.counters, directory, steps, run, work.run)
    joined = ending.enter_context(joined_by_workers(executor, run))
    timeline = shared.with_diagnostics(surveyed.damage)
    reference: Reference = attach(run.reference)
    measured = MeasuredRun(run.attached(), joined.comparisons, counters.shown)
    report = build_joined_report(timeline, surveyed.known, reference, measured)
    # No analysis needs all counters. Kernels are only there if a trace of them fitted into memory.
    later = {each.name: partial(read_all_of, each, directory, manifest) for each in (COUNTERS, KERNELS)}
    report = replace(
        report,
        timeline=with_later(report.timeline, later),
        saved={**report.saved, **_saved(report, surveyed, counters)},
    )
    return ReportOfRanges(with_culprits(report, run.attached(), joined.causes()), joined)


def _saved(
    report: Report, surveyed: _SurveyedRun, counters: JoinedCounters
) -> dict[str, Callable[[], pl.DataFrame]]:
    """Return what loads tables that are not computed from the timeline of a report."""
    known = report.intermediates
    saved = {"memory": lambda: counters.memory, "data": lambda: counters.step_data(known.iteration_steps)}
    if surveyed.unaligned:
        transfers = add_transfers([known.transfers, surveyed.transfers])
        saved["transfers"] = lambda: transfers
    return saved


def _survey(work: _Work, steps: Sequence[int]) -> _SurveyedRun:
    """Return what is known of all pipelines.

    If the machines of some are not on one clock, all files are read once more, without the ranks of these pipelines.
    """
    span_count = work.manifest.span_count
    listed = work.extents["step"].to_list()
    sampled = choose_sampled_steps(listed, steps, span_count)
    units = work.units(sampled)
    work.progress.expect(len(units) + len(work.ranges) + len(work.counters) + 2)
    found: list[SurveyedUnit] = list(work.run(survey_unit, units))
    unaligned = find_unaligned_ranks(work.shared, _pipelines_of(found))
    if unaligned:
        for number in range(len(units[0].needed)):
            shutil.rmtree(place_of_range(work.folder, number), ignore_errors=True)
        sampled = choose_sampled_steps(listed, steps, span_count - _count_spans(found, unaligned))
        units = [each._replace(dropped=tuple(unaligned)) for each in work.units(sampled)]
        work.progress.expect(len(units))
        found = list(work.run(survey_unit, units))
    of_steps = divide_survey([each.survey for each in found], work.ranges, work.folder)
    return _SurveyedRun(
        _join_units(work, found, of_steps, unaligned),
        of_steps,
        units,
        sampled,
        [note for each in found for note in each.damage],
        unaligned,
        add_transfers([attach(each.transfers) for each in found]),
        pl.concat(
            attach(each.counts).with_columns(unit=pl.lit(unit.number))
            for unit, each in zip(units, found, strict=True)
        ).filter(~pl.col("rank").is_in(unaligned)),
    )


def _analyze_ranges(work: _Work, surveyed: _SurveyedRun) -> AnalyzedRun:
    """Return what was measured of all ranges, and what the sample answers."""
    chosen, unusual = choose_steps(surveyed.known, surveyed.of_steps.windows)
    known = (surveyed.known.missing, tuple(chosen.counted))
    samples = samples_of(work.directory, work.ranges, surveyed.sampled, known)
    results = _results(work, surveyed, samples, chosen)
    reference: Reference = next(results)
    analyzed: list[RangeAnalysis] = []
    for number, each in enumerate(results):
        analyzed.append(each)
        shutil.rmtree(place_of_range(work.folder, number), ignore_errors=True)  # while workers go on
    detached = detach(unusual, work.folder / "unusual")
    return AnalyzedRun(
        work.folder, tuple(analyzed), reference, samples.own.counted, detached, chosen.sampling
    )


def _results(work: _Work, surveyed: _SurveyedRun, samples: Samples, chosen: ChosenSteps) -> Iterator[Any]:
    """Yield what the sample answers, and then what was measured of each of the ranges."""
    divided = _divided(work, surveyed, samples)
    if divided is not None and work.is_divided:
        work.progress.expect(count_tasks(divided, len(work.ranges)) - len(work.ranges) - 2)
        yield from analyze_groups(divided, samples, chosen, enumerate(work.ranges), work.run)
        return
    if divided is None:
        (learned,) = work.run(learn, [samples.own])
    else:
        work.progress.expect(len(divided.learning) - 1)
        learned = Learned(learn_in_groups(divided.learning, samples.learned, work.run))
    # What the sample answers takes longest: no worker waits for it at the end.
    parts: list[RangeOfSteps] | list[PipelinesWithoutSteps]
    if work.has_steps:
        parts = [RangeOfSteps(work.directory, *each, chosen, learned) for each in enumerate(work.ranges)]
    else:
        parts = [PipelinesWithoutSteps(unit, chosen) for unit in surveyed.units]
    yield from work.run(analyze_task, [LearnedSample(samples.own, learned), *parts])


def _divided(work: _Work, surveyed: _SurveyedRun, samples: Samples) -> DividedPipelines | None:
    """Return how the pipelines of a run are divided; None if what is usual is learned from its whole sample."""
    learns_apart = surveyed.sampled.learns_apart
    if not (work.is_divided or learns_apart):
        return None
    steps, pipelines = work.extents.height, surveyed.known.windows.pipelines
    divided = divide_pipelines(surveyed.counts, pipelines, samples, steps, is_large=work.is_divided)
    return divided if learns_apart or not divided.is_sampled_as_whole else None


def _pipelines_of(units: Sequence[SurveyedUnit]) -> pl.DataFrame:
    """Return rank and pipeline of all ranks with actions."""
    surveys: list[PipelineSurvey] = [attach_later(each.survey) for each in units]
    return pl.concat([each.pipelines for each in surveys]).unique().sort("rank")


def _count_spans(units: Sequence[SurveyedUnit], ranks: Sequence[int]) -> int:
    """Return how many spans some ranks have."""
    counts = pl.concat([attach(each.counts) for each in units])
    return int(counts.filter(pl.col("rank").is_in(ranks))["len"].sum())


def _join_units(
    work: _Work, units: Sequence[SurveyedUnit], of_steps: StepTables, unaligned: list[int]
) -> Intermediates:
    """Return what is known of all pipelines without the `unaligned` ranks, with files for workers."""
    surveys: list[PipelineSurvey] = [attach_later(each.survey) for each in units]
    surveyed = join_surveys(work.shared, surveys, of_steps, unaligned)
    write_table(surveyed.windows.pipelines, work.folder / "pipelines.arrow")
    write_table(surveyed.recorded, work.folder / "recorded.arrow")
    return surveyed


def _steps_of(extents: pl.DataFrame, manifest: Manifest) -> list[int]:
    """Return the steps of a run, sorted: those of the table of steps, and the first and last of each file of spans.

    A step that a process did not end has spans, and no row in the table of steps.
    """
    files = [part for part in manifest.parts if part.table == SPANS.name]
    ends = {step for part in files for step in (part.first_step, part.last_step) if step is not None}
    return sorted(ends.union(extents["step"]))


def _one_each(directory: Path, manifest: Manifest) -> tuple[StepRange, ...]:
    """Return as many ranges as a run has units, for one without steps: its units are analyzed in their place."""
    units = divide_into_units(directory, manifest)
    return tuple(StepRange(unit.number, unit.number + 1) for unit in units)
