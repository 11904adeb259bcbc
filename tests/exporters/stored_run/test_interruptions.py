"""Real signals while a run is stored: after Ctrl-C, the same command goes on, and killed workers change nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dask_scheduler import dask_scheduler
from planted_runs import Shape, random_times, run
from recorded_runs import write_recordings
from stagescope.api import store
from stagescope.model.stored_run import JOURNAL, MANIFEST

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds workers in /proc")

SHAPE = Shape(pipelines=8, stages=4, microbatches=16, steps=25)
WORKERS = 3
PATIENCE_S = 120
TRIES = 5
PROGRAM = """
import sys
from stagescope.api import storing_parts
from stagescope.cli import main

storing_parts.FILES_AT_ONCE, storing_parts.SPANS_OF_PART = 2, 1
sys.exit(main())
"""
"""The command, with many small parts."""


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    place = tmp_path_factory.mktemp("run") / "recordings"
    planted = run(replace(random_times(SHAPE), reduces=True))
    write_recordings(planted, place, SHAPE.stages, ranks_per_machine=2)
    return place


@pytest.fixture(scope="module")
def expected(recordings, tmp_path_factory):
    """Return the files of the run, as a store without interruptions writes them."""
    out = tmp_path_factory.mktemp("expected") / "run"
    store(recordings, out=out)
    return files_of(out)


def files_of(out: Path) -> dict[str, bytes]:
    return {str(file.relative_to(out)): file.read_bytes() for file in out.rglob("*.parquet")}


def begun(recordings: Path, out: Path, *where: str) -> subprocess.Popen[str]:
    where = where or ("--workers", str(WORKERS))
    arguments = ["store", str(recordings), "-o", str(out), *where, "--no-analysis"]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the processes that a process started, without the one that tracks its resources."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            is_worker = b"spawn_main" in (place / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == process.pid and is_worker:
            found.append(int(place.name))
    return sorted(found)


def interrupted(moment: str, recordings: Path, out: Path) -> tuple[subprocess.Popen[str], list[int], str]:
    """Return a command that has got Ctrl-C at a moment and has ended, its workers then, and its errors."""
    process = begun(recordings, out)
    conditions = {
        "workers start": lambda: workers_of(process),
        "survey": lambda: len(workers_of(process)) == WORKERS,
        "alignment": (out / JOURNAL).is_file,
        "writing": lambda: any(out.rglob("part.parquet")),
    }
    wait_until(lambda: conditions[moment]() or process.poll() is not None)
    process.send_signal(signal.SIGSTOP)  # looking for its workers takes longer than the rest of the work
    workers = workers_of(process)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    _, errors = process.communicate(timeout=60)
    return process, workers, errors


@pytest.mark.parametrize("moment", ["workers start", "survey", "alignment", "writing"])
def test_ctrl_c_leaves_a_store_that_goes_on(moment, recordings, expected, tmp_path):
    for number in range(TRIES):
        out = tmp_path / f"run{number}"
        process, workers, errors = interrupted(moment, recordings, out)
        if process.returncode != 0:  # on a busy machine it may have ended before the signal
            break
    assert process.returncode in {130, -signal.SIGINT}, errors
    assert "Traceback" not in errors
    wait_until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
    assert not (out / MANIFEST).exists()
    assert not list(out.rglob("*.tmp*"))
    resumed = store(recordings, out=out)
    assert files_of(out) == expected
    assert resumed.written + resumed.kept == len(expected)


@pytest.mark.parametrize("delay_s", [0.0, 0.3])
def test_a_worker_that_is_killed_is_named_and_changes_nothing(delay_s, recordings, expected, tmp_path):
    out = tmp_path / "run"
    process = begun(recordings, out)
    wait_until(lambda: len(workers_of(process)) == WORKERS or process.poll() is not None)
    time.sleep(delay_s)
    os.kill(workers_of(process)[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert files_of(out) == expected
    assert re.fullmatch(
        r"(stagescope: a worker process was killed while it worked on .*, which runs again\n)?", errors
    )
    assert errors or delay_s


def test_a_worker_of_a_cluster_that_is_killed_is_named_and_changes_nothing(recordings, expected, tmp_path):
    pytest.importorskip("distributed")
    out = tmp_path / "run"
    process = begun(recordings, out, "--cluster", "local:4")
    wait_until(lambda: (out / JOURNAL).is_file() or process.poll() is not None)
    workers = workers_of(process)
    assert len(workers) == 4
    os.kill(workers[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert files_of(out) == expected
    assert "is gone; what it worked on runs again on another one" in errors


def test_a_scheduler_that_is_killed_is_an_error_after_which_the_store_goes_on(recordings, expected, tmp_path):
    pytest.importorskip("distributed")
    out = tmp_path / "run"
    with dask_scheduler(workers=2) as (scheduler, address):
        process = begun(recordings, out, "--cluster", address)
        wait_until(lambda: (out / JOURNAL).is_file() or process.poll() is not None)
        scheduler.send_signal(signal.SIGKILL)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, errors
    assert f"the cluster {address} cannot be reached" in errors
    assert "Traceback" not in errors
    store(recordings, out=out)
    assert files_of(out) == expected
