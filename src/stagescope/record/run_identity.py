"""Which run a process belongs to, as the environment of its launcher states it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

RUN_VARIABLE = "STAGESCOPE_RUN"
LAUNCH_VARIABLE = "STAGESCOPE_LAUNCH"

_RUN_IDS = {
    "slurm": "SLURM_JOB_ID",
    "torchelastic": "TORCHELASTIC_RUN_ID",
    "kubernetes": "PET_RDZV_ID",
    "pmix": "PMIX_NAMESPACE",
    "flux": "FLUX_JOB_ID",
    "lsf": "LSB_JOBID",
    "pbs": "PBS_JOBID",
    "ray": "RAY_JOB_ID",
}
"""Variables that are equal in all processes of a run and in no other run: of Slurm, torchrun, Kubeflow's elastic
PyTorchJob (pkg/controller.v1/pytorch/elastic.go), PMIx (Open MPI 5, PRRTE), Flux, LSF, PBS and Ray.
"""

_NO_ID = ("", "none", "None", "ffffffff")
"""torchrun's default for ``--rdzv-id`` is "none", which every such run has; Ray starts workers ahead of any job."""

_RAYLET = "RAY_RAYLET_PID"
_RAYLET_SOCKET = "--raylet_socket_name="
"""An argument of every node's raylet, the parent of the workers: a path below the folder of the session."""


def launcher_runs(environment: Mapping[str, str]) -> list[str]:
    """Return the identifiers of the run, the most specific launcher first; empty if no launcher states one."""
    if _RAYLET in environment:
        return _of_ray_worker(environment[_RAYLET])
    known = [
        f"{launcher}-{environment[variable]}"
        for launcher, variable in _RUN_IDS.items()
        if environment.get(variable, "") not in _NO_ID
    ]
    return known + _of_pytorch_job(environment)


def _of_ray_worker(raylet: str) -> list[str]:
    """Return the session of the cluster, which all nodes share.

    Ray starts some workers before it knows their job and others after that, so RAY_JOB_ID differs among the workers of
    a job (Ray 2.60.0).
    """
    try:
        with open(f"/proc/{int(raylet)}/cmdline", encoding="utf-8", errors="replace") as file:
            arguments = file.read().split("\0")
    except (OSError, ValueError):
        return []
    paths = [argument for argument in arguments if argument.startswith(_RAYLET_SOCKET)]
    folders = paths[0].split("/") if paths else []
    return [f"ray-{folder}" for folder in folders if folder.startswith("session_")][:1]


def runs_of_launcher(environment: Mapping[str, str]) -> list[str]:
    """Return every identifier by which two commands of one launch may recognize each other."""
    return launcher_runs(environment) + torchrun_agents(environment)


def _of_pytorch_job(environment: Mapping[str, str]) -> list[str]:
    """Return the name of the service of rank 0, which a Kubernetes operator derives from the name of the job."""
    master = environment.get("MASTER_ADDR", "")
    if "KUBERNETES_SERVICE_HOST" not in environment or master in ("", "localhost", "127.0.0.1", "::1"):
        return []
    return [f"kubernetes-{master}:{environment.get('MASTER_PORT', '')}"]


def torchrun_agents(environment: Mapping[str, str]) -> list[str]:
    """Return an identifier of torchrun's agent on this machine, if it started this process; empty otherwise.

    It is the same after a restart of the workers, also for a run without an id.
    """
    if environment.get("TORCHELASTIC_RUN_ID") is None:
        return []
    agent = os.getppid()
    try:
        with open(f"/proc/{agent}/stat", "rb") as file:
            started = file.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return []
    return [f"agent-{os.uname().nodename}-{agent}-{started}"]
