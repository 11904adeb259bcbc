"""Worker processes on this machine.

`concurrent.futures` fails every item that is left when one worker is killed, and does not state which item it was
working on. Here each worker has a connection of its own, so that exactly that item is run again. While a worker works,
its next item is already there: otherwise, where all processors are busy, it would wait about 10 ms for this process to
be scheduled and to send one.
"""

from __future__ import annotations

import gc
import multiprocessing
import pickle
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import wait
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

from stagescope.execution.executor import TRIES, name_of
from stagescope.execution.spawning import (
    begin_worker,
    core_count,
    ctrl_c_blocked,
    main_hidden,
    own_processor,
    stay_on,
    threads_shared,
)
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
AT_WORKER = 2
"""Items that a worker has at most: the one that it works on, and those after it."""


@dataclass
class _Worker:
    """A process; `places` are those of its items, of which it works on the first.

    `number` is unlike that of all other workers, and less than how many there are at most.
    """

    process: SpawnProcess
    connection: Connection[Any, Any]
    number: int
    places: deque[int] = field(default_factory=deque)


@dataclass
class _Work:
    """One call of `map`: the items that were taken and have no result yet, by place, and the results by place.

    `workers` is how many work on them, and `upcoming` are the items after these, as many as were looked at.
    """

    items: Iterator[Any]
    workers: int
    upcoming: deque[Any] = field(default_factory=deque)
    held: dict[int, Any] = field(default_factory=dict)
    again: deque[int] = field(default_factory=deque)
    results: dict[int, tuple[bool, Any]] = field(default_factory=dict)
    tries: Counter[int] = field(default_factory=Counter)
    taken: int = 0

    def next_place(self) -> int | None:
        """Return the place of an item to work on: one that a killed worker had, or the next one; None without any."""
        if self.again:
            return self.again.popleft()
        if not self.has(1):
            return None
        place, self.taken = self.taken, self.taken + 1
        self.held[place] = self.upcoming.popleft()
        return place

    def has(self, count: int) -> bool:
        """Return whether so many items have not been taken yet."""
        self.upcoming.extend(islice(self.items, max(0, count - len(self.upcoming))))
        return len(self.upcoming) >= count


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
            self._start_one()
            with suppress(OSError):  # killed already, which _receive notices
                self._workers[-1].connection.send((function,))

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], *, beside: bool = False
    ) -> Iterator[Result]:
        """Yield the results in the order of the items; see Executor."""
        workers = max(1, min(self._count, core_count() - 1)) if beside else self._count
        try:
            yield from self._results(function, _Work(iter(items), workers))
        finally:  # a result that comes later would be taken for one of the next call
            self._end([worker for worker in self._workers if worker.places])

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
            if worker.places:
                worker.process.terminate()
            worker.connection.close()
            self._workers.remove(worker)
        for worker in workers:
            worker.process.join(PATIENCE_S)
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join()

    def _note_lost(self, lost: list[deque[int]], work: _Work) -> None:
        """State which items run again, of those that killed workers had.

        Raises CommandError if one has been tried often enough.
        """
        for places in lost:
            place = places[0]
            work.tries[place] += 1
            name = name_of(work.held[place])
            if work.tries[place] == TRIES:
                raise CommandError.workers_killed(name, TRIES)
            self._notice(f"a worker process was killed while it worked on {name}, which runs again")
            work.again.extendleft(reversed(places))

    def _send(self, function: Callable[[Any], Any], work: _Work, place: int) -> None:
        """Give each worker an item, and start workers while there are items for them; then give them the next ones.

        The last items are left to the workers that are the first to have none. `place` is that of the result that is
        needed next.
        """
        while work.again or (work.taken - place < AHEAD * work.workers and work.has(1)):
            worker = self._next_worker(work)
            following = None if worker is None else work.next_place()
            if worker is None or following is None:
                return
            worker.places.append(following)
            with suppress(OSError):  # killed while it was idle, which _receive notices
                worker.connection.send((function, work.held[following]))

    def _next_worker(self, work: _Work) -> _Worker | None:
        """Return the worker that gets another item, None if all have enough; start one if all others have items."""
        chosen = self._workers[: work.workers]
        idle = next((worker for worker in chosen if not worker.places), None)
        if idle is None and len(chosen) < work.workers:
            idle = self._start_one()
        if idle is not None or work.again or not work.has(work.workers + 1):
            return idle
        return next((worker for worker in chosen if len(worker.places) < AT_WORKER), None)

    def _start_one(self) -> _Worker:
        """Start another worker, which has the place of one that was killed, if there is any."""
        number = min(set(range(self._count)) - {worker.number for worker in self._workers})
        worker = _started(number, self._count)
        self._workers.append(worker)
        return worker

    def _receive(self, work: _Work) -> list[deque[int]]:
        """Wait for workers, add their results, and return the places of the items that killed workers had."""
        lost = []
        ready = wait([worker.connection for worker in self._workers])
        for worker in [each for each in self._workers if each.connection in ready]:
            try:
                outcome = worker.connection.recv()
            except (EOFError, OSError):
                self._workers.remove(worker)
                worker.connection.close()
                worker.process.join()
                lost += [worker.places] if worker.places else []
                continue
            place = worker.places.popleft()
            work.results[place] = outcome
            del work.held[place]
        return lost


def _started(number: int, workers: int) -> _Worker:
    context = multiprocessing.get_context("spawn")
    own, others = context.Pipe()
    process = context.Process(target=_work, args=(others, changed_limits()), daemon=True)
    with ThreadPoolExecutor(
        1
    ) as aside:  # Ctrl-C interrupts this thread: half started, it would print a traceback
        aside.submit(_start, process, number, workers).result()
    others.close()  # so that its end is noticed here
    return _Worker(process, own, number)


def _start(process: SpawnProcess, number: int, workers: int) -> None:
    """Start one of several workers, in a thread that does nothing else."""
    stay_on(own_processor(number, workers))
    with main_hidden(), threads_shared(workers), ctrl_c_blocked():
        process.start()


def _work(connection: Connection[Any, Any], limits: Mapping[str, int]) -> None:
    """Run what is sent, until the other end is closed or gone."""
    begin_worker(limits)
    # The modules of the first function are imported with it: looking for cycles in them takes a tenth of that time.
    gc.disable()
    received: SimpleQueue[bytes | None] = SimpleQueue()
    Thread(target=_read, args=(connection, received), daemon=True).start()
    while (message := received.get()) is not None:
        function, *items = pickle.loads(message)  # noqa: S301 - from the process that started this one
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


def _read(connection: Connection[Any, Any], received: SimpleQueue[bytes | None]) -> None:
    """Receive what is sent while this process works, so that the sender never waits; None when there is no more."""
    with suppress(EOFError, OSError):
        while True:
            received.put(connection.recv_bytes())
    received.put(None)
