"""A cluster of Dask Distributed: local, by the address of its scheduler, or submitted to Slurm."""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections import deque
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from stagescope.execution import slurm_cluster
from stagescope.execution.executor import TRIES, Task, name_of, result_of
from stagescope.execution.spawning import keep_on, own_processor, threads_shared
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.errors import CommandError
from stagescope.vocabulary.limits import changed_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from distributed import Client, Future

    from stagescope.execution.executor import Item, Result

INSTALL = "pip install 'stagescope[cluster]'"
SAME_VERSIONS = ("python", "stagescope", "polars", "distributed")
WAIT_S = 60
"""For the scheduler and for its first worker."""
ENVIRONMENT = "distributed.nanny.pre-spawn-environ"
TRIM, TRIM_OF_DASK = "MALLOC_TRIM_THRESHOLD_", 65_536
"""What Dask sets for its workers. The C library then returns the memory of each array, which made an analysis take half
as long again."""
INTERVALS = {
    # of samples of the stack of each worker, for the dashboard: what Dask sets made an analysis take 8 % longer
    "distributed.worker.profile.interval": ("10ms", "200ms"),
    # at which scheduler and workers notice that their loop is late: took 4 % of a processor, for a warning after 3 s
    "distributed.admin.tick.interval": ("20ms", "500ms"),
}
"""What Dask sets, and what is used instead."""
PER_WORKER = 4
"""Items that are submitted at once: enough for every worker, and few enough for a scheduler with a million of them."""


def start(
    address: str, workers: int, on_notice: Callable[[str], object]
) -> tuple[Client, Callable[[], object]]:
    """Return a client of a cluster, and a function that ends the cluster if this call has started it.

    `workers` is how many Slurm is asked for. Raises CommandError if the cluster cannot be reached, or has no worker in
    time.
    """
    try:
        from distributed import Client, LocalCluster  # noqa: PLC0415 - an optional library
    except ImportError:
        raise CommandError.missing_library("distributed", "a cluster", INSTALL) from None
    try:
        if address.startswith("local:"):
            count = int(address.partition(":")[2])
            where = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
            with threads_shared(count), _configured():
                cluster = LocalCluster(n_workers=count, threads_per_worker=1, **where)
            client = Client(cluster)
            _keep_apart(client, count)
            return client, cluster.close
        if address == slurm_cluster.SLURM:
            return slurm_cluster.start(workers, on_notice, INSTALL)
        client = Client(address, timeout=WAIT_S)
        client.wait_for_workers(1, timeout=WAIT_S)
    except (OSError, TimeoutError, ValueError) as reason:
        raise CommandError.cluster_lost(address, str(reason)) from reason
    return client, bool


def _keep_apart(client: Client, workers: int) -> None:
    """Keep each local worker on a processor of its own, if there is exactly one for each; see `spawning.stay_on`."""
    for number, address in enumerate(client.scheduler_info(n_workers=-1)["workers"]):
        processor = own_processor(number, workers)
        if processor is not None and number < workers:
            client.run(keep_on, processor, workers=[address])


@contextmanager
def _configured() -> Iterator[None]:
    """Replace defaults of Dask that slow down local workers that start in the block, and nothing a user configured."""
    from dask import config  # noqa: PLC0415 - an optional library

    variables = dict(config.get(ENVIRONMENT, {}))
    if variables.get(TRIM) == TRIM_OF_DASK:
        del variables[TRIM]
    wanted: dict[str, Any] = {ENVIRONMENT: variables}
    wanted |= {name: here for name, (of_dask, here) in INTERVALS.items() if config.get(name, None) == of_dask}
    with config.set(wanted):
        yield


@contextmanager
def _late_ends_unnoted() -> Iterator[None]:
    """End a cluster in the block without warnings of local workers that take long to end, on a busy machine."""
    logger = logging.getLogger("distributed.nanny")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _is_no_lost_connection(record: logging.LogRecord) -> bool:
    """Return whether a message is about anything else than a scheduler that cannot be reached any more.

    The client is closed while it still tries to reach it.
    """
    return record.exc_info is None or not isinstance(record.exc_info[1], OSError | CancelledError)


class DaskCluster:
    """The workers of a Dask cluster. Items whose worker dies run once more on another one."""

    takes_large = False

    def __init__(self, address: str, workers: int, on_notice: Callable[[str], object]) -> None:
        """Start or reach a cluster, check the versions of its workers, and state where its dashboard is.

        Raises CommandError.
        """
        # They log a traceback if the scheduler is gone, which is an error of its own.
        logging.getLogger("distributed.batched").setLevel(logging.WARNING)
        logging.getLogger("distributed.client").addFilter(_is_no_lost_connection)
        self._client, self._end = start(address, workers, on_notice)
        self._address, self._notice = address, on_notice
        self._known = set(self._workers())
        self.title = f"{counted(len(self._known), 'Dask worker')} of {address}"
        try:
            self._check_versions()
        except BaseException:  # whatever it is, it is raised again
            self.close()
            raise
        on_notice(f"{self.title}; dashboard: {slurm_cluster.dashboard_link(self._client) or 'none'}")

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
        waiting = iter(items)
        running: deque[tuple[Item, Future]] = deque()
        while True:
            free = max(1, PER_WORKER * len(self._known)) - len(running)
            running.extend((item, self._submitted(task, item)) for item in islice(waiting, free))
            if not running:
                return
            result = self._result(*running.popleft())
            self._note_lost()
            yield result_of(result)

    def close(self, *, is_failed: bool = False) -> None:
        """Leave the cluster, and end it if it was started for this call."""
        with suppress(TimeoutError):  # of a scheduler that is gone
            self._client.close(timeout=1 if is_failed else WAIT_S)
        with _late_ends_unnoted():
            self._end()

    def _submitted(self, task: Task, item: Any) -> Future:
        # Not pure: an equal call of an earlier command may have written to a place that is gone.
        return self._client.submit(task, item, pure=False, retries=TRIES - 1)

    def _result(self, item: object, future: Future) -> bytes:
        from distributed import KilledWorker  # noqa: PLC0415 - an optional library
        from distributed.client import FutureCancelledError  # noqa: PLC0415 - same
        from distributed.comm import CommClosedError  # noqa: PLC0415 - same

        try:
            found: bytes = future.result()
        except KilledWorker:
            raise CommandError.workers_killed(name_of(item), TRIES) from None
        except (CommClosedError, FutureCancelledError) as reason:
            why = str(reason).splitlines()[-1:]  # after the name of the task, which is long
            raise CommandError.cluster_lost(self._address, "".join(why)) from reason
        return found

    def _workers(self) -> list[str]:
        return list(self._client.scheduler_info(n_workers=-1)["workers"])

    def _note_lost(self) -> None:
        """State which workers are gone: their items run again on others."""
        now = set(self._workers())
        for worker in sorted(self._known - now):
            self._notice(f"the worker {worker} is gone; what it worked on runs again on another one")
        self._known = now or self._known

    def _check_versions(self) -> None:
        found = self._client.get_versions(packages=["stagescope", "polars"])
        own = found["client"]["packages"]
        differences = {
            f"{name} {each['packages'].get(name)} instead of {own.get(name)}"
            for each in found["workers"].values()
            for name in SAME_VERSIONS
            if each["packages"].get(name) != own.get(name)
        }
        if differences:
            raise CommandError.cluster_versions(self._address, ", ".join(sorted(differences)))
