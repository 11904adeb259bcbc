"""The interface of an executor, and the simplest one."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from stagescope.vocabulary.errors import CommandError
from stagescope.vocabulary.limits import use_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_RESULT_BYTES = 10_000_000
"""Of one result: all results pass through the process that called, and on a cluster through its scheduler."""
TRIES = 2
"""An item whose worker was killed is run once more, because it may not have been the reason."""


class Executor(Protocol):
    """Runs functions of modules on items; `title` is what it consists of, for people.

    `takes_large` states whether items may be large: on a cluster, they would pass through its scheduler.
    """

    title: str
    takes_large: bool

    def prepare(self, function: Callable[[Any], Any], items: int) -> None:
        """Start the workers for a number of items of `map`, if that takes a while; this process goes on meanwhile."""

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], *, beside: bool = False
    ) -> Iterator[Result]:
        """Yield `function(item)` for each item, in the order of the items.

        With `beside`, this process has other work meanwhile: processes of this machine leave a processor to it.
        Raises what `function` raises, and CommandError if the workers of an item were killed twice, or if the cluster
        is gone.
        """

    def close(self, *, is_failed: bool = False) -> None:
        """End all workers that were started; without waiting for what they are doing, if `is_failed`."""


class InThisProcess:
    """Runs one item after the other, without any worker."""

    title = "1 process"
    takes_large = True

    def prepare(self, function: Callable[[Any], Any], items: int) -> None:
        """Start nothing."""

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        beside: bool = False,  # noqa: ARG002 - there are no workers
    ) -> Iterator[Result]:
        """Yield the results, each computed when it is asked for."""
        return map(function, items)

    def close(self, *, is_failed: bool = False) -> None:
        """End nothing."""


@dataclass(frozen=True)
class Task:
    """A function with the limits of the call, for workers on a cluster, which start with the defaults."""

    function: Callable[[Any], Any]
    limits: Mapping[str, int]

    def __call__(self, item: object) -> bytes:
        """Return the pickled outcome for an item, for `result_of`.

        What the function raises is an outcome, too: a cluster would log it with a traceback, and try once more.
        """
        use_limits(self.limits)
        try:
            return self._result(item)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets it
            return pickle.dumps((False, error), pickle.HIGHEST_PROTOCOL)

    def _result(self, item: object) -> bytes:
        outcome = pickle.dumps((True, self.function(item)), pickle.HIGHEST_PROTOCOL)
        if len(outcome) > MOST_RESULT_BYTES:
            raise CommandError.result_too_large(name_of(item), len(outcome), MOST_RESULT_BYTES)
        return outcome


def result_of(outcome: bytes) -> Any:
    """Return the result in an outcome of a Task, or raise what its function has raised."""
    is_result, found = pickle.loads(outcome)  # noqa: S301 - of a worker that this call trusts with its code
    if not is_result:
        raise found
    return found


def name_of(item: object) -> str:
    """Return how messages name an item: its attribute `name`, or its text."""
    return str(getattr(item, "name", item))
