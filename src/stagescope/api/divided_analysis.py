"""The analysis of the ranges of steps of a run whose steps are large: in groups of pipelines (divided_steps.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from stagescope.analysis import sampled_steps
from stagescope.analysis.sampled_pipelines import SPANS_OF_GROUP, choose_pipelines, group_pipelines
from stagescope.analysis.usual_values import join_usual
from stagescope.api.detached_tables import read_object, write_object
from stagescope.api.divided_steps import (
    DividedRange,
    GroupOfRange,
    GroupOfSample,
    PipelineGroup,
    SampleOfPipelines,
    analyze_divided,
    learn_group,
)
from stagescope.api.range_files import FOLDER, remove_spans_of_range, windows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from stagescope.analysis.ranges import RangeAnalysis, Reference
    from stagescope.analysis.step_results import ChosenSteps
    from stagescope.api.detached_tables import DetachedObject
    from stagescope.api.range_tasks import SampleOfSteps
    from stagescope.vocabulary.steps import StepRange

    Runs = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]
    """Runs a function of a module on items, and yields the results in their order."""


class DividedPipelines(NamedTuple):
    """The groups of the pipelines of a run, the ranks without a pipeline, and the pipelines of the sample."""

    groups: tuple[PipelineGroup, ...]
    without: PipelineGroup | None
    sampled: PipelineGroup

    @property
    def is_whole(self) -> bool:
        """Whether there is nothing to divide."""
        return len(self.groups) == 1 and set(self.sampled.ranks) >= set(self.groups[0].ranks)

    @property
    def every(self) -> tuple[PipelineGroup, ...]:
        """All groups of ranks."""
        return self.groups if self.without is None else (*self.groups, self.without)


def divide_pipelines(
    counts: pl.DataFrame, pipelines: pl.DataFrame, of_sample: SampleOfSteps, steps: int
) -> DividedPipelines:
    """Return how the pipelines of a run with so many steps are divided.

    `counts` has unit, rank and len, the number of spans of the rank in the files of the unit; `pipelines` is from
    find_pipelines.
    """
    placed = counts.join(pipelines, on="rank", how="left")
    of_pipelines = (
        placed.drop_nulls("pipeline").group_by("pipeline").agg(spans=pl.sum("len")).sort("pipeline")
    )
    steps_of_sample, ratio = of_sample.sample
    windows = windows_of(of_sample.directory / FOLDER, of_sample.windows, steps_of_sample)
    chosen = choose_pipelines(windows, of_pipelines, sampled_steps.SAMPLE_SPANS * ratio)
    every = group_pipelines(of_pipelines, SPANS_OF_GROUP * steps)

    def group(number: int, which: pl.Expr) -> PipelineGroup:
        rows = placed.filter(which)
        ranks, units = (tuple(rows[name].unique().sort()) for name in ("rank", "unit"))
        return PipelineGroup(number, ranks, units)

    def of(members: Collection[int]) -> pl.Expr:
        return pl.col("pipeline").is_in(list(members))

    without = group(len(every), pl.col("pipeline").is_null())
    return DividedPipelines(
        tuple(group(number, of(members)) for number, members in enumerate(every)),
        without if without.ranks else None,
        group(0, pl.lit(value=True) if chosen is None else of(chosen)),
    )


def count_tasks(divided: DividedPipelines, ranges: int) -> int:
    """Return how many tasks `analyze_groups` has."""
    return len(divided.groups) + 1 + ranges * (2 * len(divided.every) + 1)


def analyze_groups(
    divided: DividedPipelines,
    of_sample: SampleOfSteps,
    chosen: ChosenSteps,
    ranges: Iterable[tuple[int, StepRange]],
    run: Runs,
) -> Iterator[Reference | RangeAnalysis]:
    """Yield what the sample answers, and then what is measured of each of the ranges, given their numbers and steps.

    The spans of a range are removed when nothing needs them. Raises OSError.
    """
    directory, folder = of_sample.directory, of_sample.directory / FOLDER
    usual = _learn(divided, of_sample, run)
    # What is to be done beside the next groups, so that no worker waits.
    beside: SampleOfPipelines | DividedRange = SampleOfPipelines(of_sample, divided.sampled, usual)
    for number, steps in ranges:
        groups = [GroupOfRange(directory, number, steps, each, chosen, usual) for each in divided.every]
        first, *costs = run(analyze_divided, [beside, *groups])
        yield first
        classified = [each._replace(costs=own) for each, own in zip(groups, costs, strict=True)]
        measured = tuple(run(analyze_divided, classified))
        # Not before: a worker that is killed has its task done by another one.
        remove_spans_of_range(folder, number)
        for each in costs:
            each.path.unlink()
        beside = DividedRange(directory, number, steps, chosen, measured)
    yield from run(analyze_divided, [beside])


def _learn(divided: DividedPipelines, of_sample: SampleOfSteps, run: Runs) -> DetachedObject:
    """Return what is usual in the run, in a file."""
    groups = [GroupOfSample(of_sample, each) for each in divided.groups]
    learned = [read_object(each) for each in run(learn_group, groups)]
    return write_object(join_usual(learned), of_sample.directory / FOLDER / "usual.pickle")
