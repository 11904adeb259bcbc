"""The report of a stored run in bounded memory: its pipelines are surveyed, then its steps are analyzed in ranges.

A stored run has a file per pipeline, and what an analysis compares is in one step: all pipelines. So each file is read
once, by pipelines. What these show without causes is kept, and their spans are divided by steps into files for the
second pass, which analyzes a range of steps at a time, with the steps next to it. Which ranges there are depends on the
run alone. Workers, of this machine or of a cluster, do both, and leave tables in files; one process joins them.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import polars as pl

from stagescope.analysis.completeness.unaligned import find_unaligned_ranks
from stagescope.analysis.intermediates import Intermediates
from stagescope.analysis.ranges import (
    Reference,
    analyze_range,
    as_reference,
    build_joined_report,
    choose_steps,
    join_surveys,
    results_of,
    survey_pipelines,
    with_culprits,
)
from stagescope.analysis.windows import Windows
from stagescope.api.detached_tables import (
    attach,
    attach_later,
    detach,
    path_of,
    read_object,
    read_table,
    write_object,
    write_table,
)
from stagescope.api.joined_tables import AnalyzedRun, JoinedTables, joined_by_workers
from stagescope.api.range_files import (
    FOLDER,
    divide_windows,
    place_of_range,
    temporary_folder,
    timeline_of,
    windows_around,
    write_shared_tables,
)
from stagescope.exporters.new_files import make_directory
from stagescope.ingest.step_selection import divide_steps, needed_spans
from stagescope.ingest.stored_run import read_or_note, read_part
from stagescope.model import empty_timeline
from stagescope.model.bubbles import step_bubbles
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.step_ranges import is_in_steps
from stagescope.model.stored_run import NONE
from stagescope.model.tables import COUNTERS, SPANS
from stagescope.model.validate import in_order
from stagescope.vocabulary.kinds import ACTION_KINDS
from stagescope.vocabulary.steps import StepRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from stagescope.analysis import Report
    from stagescope.analysis.ranges import PipelineSurvey, RangeAnalysis
    from stagescope.analysis.step_results import ChosenSteps
    from stagescope.execution import Executor
    from stagescope.ingest.step_selection import NeededSpans
    from stagescope.model import Timeline
    from stagescope.model.stored_run import Manifest, Part

Result = TypeVar("Result")

SPANS_OF_RANGE = 1_000_000
"""Spans that are analyzed at once, with the steps next to them, unless a single step has more."""
SPANS_OF_UNIT = 1_000_000
"""Spans of pipelines that are surveyed at once, unless a single file has more."""
FEWEST_STEPS = 4
"""Of fewer steps, parts of steps are compared, which need all their actions at once."""


class Unit(NamedTuple):
    """Files with the spans of some pipelines: `needed` are those of the ranges of steps that they are divided into."""

    directory: Path
    number: int
    parts: tuple[Part, ...]
    needed: tuple[NeededSpans, ...]

    @property
    def name(self) -> str:
        """How messages name it."""
        return f"part {self.number} of the pipelines"


class SurveyedUnit(NamedTuple):
    """What the pipelines of a unit show, and what is wrong with its files."""

    survey: PipelineSurvey
    damage: tuple[Diagnostic, ...]


class RangeOfSteps(NamedTuple):
    """A range of steps to analyze; `is_reference`: it answers for the run what is asked about single actions."""

    directory: Path
    number: int
    steps: StepRange
    chosen: ChosenSteps
    is_reference: bool

    @property
    def name(self) -> str:
        """How messages name it."""
        return f"steps {self.steps}"


class ReportOfRanges(NamedTuple):
    """The report of a run, and its tables that workers make."""

    report: Report
    joined: JoinedTables


class AnalyzedRange(NamedTuple):
    """What was measured of a range of steps, and what it answers for the run."""

    analysis: RangeAnalysis
    reference: Reference | None


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
) -> Iterator[ReportOfRanges | None]:
    """Yield the report of a stored run, which is not in memory as a whole: its largest tables are in files until then.

    None if it cannot be divided: it has few steps, or its pipelines are not all on one clock. `on_progress` is called
    with the number of tasks that are done, and of all. The caller holds the lock of the run. Raises InputError if a
    file is damaged, and OSError.
    """
    with temporary_folder(directory), ExitStack() as ending:
        yield _analyze(directory, manifest, executor, on_progress, ending)


def _analyze(
    directory: Path,
    manifest: Manifest,
    executor: Executor,
    on_progress: Callable[[int, int], object] | None,
    ending: ExitStack,
) -> ReportOfRanges | None:
    """Return the report of `analyzed_in_ranges`, whose largest tables are in files of its folder until `ending`."""
    folder = directory / FOLDER
    executor.prepare(_survey_unit, -(-manifest.span_count // SPANS_OF_UNIT))
    shared = write_shared_tables(directory, manifest, folder)
    of_ranks = read_table(folder / "steps.arrow")
    steps = _steps_of(of_ranks, manifest)
    if len(steps) < FEWEST_STEPS:
        return None
    ranges = divide_into_ranges(steps, manifest.span_count)
    units = _units(directory, manifest, tuple(needed_spans(of_ranks, ranges)))
    progress = _Progress(len(units) + len(ranges), on_progress)
    units_done: list[SurveyedUnit] = list(progress.of(executor.map(_survey_unit, units)))
    damage = [note for each in units_done for note in each.damage]
    surveyed = _join_units(units_done, shared, ranges, folder)
    del units_done, of_ranks
    if surveyed is None:
        return None
    chosen, unusual = choose_steps(surveyed)
    middle = len(ranges) // 2
    items = [
        RangeOfSteps(directory, number, each, chosen, number == middle) for number, each in enumerate(ranges)
    ]
    items.sort(
        key=lambda item: not item.is_reference
    )  # which takes longest: no worker waits for it at the end
    done: list[AnalyzedRange] = []
    for item, each in zip(items, progress.of(executor.map(_analyze_range, items)), strict=True):
        done.append(each)
        shutil.rmtree(place_of_range(folder, item.number), ignore_errors=True)  # while workers go on
    numbered = sorted(zip((item.number for item in items), done, strict=True))
    run = AnalyzedRun(
        folder, tuple(each.analysis for _, each in numbered), done[0].reference, tuple(chosen.counted)
    )
    joined = ending.enter_context(joined_by_workers(executor, run))
    timeline = _of_run(shared, directory, manifest, [*damage, *_note(ranges, middle)])
    reference: Reference = attach(run.reference)
    report = build_joined_report(timeline, surveyed, reference, run.attached(), unusual)
    return ReportOfRanges(with_culprits(report, joined.causes()), joined)


def _join_units(
    units: Sequence[SurveyedUnit], shared: Timeline, ranges: Sequence[StepRange], folder: Path
) -> Intermediates | None:
    """Return what is known of all pipelines, with files for workers; None if they are not all on one clock."""
    surveys: list[PipelineSurvey] = [attach_later(each.survey) for each in units]
    pipelines = pl.concat([each.pipelines for each in surveys]).unique().sort("rank")
    if find_unaligned_ranks(shared, pipelines):
        return None
    bubbles = divide_windows([path_of(each.survey.bubbles) for each in units], ranges, folder)
    surveyed = join_surveys(shared, surveys, bubbles)
    write_table(surveyed.windows.pipelines, folder / "pipelines.arrow")
    write_table(surveyed.recorded, folder / "recorded.arrow")
    return surveyed


def _steps_of(of_ranks: pl.DataFrame, manifest: Manifest) -> list[int]:
    """Return the steps of a run, sorted: those of the table of steps, and the first and last of each file of spans.

    A step that a process did not end has spans, and no row in the table of steps.
    """
    files = [part for part in manifest.parts if part.table == SPANS.name]
    ends = {step for part in files for step in (part.first_step, part.last_step) if step is not None}
    return sorted(ends.union(of_ranks["step"]))


class _Progress:
    """Counts the tasks that are done."""

    def __init__(self, total: int, report: Callable[[int, int], object] | None) -> None:
        self._done, self._total = 0, total
        self._report = report or (lambda _done, _total: None)
        self._report(0, total)

    def of(self, results: Iterator[Result]) -> Iterator[Result]:
        """Yield results, and report each."""
        for result in results:
            self._done += 1
            self._report(self._done, self._total)
            yield result


def _units(directory: Path, manifest: Manifest, needed: tuple[NeededSpans, ...]) -> list[Unit]:
    """Return the files of spans, some pipelines at a time; files without a pipeline are apart."""
    parts = [part for part in manifest.parts if part.table == SPANS.name]
    groups: list[list[Part]] = []
    rows = 0
    for part in sorted(parts, key=lambda each: (each.pipeline == NONE, each.step_range, each.pipeline)):
        is_other = not groups or (part.pipeline == NONE) != (groups[-1][-1].pipeline == NONE)
        if is_other or rows + part.rows > SPANS_OF_UNIT:
            groups.append([])
            rows = 0
        groups[-1].append(part)
        rows += part.rows
    return [Unit(directory, number, tuple(group), needed) for number, group in enumerate(groups)]


def _survey_unit(unit: Unit) -> SurveyedUnit:
    """Divide the spans of a unit by steps, and return what its pipelines show, with its tables in files."""
    folder = unit.directory / FOLDER
    found = [(part.pipeline, read_or_note(unit.directory, part)) for part in unit.parts]
    files = [(pipeline, rows) for pipeline, rows in found if isinstance(rows, pl.DataFrame)]
    damage = tuple(note for _, note in found if isinstance(note, Diagnostic))
    del found
    acted = [
        rows.select("rank", "kind")
        .filter(pl.col("kind").is_in(ACTION_KINDS))
        .select("rank", pipeline=pl.lit(pipeline, pl.Int32))
        .unique()
        for pipeline, rows in files
        if pipeline != NONE
    ]
    spans = in_order(pl.concat([SPANS.empty(), *(rows for _, rows in files)]), SPANS)
    del files
    _divide(spans, unit, folder)
    empty = pl.DataFrame(schema={"rank": pl.Int32, "pipeline": pl.Int32})
    pipelines = pl.concat([empty, *acted]).unique().sort("rank")
    windows = Windows(pipelines, step_bubbles(spans, pipelines), [])
    survey = survey_pipelines(Intermediates(empty_timeline().with_spans(spans), windows))
    surveyed: SurveyedUnit = detach(SurveyedUnit(survey, damage), folder / f"unit-{unit.number}")
    return surveyed


def _divide(spans: pl.DataFrame, unit: Unit, folder: Path) -> None:
    """Write the spans that are needed to analyze each range of steps into a file of its own.

    Columns without any value are left out: dividing, writing and reading them takes half of the time.
    """
    most = max(spans.height, 1)  # a file without rows has all columns
    valued = [each for each in spans.columns if each == "step" or spans[each].null_count() < most]
    divided = divide_steps(spans.select(valued), unit.needed, lambda: read_table(folder / "steps.arrow"))
    for number, rows in enumerate(divided):
        if rows.height:
            place = place_of_range(folder, number)
            make_directory(place)
            write_table(rows, place / f"unit-{unit.number}.arrow")


def _analyze_range(item: RangeOfSteps) -> AnalyzedRange:
    """Return what is measured of a range of steps, with its tables in files."""
    folder = item.directory / FOLDER
    known = _intermediates(folder, item.number, item.steps)
    analysis: RangeAnalysis = detach(analyze_range(known, item.chosen), folder / f"result-{item.number}")
    if not item.is_reference:
        return AnalyzedRange(analysis, None)
    known = as_reference(known)
    results = write_object(results_of(known, item.chosen.counted), folder / "reference.pickle")
    reference = Reference(known.timeline.spans, known.missing, partial(read_object, results))
    return AnalyzedRange(analysis, detach(reference, folder / "reference"))


def _intermediates(folder: Path, number: int, steps: StepRange) -> Intermediates:
    """Return the intermediate results of a range of steps, with what is needed of the steps next to it."""
    files = sorted(place_of_range(folder, number).glob("*.arrow"))
    rows = [read_table(file) for file in files]
    spans = in_order(pl.concat([SPANS.empty(), *rows], how="diagonal"), SPANS)
    del rows
    around = is_in_steps(StepRange(max(0, steps.start - 1), steps.stop + 1))
    windows = Windows(read_table(folder / "pipelines.arrow"), windows_around(folder, number, steps), [])
    # The windows and what was recorded of the steps next to the range are known from all their spans.
    recorded = read_table(folder / "recorded.arrow").filter(around)
    return Intermediates(timeline_of(spans, folder), windows, None, steps).with_results(recorded=recorded)


def _of_run(timeline: Timeline, directory: Path, manifest: Manifest, notes: Sequence[Diagnostic]) -> Timeline:
    """Return a timeline with the counters of the run, and some notes."""
    counters = [read_part(directory, part) for part in manifest.parts if part.table == COUNTERS.name]
    rows = in_order(pl.concat([COUNTERS.empty(), *counters]), COUNTERS)
    return replace(timeline, counters=rows).with_diagnostics(notes)


def _note(ranges: Sequence[StepRange], reference: int) -> list[Diagnostic]:
    """Return what one of several ranges is used for."""
    if len(ranges) == 1:
        return []
    text = (
        f"the run was analyzed in {len(ranges)} ranges of steps; the schedule, the distributions of action times "
        f"and the predictions are those of steps {ranges[reference]}"
    )
    return [Diagnostic("info", text, code="steps.reference")]
