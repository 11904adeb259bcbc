"""Real clusters of Dask and Ray on this machine: same results, and workers or a scheduler that are killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import execution_work
from dask_scheduler import dask_scheduler
from execution_work import killed, killed_once, large, refused, squared
from stagescope.execution import executor_for
from stagescope.vocabulary.errors import CommandError, InputError

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.filterwarnings("default"),  # of libraries that are not the subject
]


@pytest.fixture(params=["local:4", "ray"])
def cluster(request, monkeypatch):
    pytest.importorskip("distributed" if request.param == "local:4" else "ray")
    # Workers of Ray know the folder of a script, but not those that pytest adds.
    monkeypatch.setenv("PYTHONPATH", str(Path(execution_work.__file__).parent), prepend=os.pathsep)
    return request.param


def test_a_cluster_gives_the_results_of_one_process(cluster, tmp_path):
    notices: list[str] = []
    with executor_for(cluster=cluster, on_notice=notices.append) as workers:
        assert list(workers.map(squared, range(100))) == [number**2 for number in range(100)]
        assert len(list(workers.map(killed_once, ["", str(tmp_path / "marker"), "", ""]))) == 4
        with pytest.raises(InputError, match="it is odd"):
            list(workers.map(refused, ["a.sscope"]))
        with pytest.raises(CommandError, match="too large for a cluster"):
            list(workers.map(large, [11_000_000]))
        with pytest.raises(CommandError, match="workers were killed while they worked on step 7"):
            list(workers.map(killed, ["step 7"]))
    if cluster != "ray":
        assert "dashboard: http://127.0.0.1" in notices[0]
        assert any("is gone; what it worked on runs again" in notice for notice in notices)


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
