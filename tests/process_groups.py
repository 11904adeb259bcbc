"""Runs programs that start others, so that none outlives a test and a hanging one is awaited only once."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

P = ParamSpec("P")
T = TypeVar("T")

LIMIT_S = 240


def run_group(command: Sequence[str], **options) -> subprocess.CompletedProcess[str]:
    """Return how a program ended and its output; after LIMIT_S, it and all its children are killed."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes, **options) as process:
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            out, err = _ended(process)
            raise AssertionError(
                f"not done after {LIMIT_S} s: {command}\n{out[-3000:]}\n{err[-3000:]}"
            ) from None
        except BaseException:
            _ended(process)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    os.killpg(process.pid, signal.SIGKILL)
    return process.communicate()


def once(function: Callable[P, T]) -> Callable[P, T]:
    """Call a function once per combination of arguments; later calls return or raise the same."""

    @functools.cache
    def outcome(*args: P.args, **kwargs: P.kwargs) -> tuple[T | None, Exception | None]:
        try:
            return function(*args, **kwargs), None
        except Exception as error:  # noqa: BLE001 - raised again on each call
            return None, error

    @functools.wraps(function)
    def again(*args: P.args, **kwargs: P.kwargs) -> T:
        value, error = outcome(*args, **kwargs)
        if error is not None:
            raise error
        return value

    return again
