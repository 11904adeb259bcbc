"""Work that workers do while this process does something else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from queue import SimpleQueue
from threading import Event
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from stagescope.execution.executor import Executor, Item, Result


@contextmanager
def in_background(
    executor: Executor, function: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[Iterator[Result]]:
    """Run a function on items during the block, and yield their results in order: each is waited for when it is used.

    The iterator raises what `map` of the executor raises. The executor must have workers, and do nothing else in the
    block. What is not done by the end of the block is given up as soon as the next result is there.
    """
    given_up = Event()
    found: SimpleQueue[tuple[bool, Any] | None] = SimpleQueue()

    def work() -> None:
        try:
            for result in executor.map(function, items, beside=True):
                found.put((True, result))
                if given_up.is_set():
                    break
        except BaseException as error:  # noqa: BLE001 - whatever it is, the caller gets it
            found.put((False, error))
        found.put(None)

    def results() -> Iterator[Result]:
        while (outcome := found.get()) is not None:
            is_result, value = outcome
            if not is_result:
                raise value
            yield value

    with ThreadPoolExecutor(1) as thread:
        thread.submit(copy_context().run, work)  # limits are in the context
        try:
            yield results()
        finally:
            given_up.set()
