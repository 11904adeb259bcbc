"""Files of several ranks at once, each in a process of its own, where they are large enough to be worth a process.

The processes are started as commands: a copy of this one (fork) would inherit locks of threads that it does not have,
and a fresh one of the multiprocessing module would run the caller's script once more.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeVar

from stagescope.vocabulary.errors import InputError, StagescopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Found = TypeVar("Found")

LARGE_BYTES = 32 << 20
"""What takes as long to read as a process takes to start."""


def read_each(
    read: Callable[[Path, str | None], Found],
    paths: Sequence[Path],
    on_read: Callable[[Path], object],
    pattern: str | None = None,
) -> list[Found]:
    """Return what `read(path, pattern)` returns for each path, in their order; `on_read` is called with each when read.

    `read` is a function of a module, and what it returns can be pickled. Raises what it raises, and InputError for a
    process that failed.
    """
    large = [path for path in paths if path.stat().st_size >= LARGE_BYTES]
    workers = min(len(large), _cores())
    found = {}
    with TemporaryDirectory(prefix="stagescope-") as directory, ThreadPoolExecutor(max(workers, 1)) as pool:
        running = {
            pool.submit(_read_elsewhere, read, path, Path(directory, str(number)), pattern): path
            for number, path in enumerate(large if workers > 1 else [])
        }
        for path in paths:
            if path not in running.values():
                found[path] = read(path, pattern)
                on_read(path)
        for future in as_completed(running):
            path = running[future]
            found[path] = future.result()
            on_read(path)
    return [found[path] for path in paths]


def _cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _read_elsewhere(
    read: Callable[[Path, str | None], Found], path: Path, result: Path, pattern: str | None
) -> Found:
    """Return what another process has read."""
    command = [sys.executable, "-m", __name__, read.__module__, read.__name__, str(path), str(result)]
    command += [] if pattern is None else [pattern]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not result.exists():
        last = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        raise InputError.damaged(path, f"the process that read it failed: {last}")
    # It was written a moment ago, by a process of ours, into a directory of ours.
    found: Found | StagescopeError = pickle.loads(result.read_bytes())  # noqa: S301 - see above
    if isinstance(found, StagescopeError):
        raise found
    return found


def main(arguments: Sequence[str]) -> None:
    """Read with the function of the module, which the first arguments name, one path into another; then a pattern."""
    module, name, path, result, *pattern = arguments
    read: Callable[[Path, str | None], object] = getattr(import_module(module), name)
    found: object
    try:
        found = read(Path(path), pattern[0] if pattern else None)
    except StagescopeError as error:
        found = error
    Path(result).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
