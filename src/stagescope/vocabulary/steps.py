"""Ranges of training steps, written ``A:B`` as in a Python slice, and steps to skip: a range, or the first few."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, NamedTuple

from stagescope.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

EVERY_STEP_STOP = 2**31


class StepRange(NamedTuple):
    """Steps from `start` (inclusive) to `stop` (exclusive); an empty range contains no step."""

    start: int = 0
    stop: int = EVERY_STEP_STOP

    def __contains__(self, step: object) -> bool:
        return isinstance(step, int) and self.start <= step < self.stop

    def __str__(self) -> str:
        return f"{self.start}:{'' if self.stop == EVERY_STEP_STOP else self.stop}"


class StepRanges(NamedTuple):
    """Several ranges of steps, the first steps first; none of them overlap."""

    ranges: tuple[StepRange, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.ranges))


def parse_step_range(text: str) -> StepRange:
    """Return the range of ``A:B``, ``A:``, ``:B`` or ``:``.

    Raises UsageError if a bound is no whole number, if the first one is negative or too large for the number of a step
    (32 bits), or if the range is empty.
    """
    start_text, colon, stop_text = text.partition(":")
    try:
        start = int(start_text or 0)
        stop = int(stop_text or EVERY_STEP_STOP)
    except ValueError:
        raise UsageError.step_range_malformed(text) from None
    if not colon or not 0 <= start < EVERY_STEP_STOP:
        raise UsageError.step_range_malformed(text)
    if start >= stop:
        raise UsageError.step_range_empty(text, start, stop)
    return StepRange(start, min(stop, EVERY_STEP_STOP))


def wanted_steps(steps: object) -> StepRange | None:
    """Return the range of a keyword: text such as ``"2:5"``, a StepRange, or None for every step.

    Raises UsageError for a text that is no range, and TypeError for anything else.
    """
    if steps is None or isinstance(steps, StepRange):
        return steps
    if isinstance(steps, str):
        return parse_step_range(steps)
    raise TypeError(f"steps must be a text such as '2:5' or a StepRange, not {type(steps).__name__}")


Skipped = int | Container[int]
"""Steps to leave out: that many at the beginning of a run, or the steps with these numbers."""


def parse_skipped(text: str) -> int | StepRange:
    """Return the steps to skip: ``N`` for the first N of a run, or ``A:B`` for a range of numbers.

    Raises UsageError for anything else.

    >>> parse_skipped("2"), parse_skipped("10:12")
    (2, StepRange(start=10, stop=12))
    """
    return int(text) if text.strip().isdecimal() else parse_step_range(text)


def skipped_steps(skipped: Skipped, steps: Iterable[int]) -> list[int]:
    """Return which of the steps of a run are skipped."""
    every = sorted(steps)
    return every[:skipped] if isinstance(skipped, int) else [step for step in every if step in skipped]
