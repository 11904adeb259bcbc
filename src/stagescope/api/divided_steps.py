"""What workers do where steps are large: each range of steps is analyzed in groups of pipelines, and then joined.

The pipelines of a group depend on others only through their outlines (model/outlines.py), and through what the same
work costs there. So the classes of the actions of all groups come first, then what is measured with them, and at last
what depends on the ledgers of all pipelines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.idle.action_costs import measure_action_costs, with_peers
from stagescope.analysis.other_pipelines import OtherPipelines
from stagescope.analysis.ranges import Reference, join_pipelines, measure_pipelines
from stagescope.analysis.step_results import usual_durations
from stagescope.analysis.windows import Windows
from stagescope.api.detached_tables import attach, detach, read_object, read_table, write_object, write_table
from stagescope.api.range_files import (
    FOLDER,
    intermediates_of,
    outlines_of_range,
    spans_of_range,
    windows_around,
    windows_of,
)
from stagescope.api.range_tasks import SampleOfSteps, write_reference
from stagescope.model.collectives import KINDS
from stagescope.model.step_ranges import steps_around
from stagescope.vocabulary.kinds import ACTION_KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stagescope.analysis.intermediates import Intermediates
    from stagescope.analysis.ranges import MeasuredPipelines, RangeAnalysis
    from stagescope.analysis.step_results import ChosenSteps
    from stagescope.api.detached_tables import DetachedObject
    from stagescope.vocabulary.steps import StepRange, StepRanges


EVERYTHING = pl.lit(value=True)
MET = pl.col("kind").is_in(KINDS)
"""Spans of other pipelines on which the actions of a group depend: reductions and other collectives."""
COMPARED = pl.col("kind").is_in([*KINDS, *ACTION_KINDS])
"""Those on which what is measured of a group depends: which ranks reduce together shows in their first actions."""


class PipelineGroup(NamedTuple):
    """Some pipelines of a run: their ranks, and the numbers of the units whose files have their spans."""

    number: int
    ranks: tuple[int, ...]
    units: tuple[int, ...]


class GroupOfSample(NamedTuple):
    """A group of pipelines in the sample of the run, from which is learned what is usual for them."""

    of: SampleOfSteps
    group: PipelineGroup

    @property
    def name(self) -> str:
        """How messages name it."""
        return f"part {self.group.number} of {self.of.name}"


class SampleOfPipelines(NamedTuple):
    """The sample of the run, which has some of its pipelines, and what is usual in the run."""

    of: SampleOfSteps
    group: PipelineGroup
    usual: DetachedObject

    @property
    def name(self) -> str:
        """How messages name it."""
        return self.of.name


class GroupOfRange(NamedTuple):
    """A group of pipelines in a range of steps.

    With `costs`, from which the actions of all groups of the range are classified, it is measured; None: not yet.
    """

    directory: Path
    number: int
    steps: StepRange
    group: PipelineGroup
    chosen: ChosenSteps
    usual: DetachedObject
    costs: DetachedObject | None = None

    @property
    def name(self) -> str:
        """How messages name it."""
        return f"part {self.group.number} of steps {self.steps}"


class DividedRange(NamedTuple):
    """A range of steps whose pipelines were measured in groups."""

    directory: Path
    number: int
    steps: StepRange
    chosen: ChosenSteps
    measured: tuple[MeasuredPipelines, ...]

    @property
    def name(self) -> str:
        """How messages name it."""
        return f"steps {self.steps}"


def learn_group(item: GroupOfSample) -> DetachedObject:
    """Return what is usual for a group of pipelines, in a file."""
    known = _of_sample(item.of, item.group, MET)
    usual = known.learned._replace(durations=usual_durations(known, item.of.counted))
    return write_object(usual, item.of.directory / FOLDER / f"usual-{item.group.number}.pickle")


def analyze_divided(
    item: SampleOfPipelines | GroupOfRange | DividedRange,
) -> Reference | DetachedObject | MeasuredPipelines | RangeAnalysis:
    """Return what the sample answers, the costs or the results of a group, or those of a range; tables are in files."""
    if isinstance(item, SampleOfPipelines):
        return _answer(item)
    if isinstance(item, DividedRange):
        return _join(item)
    return _classify(item) if item.costs is None else _measure(item, item.costs)


def _answer(item: SampleOfPipelines) -> Reference:
    known = _of_sample(item.of, item.group).with_results(usual=read_object(item.usual))
    return write_reference(item.of.directory / FOLDER, known, item.of)


def _classify(item: GroupOfRange) -> DetachedObject:
    """Return the actions, the basis and the costs of a group, and write the classes of its actions for other groups."""
    folder = item.directory / FOLDER
    known = _of_range(item, MET)
    usual = known.usual and known.usual.causes
    costs = measure_action_costs(known.actions, known.basis, known.timeline.spans, usual)
    write_table(costs.classes.table, _classes_of(folder, item.number, item.group.number))
    found = {"actions": known.actions, "basis": known.basis, "costs": costs}
    del known, costs
    return write_object(found, folder / f"costs-{item.number}-{item.group.number}.pickle")


def _measure(item: GroupOfRange, costs: DetachedObject) -> MeasuredPipelines:
    folder = item.directory / FOLDER
    found = read_object(costs)
    files = folder.glob(_classes_of(folder, item.number, "*").name)
    found["costs"] = with_peers(found["costs"], pl.concat(read_table(file) for file in sorted(files)))
    known = _of_range(item, COMPARED).with_results(**found)
    del found
    measured: MeasuredPipelines = detach(
        measure_pipelines(known, item.chosen), folder / f"measured-{item.number}-{item.group.number}"
    )
    return measured


def _classes_of(folder: Path, number: int, group: int | str) -> Path:
    return folder / f"classes-{number}-{group}.arrow"


def _join(item: DividedRange) -> RangeAnalysis:
    folder, (_, number, steps, chosen, parts) = item.directory / FOLDER, item
    windows = Windows(read_table(folder / "pipelines.arrow"), windows_around(folder, number, steps), [])
    known = intermediates_of(folder, outlines_of_range(folder, [number]), windows, steps)
    joined: RangeAnalysis = detach(
        join_pipelines(known, [attach(each) for each in parts], chosen), folder / f"result-{number}"
    )
    return joined


class _Steps(NamedTuple):
    """Steps whose spans are where those of some ranges are, with the windows of all pipelines in and next to them."""

    folder: Path
    numbers: Sequence[int]
    steps: StepRange | StepRanges
    windows: pl.DataFrame


def _of_sample(item: SampleOfSteps, group: PipelineGroup, needed: pl.Expr = EVERYTHING) -> Intermediates:
    folder, (steps, ratio) = item.directory / FOLDER, item.sample
    windows = windows_of(folder, item.windows, steps_around(steps))
    known = _of_group(_Steps(folder, item.numbers, steps, windows), group, needed)
    return known.with_results(missing=item.missing, sample_ratio=ratio)


def _of_range(item: GroupOfRange, needed: pl.Expr) -> Intermediates:
    folder = item.directory / FOLDER
    windows = windows_around(folder, item.number, item.steps)
    known = _of_group(_Steps(folder, [item.number], item.steps, windows), item.group, needed)
    return known.with_results(usual=read_object(item.usual))


def _of_group(chosen: _Steps, group: PipelineGroup, needed: pl.Expr) -> Intermediates:
    """Return the intermediate results of a group of pipelines in some steps; `needed` is what it needs of others."""
    folder, numbers, steps, windows = chosen
    every = Windows(read_table(folder / "pipelines.arrow"), windows, [])
    own = pl.col("rank").is_in(group.ranks)
    spans = spans_of_range(folder, numbers, group.units, own)
    others = outlines_of_range(folder, numbers, ~own & needed, shared_with=spans)
    alone = Windows(every.pipelines.filter(own), windows.filter(own), [])
    known = intermediates_of(folder, spans, alone, steps)
    is_whole = others.is_empty() and alone.pipelines.height == every.pipelines.height
    return known if is_whole else known.with_results(others=OtherPipelines(others, every))
