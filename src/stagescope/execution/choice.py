"""Which executor a call uses: `workers` processes of this machine, or the cluster that an address names.

| address | runs on |
| --- | --- |
| `local:4` | 4 Dask workers on this machine |
| `tcp://HOST:PORT`, `tls://HOST:PORT` | the Dask cluster with this scheduler |
| `slurm` | Dask workers that are submitted to Slurm, as dask-jobqueue is configured |
| `ray` | the Ray cluster that this machine belongs to, or else a Ray of this machine alone |
| `ray://HOST:PORT` | the Ray cluster with this address |

Who can reach an unauthenticated scheduler can run anything on its workers. Therefore `tcp://` and `ray://` are refused
for other machines, unless `trusted+` in front of the address states that their network is trusted.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING

from stagescope.execution.executor import InThisProcess
from stagescope.execution.processes import Processes
from stagescope.execution.slurm_cluster import SLURM
from stagescope.execution.spawning import can_spawn, core_count
from stagescope.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stagescope.execution.executor import Executor

TRUSTED = "trusted+"
RAY = "ray"
KNOWN = ("tcp://HOST:PORT", "tls://HOST:PORT", "local:WORKERS", SLURM, RAY, "ray://HOST:PORT")
_LOCAL = re.compile(r"local:([1-9]\d{0,3})", re.ASCII)
_REMOTE = re.compile(r"(tcp|tls|ray)://(\[[^\]]+\]|[^:/\s]+):(\d{1,5})", re.ASCII)


@contextmanager
def executor_for(
    workers: int | None = None,
    cluster: str | None = None,
    on_notice: Callable[[str], object] = str,
    *,
    is_large: bool = False,
) -> Iterator[Executor]:
    """Yield the executor of a call, and end its workers afterwards.

    `workers` is the number of processes, by default one per processor; of a `cluster` through Slurm, the number
    of Dask workers. If the call `is_large`, a single worker is another process as well, because this one keeps what is
    known of the whole run. `on_notice` is called with what happens to workers, for people. Raises UsageError for an
    unknown or untrusted `cluster`; CommandError if it cannot be reached, has other versions, or lacks a library.
    """
    executor = _executor(workers, cluster, on_notice, is_large=is_large)
    try:
        yield executor
    except BaseException:  # whatever it is, it is raised again
        executor.close(is_failed=True)
        raise
    executor.close()


@contextmanager
def for_large_items(executor: Executor, on_notice: Callable[[str], object] = str) -> Iterator[Executor]:
    """Yield an executor for items that may be large: the same one, or instead of a cluster one process of this machine.

    This process has the items, and on a local cluster the scheduler: what runs on them has its memory elsewhere.
    """
    if executor.takes_large or not can_spawn():
        yield executor if executor.takes_large else InThisProcess()
        return
    alone = Processes(1, on_notice)
    try:
        yield alone
    finally:
        alone.close()


def _executor(
    workers: int | None, cluster: str | None, on_notice: Callable[[str], object], *, is_large: bool
) -> Executor:
    if cluster is None:
        count = workers or core_count()
        return Processes(count, on_notice) if (count > 1 or is_large) and can_spawn() else InThisProcess()
    address = checked_address(cluster)
    if address.startswith(RAY):
        from stagescope.execution.ray_cluster import RayCluster  # noqa: PLC0415 - an optional library

        return RayCluster(address, on_notice)
    from stagescope.execution.dask_cluster import DaskCluster  # noqa: PLC0415 - same

    return DaskCluster(address, workers or core_count(), on_notice)


def checked_address(cluster: str) -> str:
    """Return the address of a cluster without TRUSTED. Raises UsageError if it is unknown or not trusted."""
    address = cluster.removeprefix(TRUSTED)
    if address in (SLURM, RAY) or _LOCAL.fullmatch(address):
        return address
    found = _REMOTE.fullmatch(address)
    if found is None:
        raise UsageError.cluster_malformed(cluster, KNOWN)
    if found[1] != "tls" and not _is_loopback(found[2]) and not cluster.startswith(TRUSTED):
        raise UsageError.cluster_not_trusted(cluster, f"{TRUSTED}{address}")
    return address


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
