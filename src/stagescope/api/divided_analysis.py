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
    from stagescope.api.sampled_ranges import Samples
    from stagescope.vocabulary.steps import StepRange

    Runs = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]
    """Runs a function of a module on items, and yields the results in their order."""


class DividedPipelines(NamedTuple):
    """The groups of the pipelines of a run, the ranks without a pipeline, and the pipelines of the sample.

    What is usual is learned from the groups in `learning`.
    """

    groups: tuple[PipelineGroup, ...]
    without: PipelineGroup | None
    learning: tuple[PipelineGroup, ...]
    sampled: PipelineGroup

    @property
    def is_sampled_as_whole(self) -> bool:
        """Whether the sample has all pipelines, and they are one group."""
        return len(self.learning) == 1 and set(self.sampled.ranks) >= set(self.learning[0].ranks)

    @property
    def every(self) -> tuple[PipelineGroup, ...]:
        """All groups of ranks."""
        return self.groups if self.without is None else (*self.groups, self.without)


def divide_pipelines(
    counts: pl.DataFrame, pipelines: pl.DataFrame, samples: Samples, steps: int, *, is_large: bool
) -> DividedPipelines:
    """Return how the pipelines of a run with so many steps, which are large or not, are divided.

    `counts` has unit, rank and len, the number of spans of the rank in the files of the unit; `pipelines` is from
    find_pipelines.
    """
    placed = counts.join(pipelines, on="rank", how="left")
    rows = placed.drop_nulls("pipeline")
    of_pipelines = rows.group_by("pipeline").agg(spans=pl.sum("len")).sort("pipeline")
    chosen = _choose(samples.own, of_pipelines) if is_large else None

    def group(number: int, which: pl.Expr) -> PipelineGroup:
        rows = placed.filter(which)
        ranks, units = (tuple(rows[name].unique().sort()) for name in ("rank", "unit"))
        return PipelineGroup(number, ranks, units)

    def of(members: Collection[int]) -> pl.Expr:
        return pl.col("pipeline").is_in(list(members))

    def groups(times: float) -> tuple[PipelineGroup, ...]:
        every = group_pipelines(of_pipelines, SPANS_OF_GROUP * times)
        return tuple(group(number, of(members)) for number, members in enumerate(every))

    measured = groups(steps)
    without = group(len(measured), pl.col("pipeline").is_null())
    return DividedPipelines(
        measured,
        without if without.ranks else None,
        groups(samples.learned.sample.ratio),
        group(0, pl.lit(value=True) if chosen is None else of(chosen)),
    )


def _choose(item: SampleOfSteps, counts: pl.DataFrame) -> tuple[int, ...] | None:
    """Return the pipelines of the sample; None for all."""
    steps, ratio = item.sample
    windows = windows_of(item.directory / FOLDER, item.windows, steps)
    return choose_pipelines(windows, counts, sampled_steps.SAMPLE_SPANS * ratio)


def count_tasks(divided: DividedPipelines, ranges: int) -> int:
    """Return how many tasks `analyze_groups` has."""
    return len(divided.learning) + 1 + ranges * (2 * len(divided.every) + 1)


def analyze_groups(
    divided: DividedPipelines,
    samples: Samples,
    chosen: ChosenSteps,
    ranges: Iterable[tuple[int, StepRange]],
    run: Runs,
) -> Iterator[Reference | RangeAnalysis]:
    """Yield what the sample answers, and then what is measured of each of the ranges, given their numbers and steps.

    The spans of a range are removed when nothing needs them. Raises OSError.
    """
    directory, folder = samples.own.directory, samples.own.directory / FOLDER
    usual = learn_in_groups(divided.learning, samples.learned, run)
    # What is to be done beside the next groups, so that no worker waits.
    beside: SampleOfPipelines | DividedRange = SampleOfPipelines(samples.own, divided.sampled, usual)
    for number, steps in ranges:
        groups = [GroupOfRange(directory, number, steps, each, chosen, usual) for each in divided.every]
        first, *costs = run(analyze_divided, [beside, *groups])
        yield first
        classified = [each._replace(costs=own) for each, own in zip(groups, costs, strict=True)]
        measured = tuple(run(analyze_divided, classified))
        # Not earlier: if a worker is killed, another one does its task again.
        remove_spans_of_range(folder, number)
        for each in costs:
            each.path.unlink()
        beside = DividedRange(directory, number, steps, chosen, measured)
    yield from run(analyze_divided, [beside])


def learn_in_groups(groups: Sequence[PipelineGroup], of_steps: SampleOfSteps, run: Runs) -> DetachedObject:
    """Return what is usual in the run, in a file, learned from groups of its pipelines. Raises OSError."""
    items = [GroupOfSample(of_steps, each) for each in groups]
    learned = [read_object(each) for each in run(learn_group, items)]
    return write_object(join_usual(learned), of_steps.directory / FOLDER / "usual.pickle")
