"""What the tests of the recorder share: a recorder, patches that are undone, and a file system that runs full."""

from __future__ import annotations

import gc
import subprocess

import pytest

from stagescope import record
from stagescope.record import compiled, session
from stagescope.record.patching import Patches
from stagescope.record.recorder import Recorder
from stagescope.record.run_identity import RUN_VARIABLE


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 KiB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(directory)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False, timeout=30).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("needs the right to mount a file system")
    yield directory
    subprocess.run(["umount", str(directory)], check=True, timeout=30)


@pytest.fixture(params=["in Python", "compiled"])
def way(request, monkeypatch):
    """How calls are wrapped: in Python, or by the extension where nothing is unusual."""
    if request.param == "in Python":
        monkeypatch.setattr(compiled, "extension", lambda: None)
    elif compiled.extension() is None:
        pytest.skip(
            "the extension has not been built here: tests/record/test_compiled.py states whether it could be"
        )
    return request.param


@pytest.fixture
def recorder(tmp_path):
    """A recorder into `tmp_path`, stopped at the end of the test."""
    recorder = Recorder(str(tmp_path))
    yield recorder
    recorder.stop("test")


@pytest.fixture
def patches():
    """Patches that are undone at the end of the test."""
    patches = Patches()
    yield patches
    patches.undo()


@pytest.fixture
def recording_here(tmp_path, monkeypatch):
    """A recording of this process into `tmp_path`, whatever launched the tests."""
    for variable in (session.OUT_VARIABLE, session.STEPS_VARIABLE, RUN_VARIABLE, "RANK"):
        monkeypatch.delenv(variable, raising=False)
    gc.disable()  # an automatic collection would be a span
    record.start(tmp_path)
    yield
    record.stop()
    gc.enable()
