"""The step range of Paddle's static pipeline profiler, with the name and arguments that its users already have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.record.spans import profile_range

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def job_schedule_profiler_range(
    iter_id: int,
    start: int,
    end: int,
    exit_after_prof: bool = True,  # noqa: FBT001, FBT002  # Paddle's signature
) -> AbstractContextManager[bool]:
    """Return a context manager that records step `iter_id` if ``start <= iter_id < end``, and yields whether it does.

    A replacement for ``paddle.profiler.utils.job_schedule_profiler_range`` (Paddle 3.3.1). `profile_range` explains
    the two deliberate differences: an exception in the last step is not hidden, and that step is completely recorded.
    """
    return profile_range(iter_id, start, end, exit_after_prof)
