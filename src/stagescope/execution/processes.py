"""Worker processes on this machine.

`concurrent.futures` fails every item that is left when one worker is killed, and does not state which item it was
working on. Here each worker has a connection of its own, so that exactly that item is run again.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter, deque
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from stagescope.execution.executor import TRIES, name_of
from stagescope.execution.spawning import begin_worker, main_hidden
from stagescope.vocabulary.errors import CommandError
from stagescope.vocabulary.limits import changed_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from stagescope.execution.executor import Item, Result

PATIENCE_S = 5.0
"""How long a worker without work may take to end."""


@dataclass
class _Worker:
    process: SpawnProcess
    connection: Connection[Any, Any]
    place: int | None = None
    """Of the item that it works on."""


class Processes:
    """Spawned processes, which stay for several calls of `map`, and end with this process in any case."""

    def __init__(self, count: int, on_notice: Callable[[str], object]) -> None:
        """Start nothing yet: workers start when there are items for them."""
        self.title = f"{count} processes"
        self._count = count
        self._notice = on_notice
        self._workers: list[_Worker] = []

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield the results in the order of the items; see Executor."""
        try:
            yield from self._results(function, list(items))
        finally:  # a result that comes later would be taken for one of the next call
            self._end([worker for worker in self._workers if worker.place is not None])

    def close(self, *, is_failed: bool = False) -> None:  # noqa: ARG002 - those that work never finish
        """End the workers: those that work are terminated."""
        self._end(list(self._workers))

    def _results(self, function: Callable[[Any], Any], every: list[Any]) -> Iterator[Any]:
        waiting = deque(range(len(every)))
        results: dict[int, tuple[bool, Any]] = {}
        tries: Counter[int] = Counter()
        for place in range(len(every)):
            while place not in results:
                self._send(function, every, waiting)
                lost = self._receive(results)
                tries.update(lost)
                self._check(lost, every, tries)
                waiting.extendleft(lost)
            is_result, found = results.pop(place)
            if not is_result:
                raise found
            self._send(function, every, waiting)
            yield found

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

    def _check(self, lost: list[int], every: list[Any], tries: Counter[int]) -> None:
        """State which items run again. Raises CommandError if one has been tried often enough."""
        for place in lost:
            name = name_of(every[place])
            if tries[place] == TRIES:
                raise CommandError.workers_killed(name, TRIES)
            self._notice(f"a worker process was killed while it worked on {name}, which runs again")

    def _send(self, function: Callable[[Any], Any], every: list[Any], waiting: deque[int]) -> None:
        """Give each idle worker an item, and start workers up to the number of items."""
        while len(self._workers) < min(self._count, len(waiting)):
            self._workers.append(_started())
        for worker in self._workers:
            if worker.place is None and waiting:
                worker.place = waiting.popleft()
                try:
                    worker.connection.send((function, every[worker.place]))
                except OSError:  # killed while it was idle, which _receive notices
                    continue

    def _receive(self, results: dict[int, tuple[bool, Any]]) -> list[int]:
        """Wait for workers, add their results, and return the items whose workers were killed."""
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
                results[worker.place] = outcome
            worker.place = None
        return lost


def _started() -> _Worker:
    context = multiprocessing.get_context("spawn")
    own, others = context.Pipe()
    process = context.Process(target=_work, args=(others, changed_limits()), daemon=True)
    with main_hidden():
        process.start()
    others.close()  # so that its end is noticed here
    return _Worker(process, own)


def _work(connection: Connection[Any, Any], limits: Mapping[str, int]) -> None:
    """Run what is sent, until the other end is closed or gone."""
    begin_worker(limits)
    while True:
        try:
            function, item = connection.recv()
        except (EOFError, OSError):
            return
        try:
            outcome = True, function(item)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets it
            outcome = False, error
        try:
            connection.send(outcome)
        except OSError:
            return
