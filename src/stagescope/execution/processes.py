"""Worker processes on this machine.

`concurrent.futures` fails every item that is left when one worker is killed, and does not state which item it was
working on. Here each worker has a connection of its own, so that exactly that item is run again.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from stagescope.execution.executor import TRIES, name_of
from stagescope.execution.spawning import begin_worker, ctrl_c_blocked, main_hidden, threads_shared
from stagescope.vocabulary.errors import CommandError
from stagescope.vocabulary.limits import changed_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from stagescope.execution.executor import Item, Result

PATIENCE_S = 5.0
"""How long a worker without work may take to end."""


AHEAD = 4
"""Items per worker that may be done before an earlier one: their results wait in memory."""


@dataclass
class _Worker:
    process: SpawnProcess
    connection: Connection[Any, Any]
    place: int | None = None
    """Of the item that it works on."""


@dataclass
class _Work:
    """One call of `map`: the items that were taken and have no result yet, by place, and the results by place."""

    items: Iterator[Any]
    held: dict[int, Any] = field(default_factory=dict)
    again: deque[int] = field(default_factory=deque)
    results: dict[int, tuple[bool, Any]] = field(default_factory=dict)
    tries: Counter[int] = field(default_factory=Counter)
    taken: int = 0

    def next_place(self) -> int | None:
        """Return the place of an item to work on: one whose worker was killed, or the next one; None without any."""
        if self.again:
            return self.again.popleft()
        for item in self.items:
            place, self.taken = self.taken, self.taken + 1
            self.held[place] = item
            return place
        return None


class Processes:
    """Spawned processes, which stay for several calls of `map`, and end with this process in any case.

    Items are taken when a worker can have them, so that large ones are not all in memory.
    """

    takes_large = True

    def __init__(self, count: int, on_notice: Callable[[str], object]) -> None:
        """Start nothing yet: workers start when there are items for them, or in `prepare`."""
        self.title = f"{count} processes"
        self._count = count
        self._notice = on_notice
        self._workers: list[_Worker] = []

    def prepare(self, function: Callable[[Any], Any], items: int) -> None:
        """Start the workers for a number of items, which import the module of the function; see Executor."""
        for _ in range(len(self._workers), min(self._count, items)):
            self._workers.append(_started(self._count))
            with suppress(OSError):  # killed already, which _receive notices
                self._workers[-1].connection.send((function,))

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield the results in the order of the items; see Executor."""
        try:
            yield from self._results(function, _Work(iter(items)))
        finally:  # a result that comes later would be taken for one of the next call
            self._end([worker for worker in self._workers if worker.place is not None])

    def close(self, *, is_failed: bool = False) -> None:  # noqa: ARG002 - those that work never finish
        """End the workers: those that work are terminated."""
        self._end(list(self._workers))

    def _results(self, function: Callable[[Any], Any], work: _Work) -> Iterator[Any]:
        place = 0
        while True:
            self._send(function, work, place)
            while place not in work.results:
                if place == work.taken:
                    return
                self._note_lost(self._receive(work), work)
                self._send(function, work, place)
            is_result, found = work.results.pop(place)
            if not is_result:
                raise found
            yield found
            place += 1

    def _end(self, workers: list[_Worker]) -> None:
        """End some of the workers: those that work are terminated, others end when their connection does."""
        for worker in workers:
            if worker.place is not None:
                worker.process.terminate()
            worker.connection.close()
            self._workers.remove(worker)
        for worker in workers:
            worker.process.join(PATIENCE_S)
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join()

    def _note_lost(self, lost: list[int], work: _Work) -> None:
        """State which items run again. Raises CommandError if one has been tried often enough."""
        for place in lost:
            work.tries[place] += 1
            name = name_of(work.held[place])
            if work.tries[place] == TRIES:
                raise CommandError.workers_killed(name, TRIES)
            self._notice(f"a worker process was killed while it worked on {name}, which runs again")
        work.again.extendleft(lost)

    def _send(self, function: Callable[[Any], Any], work: _Work, place: int) -> None:
        """Give each idle worker an item, and start workers while there are items for them.

        `place` is that of the result that is needed next.
        """
        while (busy := sum(worker.place is not None for worker in self._workers)) < self._count:
            is_ahead = work.taken - place >= AHEAD * self._count
            following = None if is_ahead and not work.again else work.next_place()
            if following is None:
                return
            if busy == len(self._workers):
                self._workers.append(_started(self._count))
            worker = next(each for each in self._workers if each.place is None)
            worker.place = following
            with suppress(OSError):  # killed while it was idle, which _receive notices
                worker.connection.send((function, work.held[following]))

    def _receive(self, work: _Work) -> list[int]:
        """Wait for workers, add their results, and return the places of items whose workers were killed."""
        lost = []
        ready = wait([worker.connection for worker in self._workers])
        for worker in [each for each in self._workers if each.connection in ready]:
            try:
                outcome = worker.connection.recv()
            except (EOFError, OSError):
                self._workers.remove(worker)
                worker.connection.close()
                worker.process.join()
                lost += [] if worker.place is None else [worker.place]
                continue
            if worker.place is not None:
                work.results[worker.place] = outcome
                del work.held[worker.place]
            worker.place = None
        return lost


def _started(workers: int) -> _Worker:
    context = multiprocessing.get_context("spawn")
    own, others = context.Pipe()
    process = context.Process(target=_work, args=(others, changed_limits()), daemon=True)
    with ThreadPoolExecutor(
        1
    ) as aside:  # Ctrl-C interrupts this thread: half started, it would print a traceback
        aside.submit(_start, process, workers).result()
    others.close()  # so that its end is noticed here
    return _Worker(process, own)


def _start(process: SpawnProcess, workers: int) -> None:
    with main_hidden(), threads_shared(workers), ctrl_c_blocked():
        process.start()


def _work(connection: Connection[Any, Any], limits: Mapping[str, int]) -> None:
    """Run what is sent, until the other end is closed or gone."""
    begin_worker(limits)
    # The modules of the first function are imported with it: looking for cycles in them takes a tenth of that time.
    gc.disable()
    while True:
        try:
            function, *items = connection.recv()
        except (EOFError, OSError):
            return
        if not gc.isenabled():
            gc.freeze()
            gc.enable()
        if not items:  # it was to be imported
            continue
        try:
            outcome = True, function(*items)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets it
            outcome = False, error
        try:
            connection.send(outcome)
        except OSError:
            return
