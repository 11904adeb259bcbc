"""Facts about a process and its place in the run that are known before any framework is imported."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from stagescope.record.clock import CLOCK_NAME, boot_id, namespace
from stagescope.record.format import FORMAT_VERSION
from stagescope.record.run_identity import LAUNCH_VARIABLE, RUN_VARIABLE, launcher_runs

if TYPE_CHECKING:
    from collections.abc import Mapping

_RANK = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "PADDLE_TRAINER_ID", "SLURM_PROCID")
_WORLD_SIZE = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PADDLE_TRAINERS_NUM", "SLURM_NTASKS")
_NODES = ("GROUP_WORLD_SIZE", "CROSS_SIZE", "PADDLE_NNODES", "SLURM_STEP_NUM_NODES", "SLURM_NNODES")
_HERE_AND_EVERYWHERE = (
    ("LOCAL_WORLD_SIZE", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
    ("PADDLE_LOCAL_SIZE", "PADDLE_GLOBAL_SIZE"),
    ("MPI_LOCALNRANKS", "PMI_SIZE"),
)
_RESTARTS = {"torchelastic": "TORCHELASTIC_RESTART_COUNT", "slurm": "SLURM_RESTART_COUNT"}
"""Variables of torchrun (torch/distributed/elastic/agent/server/local_elastic_agent.py of torch 2.9), Open MPI, Paddle
(python/paddle/distributed/launch of 3.x), MPICH and Slurm. CROSS_SIZE is DeepSpeed's (launcher/launch.py of 0.18).
"""


def process_facts(began_ns: int) -> dict[str, object]:
    """Return the initial facts of the header. Called with the first span, when the environment is complete."""
    return {
        "format": "stagescope recording",
        "version": FORMAT_VERSION,
        "run": os.environ.get(RUN_VARIABLE) or next(iter(launcher_runs(os.environ)), ""),
        "launch": os.environ.get(LAUNCH_VARIABLE),
        "restarts": restarts(),
        "restarts_left": restarts_left(),
        "rank": _number(*_RANK) or 0,
        "world_size": _number(*_WORLD_SIZE),
        "local_rank": _number("LOCAL_RANK"),
        "host": os.uname().nodename,
        "boot": boot_id(),
        "pid": os.getpid(),
        "parent_pid": os.getppid(),
        "process_start_ns": began_ns,
        "clock": CLOCK_NAME,
        "pid_namespace": namespace("pid"),
        "time_namespace": namespace("time"),
        "python": sys.version.split()[0],
    }


def restarts() -> dict[str, int]:
    """Return how often each launcher has restarted the run, as far as the environment states it."""
    counts = {launcher: _number(variable) for launcher, variable in _RESTARTS.items()}
    return {launcher: count for launcher, count in counts.items() if count is not None}


def restarts_left() -> int | None:
    """Return how often torchrun may start its processes again, None if the environment does not state it."""
    done, most = _number(_RESTARTS["torchelastic"]), _number("TORCHELASTIC_MAX_RESTARTS")
    return None if done is None or most is None else max(0, most - done)


def launcher_rank(environment: Mapping[str, str]) -> int | None:
    """Return the rank that a launcher has given to a process with this environment."""
    return _number(*_RANK, environment=environment)


def machine_directory(directory: str) -> str:
    """Return the output directory of this machine: a folder named after the machine if the run uses several of them.

    This way the ranks of a large run do not all create their files in one directory of a shared file system.
    """
    if not _several_machines():
        return directory
    name = os.uname().nodename.replace(os.sep, "_").lstrip(".")
    return os.path.join(
        directory, name or "machine"
    )  # importing pathlib would cost every process start-up time


def _several_machines() -> bool:
    """Return whether the launcher's variables show that the run uses more than one machine."""
    for here, everywhere in _HERE_AND_EVERYWHERE:
        own, all_ = _number(here), _number(everywhere)
        if own is not None and all_ is not None:
            return own < all_
    return (_number(*_NODES) or 1) > 1


def _number(*variables: str, environment: Mapping[str, str] = os.environ) -> int | None:
    for variable in variables:
        value = environment.get(variable, "")
        if value.isdecimal():
            return int(value)
    return None
