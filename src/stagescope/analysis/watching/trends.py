"""The trend of a running training: of each measured step, its quantities, and its slowest rank and stage."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.analysis.watching.step_values import BUBBLE, ITERATION, PART, RANK, STEP

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stagescope.analysis.watching.step_values import DataRate, StepValues

MOST_STEPS = 2000
"""Steps that are kept: a chart has no more pixels."""


class Slowest(NamedTuple):
    """The rank or stage whose actions took longest in a step, that time, and the median of all ranks or stages."""

    place: int
    work_ns: float
    median_ns: float


class TrendStep(NamedTuple):
    """One measured step. Times in nanoseconds; causes of lost time are fractions of the iteration; None: unknown."""

    step: int
    iteration_ns: float | None
    window_ns: float | None
    bubble: float | None
    lost: Mapping[str, float]
    slowest_rank: Slowest | None
    slowest_stage: Slowest | None
    data: DataRate | None


def rank_work(values: StepValues) -> dict[int, float]:
    """Return the time of all actions of each rank in a step."""
    return {
        subject.rank: value
        for subject, value in values.values.items()
        if subject.kind == RANK and subject.rank is not None
    }


def stage_work(work: Mapping[int, float], stages: Mapping[int, int]) -> dict[int, float]:
    """Return the longest time that a rank of each place in the pipeline took for its actions."""
    longest: dict[int, float] = {}
    for rank, value in work.items():
        stage = stages.get(rank)
        if stage is not None:
            longest[stage] = max(value, longest.get(stage, 0.0))
    return dict(sorted(longest.items()))


def trend_step(values: StepValues, stages: Mapping[int, int], data: DataRate | None = None) -> TrendStep:
    """Return a measured step; `stages` has the place of each rank in its pipeline."""
    work = rank_work(values)
    parts = (subject.part for subject in values.values if subject.kind == PART)
    shares = {part: values.quantity(part) for part in parts if part is not None}
    return TrendStep(
        values.step,
        values.quantity(ITERATION),
        values.quantity(STEP),
        values.quantity(BUBBLE),
        {part: share for part, share in shares.items() if share is not None},
        _slowest(work),
        _slowest(stage_work(work, stages)),
        data,
    )


def _slowest(work: Mapping[int, float]) -> Slowest | None:
    if not work:
        return None
    place = max(work, key=lambda each: work[each])
    return Slowest(place, work[place], median(work.values()))


class Trends:
    """The last measured steps of a training, each with a number that counts from 0."""

    def __init__(self, most: int = MOST_STEPS) -> None:
        """Begin without steps."""
        self._steps: deque[TrendStep] = deque(maxlen=most)
        self.count = 0

    def add(
        self, steps: Iterable[StepValues], stages: Mapping[int, int], rates: Mapping[int, DataRate]
    ) -> None:
        """Add measured steps."""
        for values in steps:
            self._steps.append(trend_step(values, stages, rates.get(values.step)))
            self.count += 1

    def since(self, number: int) -> tuple[int, list[TrendStep]]:
        """Return the kept steps from a number on, and the number of the first of them."""
        kept = list(self._steps)
        first = max(number, self.count - len(kept), 0)
        return first, kept[first - (self.count - len(kept)) :]


def trend_json(steps: Iterable[TrendStep]) -> list[dict[str, Any]]:
    """Return steps as JSON."""
    return [
        {
            **step._asdict(),
            "slowest_rank": step.slowest_rank and step.slowest_rank._asdict(),
            "slowest_stage": step.slowest_stage and step.slowest_stage._asdict(),
            "data": step.data and step.data._asdict(),
        }
        for step in steps
    ]
