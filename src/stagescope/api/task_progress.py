"""How many of the tasks of an analysis are done."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Result = TypeVar("Result")


class TaskProgress:
    """Counts the tasks that are done, and reports them from the first ones that are expected on."""

    def __init__(self, report: Callable[[int, int], object] | None) -> None:
        self._done = self._total = 0
        self._report = report or (lambda _done, _total: None)

    def expect(self, tasks: int) -> None:
        """Expect so many more tasks."""
        self._total += tasks
        self._report(self._done, self._total)

    def of(self, results: Iterator[Result]) -> Iterator[Result]:
        """Yield results, and report each."""
        for result in results:
            self._done += 1
            self._report(self._done, self._total)
            yield result
