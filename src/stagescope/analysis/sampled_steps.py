"""The sample of a large run: the steps that answer what is asked about single actions, and show what is usual.

What is usual on a link, for a launch or for a micro-batch needs many actions, and not all of them. How much data a
pipeline usually has needs several steps: from these it is learned if the sample has fewer. Both depend on the steps of
a run and on the number of its spans alone, so that an analysis at once and one in ranges of steps learn the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.model.diagnostics import Diagnostic
from stagescope.model.implied import implied_steps
from stagescope.model.step_division import divide_steps, extents_of_steps, needed_spans
from stagescope.model.tables import SPANS
from stagescope.model.validate import in_order
from stagescope.vocabulary.steps import StepRange, StepRanges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.model import Timeline

MOST_SPANS = 2_300_000
"""A run of more spans has a sample; any other one is its own."""
SAMPLE_SPANS = 1_000_000
"""Spans of a sample, unless a single step has more."""
BLOCKS = 3
FEWEST_STEPS = 6
"""A sample of as many steps is divided into blocks, evenly over the run: what happened once is in one of them."""
LEAST_GAP = 4
"""Steps between two blocks, which are never both next to a step."""
LEARNED_STEPS = 5
"""From so many steps is learned what is usual, if the run has them: how much data a pipeline usually has, without
which long micro-batches look like slow ranks, is the median over steps."""
AROUND = 3
"""Steps before and after a block among which those next to it are."""


class SampleSteps(NamedTuple):
    """The steps of a sample, and how many times as many steps the run has."""

    steps: StepRanges
    ratio: float


def choose_sample(steps: Sequence[int], span_count: int) -> SampleSteps | None:
    """Return the sample of a run with these steps, which are sorted; None if that is the whole run.

    >>> sample = choose_sample(range(100), 10_000_000)
    >>> str(sample.steps), round(sample.ratio, 1)
    ('15:18, 49:52, 82:85', 11.1)
    """
    fitting = max(1, SAMPLE_SPANS * len(steps) // max(span_count, 1))
    if span_count <= MOST_SPANS or fitting >= len(steps):
        return None
    blocks, length = BLOCKS, fitting // BLOCKS
    if fitting < FEWEST_STEPS or len(steps) // BLOCKS - length < LEAST_GAP:
        blocks, length = 1, fitting
    return _blocks(steps, blocks, length)


def choose_learned(steps: Sequence[int], sample: SampleSteps) -> SampleSteps:
    """Return the steps from which is learned what is usual: those of the sample, unless these are too few.

    `steps` are those of the run, which are sorted.

    >>> learned = choose_learned(range(100), SampleSteps(StepRanges((StepRange(50, 51),)), 100.0))
    >>> str(learned.steps), learned.ratio
    ('10:11, 30:31, 50:51, 70:71, 90:91', 20.0)
    >>> str(choose_learned(range(8), SampleSteps(StepRanges((StepRange(4, 5),)), 8.0)).steps)
    '2:7'
    """
    length = min(LEARNED_STEPS, len(steps))
    if sum(step in each for each in sample.steps.ranges for step in steps) >= length:
        return sample
    # Where single steps would be next to each other, they are in one block.
    blocks, size = (LEARNED_STEPS, 1) if len(steps) // LEARNED_STEPS > LEAST_GAP else (1, length)
    return _blocks(steps, blocks, size)


def _blocks(steps: Sequence[int], blocks: int, length: int) -> SampleSteps:
    """Return so many blocks of consecutive steps, evenly over all."""
    middles = [len(steps) * (2 * number + 1) // (2 * blocks) for number in range(blocks)]
    ranges = [
        StepRange(steps[first], steps[first + length - 1] + 1)
        for first in (middle - length // 2 for middle in middles)
    ]
    return SampleSteps(StepRanges(tuple(ranges)), len(steps) / (blocks * length))


def sample_diagnostics(
    steps: StepRange | StepRanges | None, ratio: float, pipelines: tuple[int, int]
) -> list[Diagnostic]:
    """Return what a sample of these steps is used for; empty if it is the whole run.

    `pipelines` is the number of its pipelines, and of those of the run.
    """
    sampled, every = pipelines
    if sampled < every:
        text = (
            "what is usual for transfers, launches and micro-batches was learned from some steps of the run; the "
            "schedule, the distributions of action times and the predictions are those of "
            f"{sampled} of {every} pipelines, the slowest and others, in steps {steps}"
        )
    elif ratio > 1:
        text = (
            "what is usual for transfers, launches and micro-batches was learned from some steps of the run; the "
            f"schedule, the distributions of action times and the predictions are those of steps {steps}"
        )
    else:
        return []
    return [Diagnostic("info", text, code="steps.reference")]


def steps_of(timeline: Timeline) -> list[int]:
    """Return the steps of a run, sorted."""
    steps: list[int] = _of_ranks(timeline)["step"].unique().sort().to_list()
    return steps


def _of_ranks(timeline: Timeline) -> pl.DataFrame:
    return timeline.steps if timeline.steps.height else implied_steps(timeline.spans)


def sample_of(timeline: Timeline) -> SampleSteps | None:
    """Return the sample of a run; None if it is the whole run."""
    return choose_sample(steps_of(timeline), timeline.spans.height)


def in_steps(timeline: Timeline, steps: StepRanges) -> Timeline:
    """Return a run with the spans of some steps, and those next to them."""
    of_ranks = _of_ranks(timeline)
    parts: list[pl.DataFrame] = []
    for needed in needed_spans(extents_of_steps(of_ranks), steps.ranges):
        first, last = needed.steps.start - AROUND, needed.steps.stop + AROUND
        near = pl.col("step").is_null() | pl.col("step").is_between(first, last, closed="left")
        parts += divide_steps(timeline.spans.filter(near), [needed], lambda: of_ranks)
    return timeline.with_spans(in_order(pl.concat(parts), SPANS))
