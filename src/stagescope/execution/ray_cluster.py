"""A Ray cluster, which many clusters for language models run anyway."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

from stagescope.execution.executor import TRIES, Task, name_of, result_of
from stagescope.vocabulary.errors import CommandError
from stagescope.vocabulary.limits import changed_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from stagescope.execution.executor import Item, Result

INSTALL = "pip install 'ray>=2.52'"
PER_CORE = 4


class RayCluster:
    """The cores of a Ray cluster. Items whose worker dies run once more on another one."""

    takes_large = False

    def __init__(self, address: str, on_notice: Callable[[str], object]) -> None:
        """Connect to a cluster; `ray` starts one on this machine if it belongs to none. Raises CommandError."""
        try:
            import ray  # noqa: PLC0415 - an optional library
        except ImportError:
            raise CommandError.missing_library("ray", "a cluster", INSTALL) from None
        self._ray, self._address = ray, address
        try:
            where = None if address == "ray" else address
            ray.init(address=where, include_dashboard=False, log_to_driver=False, logging_level="warning")
        except (ConnectionError, OSError, RuntimeError) as reason:
            raise CommandError.cluster_lost(address, str(reason)) from reason
        self._cores = int(ray.cluster_resources().get("CPU", 1))
        self.title = f"{self._cores} cores of Ray"
        on_notice(self.title)

    def prepare(self, function: Callable[[Any], Any], items: int) -> None:
        """Start nothing: the workers are running."""

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        *,
        beside: bool = False,  # noqa: ARG002 - its workers may be anywhere
    ) -> Iterator[Result]:
        """Yield the results in the order of the items; see Executor."""
        task = Task(function, changed_limits())
        run = self._ray.remote(max_retries=TRIES - 1)(_run)
        waiting = iter(items)
        running: deque[tuple[Item, Any]] = deque()
        while True:
            free = PER_CORE * self._cores - len(running)
            running.extend((item, run.remote(task, item)) for item in islice(waiting, free))
            if not running:
                return
            yield self._result(*running.popleft())

    def close(self, *, is_failed: bool = False) -> None:  # noqa: ARG002 - it does not wait
        """Leave the cluster; one that was started for this call ends."""
        self._ray.shutdown()

    def _result(self, item: object, reference: Any) -> Any:
        errors = self._ray.exceptions
        try:
            found = self._ray.get(reference)
        except errors.RayTaskError as error:
            raise error.cause from None
        except (errors.WorkerCrashedError, errors.OutOfMemoryError):
            raise CommandError.workers_killed(name_of(item), TRIES) from None
        except errors.RayError as reason:
            raise CommandError.cluster_lost(self._address, str(reason)) from reason
        return result_of(found)


def _run(task: Task, item: object) -> bytes:
    return task(item)
