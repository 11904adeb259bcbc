"""Errors of Paddle's worker logs and traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence


def no_worker_logs(directory: str | os.PathLike[str]) -> InputError:
    """Return the error for a directory without worker logs."""
    return InputError(
        f"no workerlog.N in {directory}",
        "paddle.distributed.launch writes them to its --log_dir; several machines are sub-directories of one",
    )


def no_job_lines(paths: Sequence[str | os.PathLike[str]]) -> InputError:
    """Return the error for worker logs without any job line."""
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return InputError(
        f"no job line in {paths[0]}{more}: the run was not profiled",
        "use job_schedule_profiler_range or switch_job_schedule_profiler (paddle.profiler.utils) in the training, "
        "or --job_schedule_profiler_start and _end of PaddleNLP, on a CUDA build of Paddle",
    )


def no_action_in_traces(path: str | os.PathLike[str]) -> InputError:
    """Return the error for traces of paddle.profiler without any pipeline action."""
    return InputError(
        f"no pipeline action in {path}: no event has a name like forward-0[39.575 ms]",
        "the static executor writes one per action of a plan while paddle.profiler records",
    )
