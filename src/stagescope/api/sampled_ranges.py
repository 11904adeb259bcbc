"""The steps of a run that answer what is asked about single actions, and those from which is learned what is usual."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagescope.analysis.sampled_steps import SampleSteps, choose_learned, choose_sample
from stagescope.api.range_tasks import SampleOfSteps
from stagescope.model.step_ranges import steps_around
from stagescope.vocabulary.steps import StepRange, StepRanges

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stagescope.analysis.completeness.missing_ranks import MissingRanks

NO_STEPS = StepRange(0, 1)
"""The sample of a run without steps, in which it has no spans."""


class SampledSteps(NamedTuple):
    """The steps that are the sample of a run, and those from which is learned what is usual."""

    own: SampleSteps
    learned: SampleSteps

    @property
    def learns_apart(self) -> bool:
        """Whether these are not the same steps."""
        return self.own.steps != self.learned.steps


class Samples(NamedTuple):
    """The same for workers. Their spans are where those of further ranges of steps would be."""

    own: SampleOfSteps
    learned: SampleOfSteps


def choose_sampled_steps(listed: Sequence[int], steps: Sequence[int], span_count: int) -> SampledSteps:
    """Return the sampled steps of a run, with all its `steps` if the sample is the whole run.

    `listed` are those in the table of steps. Both are sorted.
    """
    whole = StepRange(steps[0], steps[-1] + 1) if steps else NO_STEPS
    own = choose_sample(listed, span_count) or SampleSteps(StepRanges((whole,)), 1.0)
    return SampledSteps(own, choose_learned(listed, own))


def samples_of(
    directory: Path,
    ranges: Sequence[StepRange],
    sampled: SampledSteps,
    known: tuple[MissingRanks, tuple[int, ...]],
) -> Samples:
    """Return the sampled steps for workers, given the ranges of a run, its missing ranks and its counted steps."""

    def sample(steps: SampleSteps, first: int) -> SampleOfSteps:
        numbers = range(first, first + len(steps.steps.ranges))
        return SampleOfSteps(directory, steps, numbers, _ranges_with(ranges, steps), *known)

    own = sample(sampled.own, len(ranges))
    return Samples(own, sample(sampled.learned, own.numbers.stop) if sampled.learns_apart else own)


def _ranges_with(ranges: Sequence[StepRange], sample: SampleSteps) -> tuple[int, ...]:
    """Return the numbers of the ranges with steps of the sample, and steps next to these."""
    around = steps_around(sample.steps).ranges
    return tuple(
        number
        for number, own in enumerate(ranges)
        if any(own.start < each.stop and each.start < own.stop for each in around)
    )
