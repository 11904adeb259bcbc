"""Read large files of several ranks in parallel, in worker processes; small files are read in this process."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from stagescope.execution.spawning import begin_worker, can_spawn, core_count, ctrl_c_blocked, main_hidden
from stagescope.ingest.usable_files import outcome_of, read_usable, usable
from stagescope.vocabulary.errors import InputError, TableError
from stagescope.vocabulary.limits import changed_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from stagescope.model.diagnostics import Diagnostic

Found = TypeVar("Found")

LARGE_BYTES = 32 << 20
"""Reading a file of this size takes about as long as starting a process."""


def read_each(
    read: Callable[[Path, str | None], Found],
    paths: Sequence[Path],
    on_read: Callable[[Path], object],
    pattern: str | None = None,
) -> tuple[list[Found], list[Diagnostic]]:
    """Return `read(path, pattern)` for each usable path, in the order of `paths`, and an error for each refused one.

    `on_read` is called after each file. `read` must be a module-level function with a result that can be pickled.
    A file whose worker is killed, as by a lack of memory, is read again alone, and refused if that happens again.
    Raises the refusal if no file is usable, and anything else that `read` raises, also from a worker.
    """
    large = [path for path in paths if path.stat().st_size >= LARGE_BYTES]
    workers = min(len(large), core_count()) if can_spawn() else 0
    if workers < 2:  # noqa: PLR2004 - one worker would only add the cost of starting it
        return read_usable(read, paths, on_read, pattern)
    outcomes: dict[Path, Found | InputError | TableError] = {}
    with _workers(workers) as pool:
        with main_hidden(), ctrl_c_blocked():
            running = {pool.submit(outcome_of, read, path, pattern): path for path in large}
        for path in paths:
            if path not in running.values():
                outcomes[path] = outcome_of(read, path, pattern)
                on_read(path)
        for future in as_completed(running):
            path = running[future]
            try:
                outcomes[path] = future.result()
            except BrokenProcessPool:  # one file may have killed the workers of all others
                continue
            on_read(path)
    for path in paths:
        if path not in outcomes:
            outcomes[path] = _outcome_alone(read, path, pattern)
            on_read(path)
    return usable((path, outcomes[path]) for path in paths)


def _outcome_alone(
    read: Callable[[Path, str | None], Found], path: Path, pattern: str | None
) -> Found | InputError | TableError:
    """Return the outcome of one file in a worker of its own, which it may kill."""
    with _workers(1) as pool, main_hidden():
        with ctrl_c_blocked():
            running = pool.submit(outcome_of, read, path, pattern)
        try:
            return running.result()
        except BrokenProcessPool:
            return InputError.worker_killed(path)


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
