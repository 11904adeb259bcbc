"""The sample of a large run: the steps that show what is usual, and that answer what is asked about single actions.

What is usual on a link, for a launch or for a micro-batch needs many actions, and not all of them. The sample of a run
depends on its steps and on the number of its spans alone, so that an analysis at once and one in ranges of steps learn
the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.model.diagnostics import Diagnostic
from stagescope.model.implied import implied_steps
from stagescope.model.step_division import divide_steps, needed_spans
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

    `pipelines` is how many pipelines it has, and of how many.
    """
    sampled, every = pipelines
    if sampled < every:
        text = (
            "what is usual for transfers, launches and micro-batches was learned from a sample of the steps. Some of "
            "their pipelines, the slowest and others, show the schedule, the distributions of action times and the "
            f"predictions: steps {steps}, {sampled} of {every} pipelines"
        )
    elif ratio > 1:
        text = (
            "what is usual for transfers, launches and micro-batches was learned from a sample of the run, which also "
            f"shows the schedule, the distributions of action times and the predictions: steps {steps}"
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


def sample_of(timeline: Timeline) -> tuple[Timeline, SampleSteps] | None:
    """Return the spans of the sample of a run with those next to it, and its steps; None if it is the whole run."""
    if timeline.spans.height <= MOST_SPANS:
        return None
    of_ranks = _of_ranks(timeline)
    chosen = choose_sample(of_ranks["step"].unique().sort().to_list(), timeline.spans.height)
    if chosen is None:
        return None
    parts: list[pl.DataFrame] = []
    for needed in needed_spans(of_ranks, chosen.steps.ranges):
        first, last = needed.steps.start - AROUND, needed.steps.stop + AROUND
        near = pl.col("step").is_null() | pl.col("step").is_between(first, last, closed="left")
        parts += divide_steps(timeline.spans.filter(near), [needed], lambda: of_ranks)
    return timeline.with_spans(in_order(pl.concat(parts), SPANS)), chosen
