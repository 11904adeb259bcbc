"""Work that workers do while this process does something else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from threading import Event
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from stagescope.execution.executor import Executor, Item, Result


@contextmanager
def in_background(
    executor: Executor, function: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[Callable[[], list[Result]]]:
    """Run a function on items during the block, and yield a function that waits for the results, in their order.

    That function raises what `map` of the executor raises. The executor must have workers, and do nothing else in the
    block. Results that are not waited for by then are given up as soon as the next result is there.
    """
    given_up = Event()

    def work() -> list[Result]:
        results = []
        for result in executor.map(function, items):
            results.append(result)
            if given_up.is_set():
                break
        return results

    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(copy_context().run, work)  # limits are in the context
        try:
            yield waiting.result
        finally:
            given_up.set()
