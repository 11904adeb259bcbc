from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from places import TOOLS

INSTALL = TOOLS / "install.sh"

PYTHON = """#!/bin/sh
# Stands in for Python: makes "environments" and "installs" at once, and notes what it was asked for.
echo "$*" >> asked.txt
case "$*" in
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip "*) exec sh ./pip ;;
    *version_info*) exit "${TOO_OLD:-0}" ;;
    *ensurepip*) exit "${NO_VENV:-0}" ;;
esac
"""


@pytest.fixture
def clone(tmp_path):
    """Return a folder with a stand-in for Python whose pip does what the file `pip` says."""
    python = tmp_path / "python"
    python.write_text(PYTHON, encoding="utf-8")
    python.chmod(0o755)
    (tmp_path / "pip").write_text("echo installed > .venv/package\n", encoding="utf-8")
    return tmp_path


def words(clone):
    return ["sh", str(INSTALL), ".venv", str(clone / "python"), "demo"]


def install(clone, **environment):
    return subprocess.run(
        words(clone),
        cwd=clone,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def state(clone):
    return (clone / ".venv" / ".stagescope-install").read_text(encoding="utf-8").strip()


def asked(clone, what):
    return [line for line in (clone / "asked.txt").read_text(encoding="utf-8").splitlines() if what in line]


def test_an_installation_is_told_in_one_line_and_marked_as_whole(clone):
    done = install(clone)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("installing stagescope[demo] into .venv")
    assert done.stdout.count("\n") == 1
    assert state(clone) == "demo"
    assert "--constraint constraints.txt --editable .[demo]" in asked(clone, "-m pip")[0]


def test_a_second_installation_adds_to_the_environment_that_stands(clone):
    install(clone)
    install(clone)
    assert len(asked(clone, "-m venv")) == 1
    assert len(asked(clone, "-m pip")) == 2


def test_a_failed_installation_shows_the_end_of_the_log_and_is_not_marked(clone):
    (clone / "pip").write_text("echo no matching distribution >&2; exit 1\n", encoding="utf-8")
    done = install(clone)
    assert done.returncode == 1
    assert "no matching distribution" in done.stderr
    assert "the whole log is .venv/install.log" in done.stderr
    assert state(clone) == "unfinished"


def test_an_interrupted_installation_loses_its_stamps_and_is_begun_anew(clone):
    install(clone)
    stamp = clone / ".venv" / ".demo-ready"
    stamp.touch()
    (clone / "pip").write_text("touch started; exec sleep 60\n", encoding="utf-8")
    with subprocess.Popen(
        words(clone), cwd=clone, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as running:
        while not (clone / "started").exists():
            time.sleep(0.02)
        running.send_signal(signal.SIGTERM)
        told = running.communicate(timeout=30)[1]
    assert b"interrupted" in told
    assert running.returncode == 1
    assert not stamp.exists()
    assert state(clone) == "unfinished"
    half = clone / ".venv" / "half-a-package"
    half.touch()
    (clone / "pip").write_text("exit 0\n", encoding="utf-8")
    assert install(clone).returncode == 0
    assert not half.exists()
    assert state(clone) == "demo"


def test_an_environment_made_by_somebody_else_is_left_alone(clone):
    (clone / ".venv").mkdir()
    done = install(clone)
    assert done.returncode == 1
    assert ".venv was not made by this Makefile" in done.stderr
    assert list((clone / ".venv").iterdir()) == []


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"TOO_OLD": "1"}, "is not Python 3.10 or newer"),
        ({"NO_VENV": "1"}, "cannot make virtual environments"),
    ],
)
def test_an_unfit_python_is_refused_with_a_way_out(clone, environment, told):
    done = install(clone, **environment)
    assert done.returncode == 1
    assert told in done.stderr
    assert not (clone / ".venv").exists()
