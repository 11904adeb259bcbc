"""The step range of Paddle's static pipeline tool, with the name and the arguments that its users have in place."""

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
    """Return a context that records step `iter_id` if ``start <= iter_id < end``, and yields whether it does.

    Takes the place of ``paddle.profiler.utils.job_schedule_profiler_range`` (Paddle 3.3.1). See `profile_range` for the
    two things that differ on purpose: a crash in the last step stays a crash, and that step is really recorded.
    """
    return profile_range(iter_id, start, end, exit_after_prof)
