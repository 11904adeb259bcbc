"""Dask workers that Slurm starts, as the configuration of dask-jobqueue states (cores, memory, partition).

Any process that reaches a scheduler can run programs as its user, also those of other users of the cluster. The
scheduler and its workers therefore use TLS: with the certificates that Dask is configured with, or with temporary ones.
These are files in the home directory, which only their owner can read, until the end of the call.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import warnings
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from distributed import Client
    from distributed.security import Security

QUEUE_S = 3600
"""For the first worker: jobs may be queued."""

SLURM = "slurm"
ROLES = ("client", "scheduler", "worker")
ON_THIS_MACHINE = {"dashboard_address": "127.0.0.1:0"}
HOME = "~"
LOOK_S, ASKED_EVERY_S = 0.2, 10.0
"""How often to look for the first worker, and to ask Slurm, which many users share, whether there are jobs yet."""

ADJUST = (
    "adjust DASK_JOBQUEUE__SLURM__QUEUE, ACCOUNT, CORES, MEMORY or WALLTIME, or ~/.config/dask/jobqueue.yaml"
)
SEE_LOGS = "their output is in DASK_JOBQUEUE__SLURM__LOG_DIRECTORY, or in slurm-JOB.out of this directory"
SUBMIT = "run the command on a machine that can submit jobs"
CONFIGURE = (
    "set DASK_JOBQUEUE__SLURM__CORES=1 and DASK_JOBQUEUE__SLURM__MEMORY=4GB, or ~/.config/dask/jobqueue.yaml"
)


def start(
    workers: int, on_notice: Callable[[str], object], install: str
) -> tuple[Client, Callable[[], object]]:
    """Return a client of a cluster, of whose `workers` one has started, and a function that ends the cluster.

    Raises CommandError, OSError and TimeoutError.
    """
    started = ExitStack()
    try:
        cluster = _submitted(workers, install, started)
        on_notice(f"submitted {counted(workers, 'job')} to Slurm; waiting for the first to start")
        client = _connected(cluster, started)
    except BaseException:  # such as Ctrl-C while the jobs are queued; raised again
        started.close()
        raise
    return client, started.close


def dashboard_link(client: Client) -> str | None:
    """Return the address of the dashboard, which is one of this machine alone unless it was configured."""
    link: str | None = client.dashboard_link
    spec = getattr(client.cluster, "scheduler_spec", None) or {}
    if not link or spec.get("options", {}).get("dashboard_address") != ON_THIS_MACHINE["dashboard_address"]:
        return link
    return urlsplit(link)._replace(netloc=f"127.0.0.1:{urlsplit(link).port}").geturl()


def _submitted(workers: int, install: str, started: ExitStack) -> Any:
    """Return a cluster that has submitted its jobs; `started` ends it."""
    try:
        import cryptography  # noqa: F401, PLC0415 - an optional library, which Dask makes certificates with

        with _handler_kept():
            from dask_jobqueue import SLURMCluster  # noqa: PLC0415 - an optional library
    except ImportError as missing:
        library = str(missing.name).replace("_", "-")
        raise CommandError.missing_library(library, "--cluster slurm", install) from None
    if shutil.which("sbatch") is None:
        raise _error("--cluster slurm needs the program sbatch, which is not on PATH", SUBMIT)
    settings = _settings(started)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as that the port of a dashboard is taken
        cluster = started.enter_context(SLURMCluster(protocol="tls://", **settings))
    _check_script(cluster.job_script())
    cluster.scale(workers)
    return cluster


def _check_script(script: str) -> None:
    """Raise CommandError if Slurm would refuse the script: what it refuses later is only logged, by Dask."""
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
        file.write(script)
        file.flush()
        tested = _output("sbatch", "--test-only", file.name)
    if tested.returncode:
        reason = (tested.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise _error(f"Slurm refuses the jobs: {reason.removeprefix('sbatch: ')}", ADJUST)


def _output(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _connected(cluster: Any, started: ExitStack) -> Client:
    """Return a client of the cluster as soon as it has a worker. Raises CommandError if all jobs end before that."""
    from distributed import Client  # noqa: PLC0415 - an optional library

    client = started.enter_context(Client(cluster))
    until_s = time.monotonic() + QUEUE_S
    asked_s = time.monotonic()
    while not client.scheduler_info(n_workers=-1)["workers"]:
        now_s = time.monotonic()
        if now_s > until_s:
            raise TimeoutError(f"no job has started within {QUEUE_S} s")
        if now_s > asked_s + ASKED_EVERY_S:
            asked_s = now_s
            _check_jobs(cluster)
        time.sleep(LOOK_S)
    return client


def _check_jobs(cluster: Any) -> None:
    """Raise CommandError if Slurm has none of the jobs of a cluster any more, which have no worker yet."""
    numbers = [each.job_id for each in cluster.workers.values()]
    if not numbers or not all(numbers):
        return
    queued = _output("squeue", "--noheader", "--format=%i", f"--jobs={','.join(map(str, numbers))}")
    if not queued.stdout.strip():
        raise _error("the Slurm jobs ended before any Dask worker started", SEE_LOGS)


@contextmanager
def _handler_kept() -> Iterator[None]:
    """Restore the handler of Ctrl-C: importing dask-jobqueue 0.9 installs one that exits with 0."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _settings(started: ExitStack) -> dict[str, Any]:
    """Return what is not configured: certificates, until `started` ends, and the address of the dashboard."""
    import dask.config  # noqa: PLC0415 - an optional library
    from distributed.security import Security  # noqa: PLC0415 - same

    for name in ("cores", "memory"):
        if dask.config.get(f"jobqueue.slurm.{name}", None) is None:
            raise _error(f"dask-jobqueue is not configured for Slurm: no {name} of a job", CONFIGURE)
    security = Security()
    if not security.tls_worker_key:
        shared = dask.config.get("jobqueue.slurm.shared-temp-directory", None) or HOME
        place = Path(os.path.expandvars(shared)).expanduser()
        folder = tempfile.TemporaryDirectory(prefix=".stagescope-", dir=place)
        security = _temporary(Path(started.enter_context(folder)))
    own: dict[str, Any] = {"security": security}
    if not dask.config.get("jobqueue.slurm.scheduler-options", None):
        own["scheduler_options"] = ON_THIS_MACHINE
    return own


def _temporary(folder: Path) -> Security:
    """Return new certificates, in files of a folder that only this user can read."""
    from distributed.security import Security  # noqa: PLC0415 - an optional library

    made = Security.temporary().get_tls_config_for_role("worker")
    files = {name: folder / name for name in ("ca_file", "cert", "key")}
    for name, file in files.items():
        file.touch(mode=0o600)
        file.write_text(made[name])
    of_roles = {f"tls_{role}_{name}": str(files[name]) for role in ROLES for name in ("cert", "key")}
    return Security(tls_ca_file=str(files["ca_file"]), require_encryption=True, **of_roles)


def _error(text: str, advice: str) -> CommandError:
    error = CommandError(text, advice)
    error.exit_code = 1
    return error
