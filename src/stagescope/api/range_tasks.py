"""What workers do when a run is analyzed in ranges of steps: survey, learn from the sample, analyze a range."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.intermediates import Intermediates
from stagescope.analysis.other_pipelines import spans_of
from stagescope.analysis.ranges import LEARNED, Reference, analyze_range, results_of, survey_pipelines
from stagescope.analysis.statistics.transfer_totals import measure_transfers
from stagescope.analysis.step_results import usual_durations
from stagescope.analysis.windows import Windows
from stagescope.api.detached_tables import detach, read_object, read_table, write_object
from stagescope.api.range_files import (
    FOLDER,
    intermediates_of,
    spans_of_range,
    timeline_of,
    windows_around,
    windows_of,
    write_spans_of_range,
)
from stagescope.api.units import kept_spans, read_unit
from stagescope.ingest.stored_run import read_part
from stagescope.model import empty_timeline
from stagescope.model.bubbles import step_bubbles
from stagescope.model.messages import match_messages
from stagescope.model.step_division import divide_steps
from stagescope.model.step_ranges import steps_around
from stagescope.model.tables import STEPS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stagescope.analysis.completeness.missing_ranks import MissingRanks
    from stagescope.analysis.ranges import PipelineSurvey, RangeAnalysis
    from stagescope.analysis.sampled_steps import SampleSteps
    from stagescope.analysis.step_results import ChosenSteps
    from stagescope.api.detached_tables import DetachedObject
    from stagescope.api.units import Unit
    from stagescope.model import Timeline
    from stagescope.model.diagnostics import Diagnostic
    from stagescope.vocabulary.steps import StepRange, StepRanges


class SurveyedUnit(NamedTuple):
    """What the pipelines of a unit show, and what is wrong with its files.

    `counts` is the number of spans of every rank (rank and len), `transfers` are those of dropped ranks.
    """

    survey: PipelineSurvey
    damage: tuple[Diagnostic, ...]
    counts: pl.DataFrame
    transfers: pl.DataFrame


class Learned(NamedTuple):
    """What is usual in the run, and the results of the sample from which that was learned, all in files.

    `costs` are apart: they are part of the ledger of the sample, with which the other results are loaded at the end.
    Without `results`, that was learned from other steps.
    """

    usual: DetachedObject
    results: DetachedObject | None = None
    costs: DetachedObject | None = None


class RangeOfSteps(NamedTuple):
    """A range of steps to analyze."""

    directory: Path
    number: int
    steps: StepRange
    chosen: ChosenSteps
    learned: Learned

    @property
    def name(self) -> str:
        """How messages name it."""
        return f"steps {self.steps}"


class PipelinesWithoutSteps(NamedTuple):
    """The pipelines of a unit of a run without steps."""

    unit: Unit
    chosen: ChosenSteps

    @property
    def name(self) -> str:
        """How messages name it."""
        return self.unit.name


class SampleOfSteps(NamedTuple):
    """The sample of the run, whose spans are where those of the ranges `numbers` would be.

    `windows` are the numbers of ranges with its windows, `counted` the steps in the totals of the run.
    """

    directory: Path
    sample: SampleSteps
    numbers: range
    windows: tuple[int, ...]
    missing: MissingRanks
    counted: tuple[int, ...]

    @property
    def name(self) -> str:
        """How messages name it."""
        return f"a sample of steps {self.sample.steps}"


class LearnedSample(NamedTuple):
    """The sample of the run, and what was learned from it."""

    of: SampleOfSteps
    learned: Learned

    @property
    def name(self) -> str:
        """How messages name it."""
        return self.of.name


def survey_unit(unit: Unit) -> SurveyedUnit:
    """Divide the spans of a unit by steps, and return what its pipelines show, with its tables in files."""
    folder = unit.directory / FOLDER
    spans, pipelines, damage = read_unit(unit)
    is_dropped = pl.col("rank").is_in(unit.dropped)
    counts = spans.group_by("rank").len()
    transfers = measure_transfers(match_messages(spans.filter(is_dropped)))
    spans = kept_spans(spans, unit)
    if unit.needed:
        _divide(spans, unit, folder)
    survey = survey_pipelines(_known(empty_timeline().with_spans(spans), pipelines))
    found = SurveyedUnit(survey, damage, counts, transfers)
    surveyed: SurveyedUnit = detach(found, folder / f"unit-{unit.number}")
    return surveyed


def _known(timeline: Timeline, pipelines: pl.DataFrame) -> Intermediates:
    """Return the intermediate results of some pipelines."""
    return Intermediates(timeline, Windows(pipelines, step_bubbles(timeline.spans, pipelines), []))


def _divide(spans: pl.DataFrame, unit: Unit, folder: Path) -> None:
    """Write the spans that are needed to analyze each range of steps into a file of its own.

    Columns without any value are left out: dividing, writing and reading them takes half of the time.
    """
    most = max(spans.height, 1)  # a file without rows has all columns
    valued = [each for each in spans.columns if each == "step" or spans[each].null_count() < most]
    divided = divide_steps(spans.select(valued), unit.needed, partial(_steps_of, unit))
    for number, rows in enumerate(divided):
        if rows.height:
            write_spans_of_range(rows, folder, number, unit.number, is_outlined=number in unit.outlined)


def _steps_of(unit: Unit) -> pl.DataFrame:
    """Return the table of steps of the pipelines of a unit."""
    return pl.concat([STEPS.empty(), *(read_part(unit.directory, part) for part in unit.steps)])


def learn(item: SampleOfSteps) -> Learned:
    """Return what is usual in the run, learned from its sample."""
    folder, known = item.directory / FOLDER, _sample(item)
    usual = known.learned._replace(durations=usual_durations(known, item.counted))
    results, costs = {name: getattr(known, name) for name in LEARNED}, known.costs
    del known  # its spans are not written
    return Learned(
        write_object(usual, folder / "usual.pickle"),
        write_object(results, folder / "sample.pickle"),
        write_object(costs, folder / "costs.pickle"),
    )


def analyze_task(item: LearnedSample | RangeOfSteps | PipelinesWithoutSteps) -> Reference | RangeAnalysis:
    """Return what the sample answers for the run, or what is measured of a part of it; with tables in files."""
    if isinstance(item, LearnedSample):
        return _answer(*item)
    return _analyze_range(item) if isinstance(item, RangeOfSteps) else _analyze_unit(*item)


def _answer(item: SampleOfSteps, of_sample: Learned) -> Reference:
    folder = item.directory / FOLDER
    known = _sample(item).with_results(usual=read_object(of_sample.usual))
    if of_sample.results is not None and of_sample.costs is not None:
        known = known.with_results(**read_object(of_sample.results), costs=read_object(of_sample.costs))
    return write_reference(folder, known, item, of_sample.results)


def write_reference(
    folder: Path, known: Intermediates, item: SampleOfSteps, learned: DetachedObject | None = None
) -> Reference:
    """Return what the sample answers, in files; `learned` has those of the results that it was learned from."""
    spans, pipelines, others = known.own_spans, known.windows.pipelines, spans_of(known.others)
    results = results_of(known, item.counted)
    if learned is None:
        results |= {name: getattr(known, name) for name in LEARNED}
    del known
    files = [write_object(results, folder / "answers.pickle")]
    del results
    read = partial(_read_all, files if learned is None else [*files, learned])
    found: Reference = detach(Reference(*item.sample, spans, read, pipelines, others), folder / "reference")
    return found


def _read_all(files: Sequence[DetachedObject]) -> dict[str, object]:
    return {name: found for file in files for name, found in read_object(file).items()}


def _analyze_range(item: RangeOfSteps) -> RangeAnalysis:
    folder = item.directory / FOLDER
    usual = read_object(item.learned.usual)
    known = _intermediates(folder, [item.number], item.steps, windows_around(folder, item.number, item.steps))
    analysis: RangeAnalysis = detach(
        analyze_range(known.with_results(usual=usual), item.chosen), folder / f"result-{item.number}"
    )
    return analysis


def _analyze_unit(unit: Unit, chosen: ChosenSteps) -> RangeAnalysis:
    folder = unit.directory / FOLDER
    spans, pipelines, _ = read_unit(unit)
    analyzed = analyze_range(_known(timeline_of(kept_spans(spans, unit), folder), pipelines), chosen)
    analysis: RangeAnalysis = detach(analyzed, folder / f"result-{unit.number}")
    return analysis


def _sample(item: SampleOfSteps) -> Intermediates:
    folder, (steps, ratio) = item.directory / FOLDER, item.sample
    windows = windows_of(folder, item.windows, steps_around(steps))
    known = _intermediates(folder, item.numbers, steps, windows)
    return known.with_results(missing=item.missing, sample_ratio=ratio)


def _intermediates(
    folder: Path, numbers: Sequence[int], steps: StepRange | StepRanges, windows: pl.DataFrame
) -> Intermediates:
    """Return the intermediate results of some steps, with what is needed of the steps next to them.

    Their spans are where those of the ranges `numbers` are.
    """
    of_steps = Windows(read_table(folder / "pipelines.arrow"), windows, [])
    return intermediates_of(folder, spans_of_range(folder, numbers), of_steps, steps)
