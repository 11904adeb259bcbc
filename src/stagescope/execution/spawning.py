"""Worker processes are spawned, not forked.

A fork would inherit locks that threads of this process hold (Polars has a thread pool), and could deadlock on them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from stagescope.vocabulary.limits import use_limits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

THREADS = "POLARS_MAX_THREADS"
ALLOCATOR = "_RJEM_MALLOC_CONF"
"""Options of jemalloc in Polars for Linux and macOS, which reads them when it is loaded. The last of a name counts."""
OF_POLARS = frozenset({"dirty_decay_ms:500", "muzzy_decay_ms:1000", "thp:always", "metadata_thp:always"})
"""Options that Polars puts in front of those of the user, in the variable itself (polars/__init__.py, 1.36 to 2.1)."""
RETURNED_SOON = "dirty_decay_ms:1000"
LIBRARY = "GLIBC_TUNABLES"
"""Options of the C library of Linux, whose allocator NumPy and SciPy use."""
HUGE_PAGES = "glibc.malloc.hugetlb=1"
"""Ask for huge pages with madvise, as `thp:always` of jemalloc does."""
ONE_ARENA = "glibc.malloc.arena_max=1"
"""All threads share what is free. A Dask worker computes in another thread than the one that has loaded the modules,
and took 30 to 60 MB more."""


def core_count() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def own_processor(number: int, workers: int) -> int | None:
    """Return the processor for a worker, by its number, if there is exactly one for each; None otherwise."""
    if sys.platform != "linux" or core_count() != workers:
        return None
    return sorted(os.sched_getaffinity(0))[number]


def stay_on(processor: int | None) -> None:
    """Let what this thread starts run on one processor alone, None for all that this process may use.

    Polars computes in another thread than the one that waits for it. Where both may run anywhere, the second one often
    begins on the processor of another worker, and its own is idle meanwhile: for 3 to 6 % of the time.
    """
    if sys.platform == "linux" and processor is not None:
        with suppress(OSError):  # taken from this process since
            os.sched_setaffinity(0, {processor})


def keep_on(processor: int) -> None:
    """Let all threads of this process, and those that they start, run on one processor alone."""
    if sys.platform == "linux":
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # it has ended since
                os.sched_setaffinity(int(thread.name), {processor})


def can_spawn() -> bool:
    """Return whether this process may have children: an embedded interpreter and a daemonic worker may not."""
    return bool(sys.executable) and not multiprocessing.current_process().daemon


def begin_worker(limits: Mapping[str, int]) -> None:
    """Use the limits of the parent, and leave Ctrl-C to it.

    A terminal sends Ctrl-C to all processes, and each worker would print a traceback. It is blocked rather than only
    ignored, because Polars replaces what is ignored by a handler when it is loaded.
    """
    use_limits(limits)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":  # has no signal masks
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


@contextmanager
def ctrl_c_blocked() -> Iterator[None]:
    """Start workers in the block that do not get Ctrl-C: they inherit what is blocked. This process gets it afterwards.

    Otherwise, one that has not come as far as `begin_worker` would print a traceback.
    """
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # CPython unblocks the signal when it starts that process
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def threads_shared(workers: int) -> Iterator[None]:
    """Let Polars in each of several workers that start in the block use its share of the processors.

    It takes as many threads as there are processors, when it is loaded. Its allocator keeps memory between tables for
    10 s instead of half a second, in one arena for each thread: workers that analyze one range of steps after the other
    no longer spend a fifth of their time on new pages, and take a tenth more memory. Allocators ask for huge pages,
    where the system leaves that to programs: two workers then take an eighth less time to analyze 53 M spans.
    """
    share = max(1, core_count() // workers)
    before = {name: os.environ.get(name) for name in (THREADS, ALLOCATOR, LIBRARY)}
    own = [option for option in (before[ALLOCATOR] or "").split(",") if option and option not in OF_POLARS]
    of_workers = f"dirty_decay_ms:10000,muzzy_decay_ms:0,narenas:{share},thp:always".split(",")
    wanted = {THREADS: str(share), LIBRARY: f"{HUGE_PAGES}:{ONE_ARENA}"}
    os.environ.update({name: value for name, value in wanted.items() if before[name] is None})
    os.environ[ALLOCATOR] = ",".join(of_workers + own)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def memory_returned_soon() -> Iterator[None]:
    """Let Polars in workers that start in the block return memory within a second, instead of keeping it for 10 s.

    For tasks that take gigabytes: what each table leaves behind would add up. A setting of the user is kept.
    """
    before = os.environ.get(ALLOCATOR)
    os.environ[ALLOCATOR] = ",".join([RETURNED_SOON, *([before] if before else [])])  # the last one counts
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(ALLOCATOR, None)
        else:
            os.environ[ALLOCATOR] = before


@contextmanager
def main_hidden() -> Iterator[None]:
    """Keep workers that start in the block from importing the caller's `__main__`, as spawning otherwise does.

    A script without `if __name__ == "__main__"` would run again in every worker, and a program from standard input
    cannot be imported. Nothing in `__main__` is needed: only functions of modules run in the workers.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
