"""Real clusters of Dask and Ray on this machine: same results, and workers or a scheduler that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import execution_work
from dask_scheduler import dask_scheduler
from execution_work import (
    intervals,
    killed,
    killed_once,
    large,
    options_of_allocator,
    processors,
    refused,
    squared,
    trim_threshold,
)
from pipeline_recordings import planted_training, write_training
from slurm_cluster import slurm, wait_until
from stagescope.execution import executor_for, slurm_cluster
from stagescope.vocabulary.errors import CommandError, InputError

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.filterwarnings("default"),  # of libraries that are not the subject
]


JOBS = {"cores": 1, "memory": "1GB"}


@pytest.fixture
def slurm_jobs(monkeypatch, tmp_path):
    """Start a real Slurm, and configure the jobs of dask-jobqueue, here and for processes that are started."""
    handler = signal.getsignal(signal.SIGINT)  # which importing it replaces
    pytest.importorskip("dask_jobqueue")
    signal.signal(signal.SIGINT, handler)
    config = pytest.importorskip("dask.config")
    (tmp_path / "slurm").mkdir()
    jobs = JOBS | {"log-directory": str(tmp_path / "logs")}
    settings = {f"jobqueue.slurm.{name}": value for name, value in jobs.items()}
    with slurm(tmp_path / "slurm") as environment, config.set(settings):
        environment |= {
            f"DASK_JOBQUEUE__SLURM__{name.upper().replace('-', '_')}": str(value)
            for name, value in jobs.items()
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HOME", str(tmp_path))
        yield


def test_local_workers_keep_memory_and_seldom_sample_unless_the_user_has_configured_it():
    config = pytest.importorskip("dask.config")
    with executor_for(cluster="local:1") as workers:
        assert list(workers.map(trim_threshold, [0])) == [None]
        assert list(workers.map(intervals, [0])) == [("200ms", "500ms")]
        [options] = workers.map(options_of_allocator, [0])
        assert "thp:always" in options
    of_user = {
        "distributed.nanny.pre-spawn-environ": {"MALLOC_TRIM_THRESHOLD_": 1_000_000},
        "distributed.worker.profile.interval": "20ms",
        "distributed.admin.tick.interval": "1s",
    }
    with config.set(of_user), executor_for(cluster="local:1") as workers:
        assert list(workers.map(trim_threshold, [0])) == ["1000000"]
        assert list(workers.map(intervals, [0])) == [("20ms", "1s")]


@pytest.mark.skipif(sys.platform != "linux", reason="workers stay on processors on Linux alone")
def test_local_workers_stay_on_their_processors_if_there_is_one_for_each():
    pytest.importorskip("distributed")
    every = sorted(os.sched_getaffinity(0))
    try:
        os.sched_setaffinity(0, set(every[:2]))
        with executor_for(cluster=f"local:{len(every[:2])}") as workers:
            found = {tuple(each) for each in workers.map(processors, range(8))}
        assert found <= {(each,) for each in every[:2]}
        with executor_for(cluster=f"local:{len(every[:2]) + 1}") as workers:
            assert list(workers.map(processors, [0])) == [every[:2]]
    finally:
        os.sched_setaffinity(0, set(every))


@pytest.fixture(params=["local:4", "ray", "slurm"])
def cluster(request, monkeypatch):
    pytest.importorskip("ray" if request.param == "ray" else "distributed")
    if request.param == "slurm":
        request.getfixturevalue("slurm_jobs")
    # Workers of Ray know the folder of a script, but not those that pytest adds.
    monkeypatch.setenv("PYTHONPATH", str(Path(execution_work.__file__).parent), prepend=os.pathsep)
    return request.param


def test_errors_of_a_cluster_are_not_logged_as_well(capfd):
    pytest.importorskip("distributed")
    with executor_for(cluster="local:1") as workers, pytest.raises(InputError, match="it is odd"):
        list(workers.map(refused, ["a.sscope"]))
    assert capfd.readouterr().err == ""


def test_a_cluster_gives_the_results_of_one_process(cluster, tmp_path):
    notices: list[str] = []
    with executor_for(cluster=cluster, on_notice=notices.append) as workers:
        workers.prepare(squared, 2)
        assert list(workers.map(squared, range(100))) == [number**2 for number in range(100)]
        assert len(list(workers.map(killed_once, ["", str(tmp_path / "marker"), "", ""]))) == 4
        with pytest.raises(InputError, match="it is odd"):
            list(workers.map(refused, ["a.sscope"]))
        with pytest.raises(CommandError, match="too large for a cluster"):
            list(workers.map(large, [11_000_000]))
        with pytest.raises(CommandError, match="workers were killed while they worked on step 7"):
            list(workers.map(killed, ["step 7"]))
    if cluster != "ray":
        assert "dashboard: http://127.0.0.1" in notices[1 if cluster == "slurm" else 0]
        assert any("is gone; what it worked on runs again" in notice for notice in notices)


def jobs():
    done = subprocess.run(["squeue", "--noheader"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.usefixtures("slurm_jobs")
def test_ctrl_c_removes_the_jobs_that_slurm_has_queued(tmp_path):
    stop = ["scontrol", "update", "PartitionName=all", "State=DOWN"]  # jobs are queued, and none starts
    subprocess.run(stop, check=True)
    source = tmp_path / "recordings"
    source.mkdir()
    write_training(source, planted_training(3, 0, (), 1))
    storing = [
        sys.executable,
        "-m",
        "stagescope",
        "store",
        source,
        "-o",
        tmp_path / "run",
        "--cluster",
        "slurm",
    ]
    with subprocess.Popen(storing, stderr=subprocess.PIPE, text=True) as process:
        assert "submitted 2 jobs to Slurm" in process.stderr.readline()
        wait_until(lambda: len(jobs()) == 2)
        process.send_signal(signal.SIGINT)
        assert process.stderr.read().endswith("stagescope: interrupted\n")
    assert process.returncode == 130
    wait_until(lambda: not jobs())
    assert not [*tmp_path.glob(".stagescope-*")], "the keys of the workers"


@pytest.mark.usefixtures("slurm_jobs")
def test_what_slurm_lacks_is_an_error(monkeypatch):
    unknown = pytest.importorskip("dask.config").set({"jobqueue.slurm.cores": None})
    with unknown, pytest.raises(CommandError, match="not configured for Slurm: no cores of a job"):
        executor_for(cluster="slurm").__enter__()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CommandError, match="needs the program sbatch"):
        executor_for(cluster="slurm").__enter__()


@pytest.mark.usefixtures("slurm_jobs")
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("queue", "nowhere", "Slurm refuses the jobs: .*Invalid partition name"),
        ("memory", "900GB", "Slurm refuses the jobs: .*not available"),
        ("job-script-prologue", ["exit 3"], "the Slurm jobs ended before any Dask worker started"),
    ],
)
def test_jobs_that_cannot_start_a_worker_are_an_error(monkeypatch, name, value, message):
    monkeypatch.setattr(slurm_cluster, "ASKED_EVERY_S", 1.0)
    settings = pytest.importorskip("dask.config").set({f"jobqueue.slurm.{name}": value})
    with settings, pytest.raises(CommandError, match=message):
        executor_for(cluster="slurm").__enter__()


@pytest.fixture
def scheduler():
    pytest.importorskip("distributed")
    with dask_scheduler(workers=1) as running:
        yield running


def test_a_scheduler_that_is_killed_is_an_error_that_names_the_cluster(scheduler):
    process, address = scheduler
    with executor_for(cluster=address) as workers:
        results = workers.map(squared, range(10_000))
        next(results)
        process.send_signal(signal.SIGKILL)
        with pytest.raises(CommandError, match=f"the cluster {address} cannot be reached"):
            list(results)
