"""The run of a process is the one that its launcher states."""

from __future__ import annotations

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
