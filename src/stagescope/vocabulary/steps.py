"""A range of training steps, written ``A:B`` as in a Python slice."""

from __future__ import annotations

from typing import NamedTuple

from stagescope.vocabulary.errors import UsageError

EVERY_STEP_STOP = 2**31


class StepRange(NamedTuple):
    """Steps from `start` (inclusive) to `stop` (exclusive); an empty range contains no step."""

    start: int = 0
    stop: int = EVERY_STEP_STOP

    def __contains__(self, step: object) -> bool:
        return isinstance(step, int) and self.start <= step < self.stop

    def __str__(self) -> str:
        return f"{self.start}:{'' if self.stop == EVERY_STEP_STOP else self.stop}"


def parse_step_range(text: str) -> StepRange:
    """Return the range of ``A:B``, ``A:``, ``:B`` or ``:``.

    Raises UsageError if a bound is not a whole number or negative, or if the range is empty.
    """
    start_text, colon, stop_text = text.partition(":")
    try:
        start = int(start_text or 0)
        stop = int(stop_text or EVERY_STEP_STOP)
    except ValueError:
        raise UsageError.step_range_malformed(text) from None
    if not colon or start < 0:
        raise UsageError.step_range_malformed(text)
    if start >= stop:
        raise UsageError.step_range_empty(text, start, stop)
    return StepRange(start, stop)
