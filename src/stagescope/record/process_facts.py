"""Facts about a process and its place in the run that are known before any framework is imported."""

from __future__ import annotations

import os
import sys

from stagescope.record.clock import CLOCK_NAME, boot_id
from stagescope.record.format import FORMAT_VERSION

_RANK = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "PADDLE_TRAINER_ID", "SLURM_PROCID")
_WORLD_SIZE = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PADDLE_TRAINERS_NUM", "SLURM_NTASKS")
_NODES = ("GROUP_WORLD_SIZE", "CROSS_SIZE", "PADDLE_NNODES", "SLURM_STEP_NUM_NODES", "SLURM_NNODES")
_HERE_AND_EVERYWHERE = (
    ("LOCAL_WORLD_SIZE", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
    ("PADDLE_LOCAL_SIZE", "PADDLE_GLOBAL_SIZE"),
    ("MPI_LOCALNRANKS", "PMI_SIZE"),
)
"""Variables of torchrun (torch/distributed/elastic/agent/server/local_elastic_agent.py of torch 2.9), Open MPI, Paddle
(python/paddle/distributed/launch of 3.x), MPICH and Slurm. CROSS_SIZE is DeepSpeed's (launcher/launch.py of 0.18).
"""


def process_facts(began_ns: int) -> dict[str, object]:
    """Return the initial facts of the header. Called with the first span, when the environment is complete."""
    return {
        "format": "stagescope recording",
        "version": FORMAT_VERSION,
        "run": os.environ.get("STAGESCOPE_RUN") or os.environ.get("TORCHELASTIC_RUN_ID", ""),
        "rank": _number(*_RANK) or 0,
        "world_size": _number(*_WORLD_SIZE),
        "local_rank": _number("LOCAL_RANK"),
        "host": os.uname().nodename,
        "boot": boot_id(),
        "pid": os.getpid(),
        "process_start_ns": began_ns,
        "clock": CLOCK_NAME,
        "python": sys.version.split()[0],
    }


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


def _number(*variables: str) -> int | None:
    for variable in variables:
        value = os.environ.get(variable, "")
        if value.isdecimal():
            return int(value)
    return None
