"""Read the files of several ranks in parallel, in worker processes, if they are large together."""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from stagescope.execution.spawning import (
    begin_worker,
    can_spawn,
    core_count,
    ctrl_c_blocked,
    main_hidden,
    threads_shared,
)
from stagescope.ingest.memory_need import memory_bytes
from stagescope.ingest.usable_files import itself, outcome_of, read_usable, usable
from stagescope.vocabulary.errors import InputError, TableError
from stagescope.vocabulary.limits import changed_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from stagescope.model.diagnostics import Diagnostic

Found = TypeVar("Found")

LARGE_BYTES = 32 << 20
"""Reading files of this size takes about as long as starting a process."""
FILE_BYTES = 512 << 10
"""A file takes at least about as long as this many bytes of a large one: 10 to 50 ms go to calls, whatever its size."""

WORKER_BYTES = 256 << 20
"""Memory of a worker, which has 120 MB before it reads anything, and that much for this process, at least."""
MOST_KILLED = 8
"""After so many files in a row that kill their workers, the reason is the machine, not the files."""


class Each(NamedTuple):
    """Another argument for each file."""

    of: Mapping[Path, object]


def read_each(
    read: Callable[[Path, Any], Found],
    paths: Sequence[Path],
    on_read: Callable[[Path], object],
    argument: object = None,
    *,
    keep: Callable[[Found], Found] = itself,
) -> tuple[list[Found], list[Diagnostic]]:
    """Return `read(path, argument)` for each usable path, in the order of `paths`, and an error for each refused one.

    `on_read` is called after each file, and before it `keep`, in this process, with what was read; what it returns is
    kept. `read` must be a module-level function with a result that can be pickled. A file whose worker is killed, as by
    a lack of memory, is read again alone, and refused if that happens again. Raises the refusal if no file is usable
    or many kill their workers, and anything else that `read` raises, also from a worker.
    """
    workers = _worker_count(paths)
    if workers < 2:  # noqa: PLR2004 - one worker would only add the cost of starting it
        return read_usable(lambda path: read(path, _of(path, argument)), paths, on_read, keep=keep)
    outcomes: dict[Path, Found | InputError | TableError] = {}

    def add(path: Path, outcome: Found | InputError | TableError) -> None:
        outcomes[path] = outcome if isinstance(outcome, InputError | TableError) else keep(outcome)
        on_read(path)

    rest, killed = list(dict.fromkeys(paths)), 0
    while rest:
        _read_in_pool(read, rest, (workers, argument), add)
        rest = [path for path in rest if path not in outcomes]
        # If a worker was killed, its pool has ended. The file is one of those that were being read: the first ones.
        for path in rest[:workers]:
            outcome = _outcome_alone(read, path, _of(path, argument))
            killed = killed + 1 if outcome is None else 0
            if killed == MOST_KILLED:
                raise InputError.worker_killed(path)
            add(path, InputError.worker_killed(path) if outcome is None else outcome)
        rest = rest[workers:]
    return usable((path, outcomes[path]) for path in paths)


def _worker_count(paths: Sequence[Path]) -> int:
    """Return how many processes read the files: no more than there are processors, and none for little work."""
    if len(paths) < 2 or not can_spawn():  # noqa: PLR2004 - as above
        return 0
    work_bytes = sum(max(path.stat().st_size, FILE_BYTES) for path in paths)
    return min(len(paths), core_count(), fitting_workers(), work_bytes // LARGE_BYTES)


def fitting_workers() -> int:
    """Return how many workers fit into the memory of this machine or container, next to this process; at least 1."""
    return max(1, (memory_bytes() or sys.maxsize) // WORKER_BYTES - 1)


def _of(path: Path, argument: object) -> object:
    return argument.of[path] if isinstance(argument, Each) else argument


def _read_in_pool(
    read: Callable[[Path, Any], Found],
    paths: Sequence[Path],
    how: tuple[int, object],
    add: Callable[[Path, Found | InputError | TableError], None],
) -> None:
    """Call `add` with each file and its outcome until all are read, or a worker is killed; `how`: workers, argument."""
    workers, argument = how
    running = {}
    with _workers(workers) as pool:
        with main_hidden(), ctrl_c_blocked(), threads_shared(workers), suppress(BrokenProcessPool):
            for path in paths:
                running[pool.submit(outcome_of, read, path, _of(path, argument))] = path
        for future in as_completed(tuple(running)):
            path = running.pop(future)  # what was read is in memory once
            try:
                outcome = future.result()
            except BrokenProcessPool:  # one file may have killed the workers of all others
                continue
            add(path, outcome)


def _outcome_alone(
    read: Callable[[Path, Any], Found], path: Path, argument: object
) -> Found | InputError | TableError | None:
    """Return the outcome of one file in a worker of its own; None if it kills that."""
    with _workers(1) as pool, main_hidden():
        with ctrl_c_blocked():
            running = pool.submit(outcome_of, read, path, argument)
        try:
            return running.result()
        except BrokenProcessPool:
            return None


@contextmanager
def _workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool whose workers are terminated, rather than awaited, if the block raises (as on Ctrl-C)."""
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), begin_worker, (changed_limits(),))
    try:
        yield pool
    except BaseException:
        # Reading one file can take minutes, and shutdown() alone would wait for it.
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
