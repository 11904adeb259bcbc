"""The run of a process is the one that its launcher states."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from stagescope.record.run_identity import launcher_runs


@pytest.mark.parametrize(
    ("environment", "runs"),
    [
        ({}, []),
        ({"SLURM_JOB_ID": "7"}, ["slurm-7"]),
        ({"TORCHELASTIC_RUN_ID": "none"}, []),
        ({"TORCHELASTIC_RUN_ID": "x", "SLURM_JOB_ID": "7"}, ["slurm-7", "torchelastic-x"]),
        ({"PET_RDZV_ID": "pytorchjob-a"}, ["kubernetes-pytorchjob-a"]),
        ({"MASTER_ADDR": "train-master-0", "MASTER_PORT": "23456"}, []),
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "MASTER_ADDR": "train-master-0", "MASTER_PORT": "23456"},
            ["kubernetes-train-master-0:23456"],
        ),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "MASTER_ADDR": "localhost"}, []),
    ],
)
def test_the_environment_of_a_launcher_states_the_run(environment, runs):
    assert launcher_runs(environment) == runs


def test_workers_of_ray_belong_to_the_session_of_their_cluster():
    socket = "--raylet_socket_name=/tmp/ray/session_2026-11-23_1/sockets/raylet"
    raylet = subprocess.Popen(
        [sys.executable, "-c", "input(1)", socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        raylet.stdout.read(1)  # before it runs, its arguments may not be readable
        for job in ("ffffffff", "01000000"):
            environment = {"RAY_RAYLET_PID": str(raylet.pid), "RAY_JOB_ID": job}
            assert launcher_runs(environment) == ["ray-session_2026-11-23_1"]
    finally:
        raylet.communicate(b"\n")
    assert launcher_runs({"RAY_RAYLET_PID": str(raylet.pid)}) == []
    assert launcher_runs({"RAY_RAYLET_PID": str(os.getpid())}) == []
    assert launcher_runs({"RAY_JOB_ID": "ffffffff"}) == []
    assert launcher_runs({"RAY_JOB_ID": "raysubmit_1"}) == ["ray-raysubmit_1"]
