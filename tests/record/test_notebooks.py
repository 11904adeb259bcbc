"""Recording in a notebook: a real kernel of Jupyter, in which cells train, are interrupted and fork."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig

import pytest

pytest.importorskip("torch")

from peers import peer_environment, peer_variables
from places import TESTS
from process_groups import once
from scratch import scratch_directory
from stagescope import api as workflow

JUPYTER = ("ipykernel==7.4.0", "jupyter_client==8.10.0")

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


@once
def notebook():
    """Return where a kernel recorded, and what its cells have returned."""
    directory = scratch_directory("notebook") / "recordings"
    path = os.pathsep.join([str(TESTS.parent / "src"), sysconfig.get_path("purelib")])
    variables = peer_variables(
        PYTHONPATH=path, IPYTHONDIR=str(directory.parent), GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1"
    )
    python = peer_environment("jupyter", *JUPYTER) / "python"
    command = [str(python), str(TESTS / "notebook_client.py"), str(directory)]
    done = subprocess.run(
        command, env=variables, cwd=directory.parent, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return directory, json.loads(done.stdout.splitlines()[-1])


def test_a_cell_is_recorded_and_its_losses_are_those_without_recording():
    directory, cells = notebook()
    assert cells["start"] == cells["stop"] == []
    assert cells["recorded"] == cells["plain"]
    timeline = workflow.read(directory, attempt=0)
    assert timeline.steps["step"].to_list() == [0, 1, 2]
    assert timeline.spans.filter(kind="backward").height == 3 * 4


def test_a_timeline_and_a_report_are_shown_as_pages():
    _, cells = notebook()
    for name in ("timeline", "report"):
        assert set(cells[name][0]) == {"text/plain", "text/html"}


def test_an_interrupted_cell_leaves_a_session_with_the_steps_before_it():
    directory, cells = notebook()
    assert cells["interrupted"] == "error"
    assert cells["stop again"] == []
    timeline = workflow.read(directory, attempt=1)
    assert timeline.steps.height > 3
    assert set(timeline.diagnostics["severity"]) <= {"info"}


def test_a_killed_kernel_leaves_what_it_has_recorded_as_a_session_without_an_end():
    directory, _ = notebook()
    timeline = workflow.read(directory, attempt=2)
    assert timeline.steps["step"].to_list() == [0, 1, 2]
    assert "recording.no_end" in timeline.diagnostics["code"].to_list()


def test_processes_that_a_cell_forks_are_recorded():
    directory, cells = notebook()
    assert cells["forked"] == []
    timeline = workflow.read(f"{directory}-forked")
    assert timeline.ranks["rank"].to_list() == [0, 1]
    assert timeline.steps.height == 2 * 3
    assert timeline.diagnostics.rows() == []
