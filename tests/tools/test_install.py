from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from places import TOOLS

INSTALL = TOOLS / "install.sh"

PYTHON = """#!/bin/sh
# A fake Python: creates "environments" and "installs" instantly, and logs its arguments.
echo "$*" >> arguments.txt
case "$*" in
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip "*) exec sh ./pip ;;
    *version_info*) exit "${TOO_OLD:-0}" ;;
    *ensurepip*) exit "${NO_VENV:-0}" ;;
esac
"""


@pytest.fixture
def clone(tmp_path):
    """Return a directory with a fake Python whose pip runs the script in the file `pip`."""
    python = tmp_path / "python"
    python.write_text(PYTHON, encoding="utf-8")
    python.chmod(0o755)
    (tmp_path / "pip").write_text("echo installed > .venv/package\n", encoding="utf-8")
    return tmp_path


def command(clone):
    return ["sh", str(INSTALL), ".venv", str(clone / "python"), "demo"]


def install(clone, **environment):
    return subprocess.run(
        command(clone),
        cwd=clone,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def state(clone):
    return (clone / ".venv" / ".stagescope-install").read_text(encoding="utf-8").strip()


def logged(clone, what):
    return [
        line for line in (clone / "arguments.txt").read_text(encoding="utf-8").splitlines() if what in line
    ]


def test_installation_prints_one_line_and_is_marked_complete(clone):
    done = install(clone)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("installing stagescope[demo] into .venv")
    assert done.stdout.count("\n") == 1
    assert state(clone) == "demo"
    assert "--constraint constraints.txt --editable .[demo]" in logged(clone, "-m pip")[0]


def test_second_installation_adds_to_the_existing_environment(clone):
    install(clone)
    install(clone)
    assert len(logged(clone, "-m venv")) == 1
    assert len(logged(clone, "-m pip")) == 2


def test_failed_installation_prints_the_end_of_the_log_and_is_not_marked(clone):
    (clone / "pip").write_text("echo no matching distribution >&2; exit 1\n", encoding="utf-8")
    done = install(clone)
    assert done.returncode == 1
    assert "no matching distribution" in done.stderr
    assert "the full log is .venv/install.log" in done.stderr
    assert state(clone) == "unfinished"


def test_interrupted_installation_removes_its_markers_and_starts_over(clone):
    install(clone)
    marker = clone / ".venv" / ".demo-ready"
    marker.touch()
    (clone / "pip").write_text("touch started; exec sleep 60\n", encoding="utf-8")
    with subprocess.Popen(
        command(clone), cwd=clone, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as running:
        while not (clone / "started").exists():
            time.sleep(0.02)
        running.send_signal(signal.SIGTERM)
        stderr = running.communicate(timeout=30)[1]
    assert b"interrupted" in stderr
    assert running.returncode == 1
    assert not marker.exists()
    assert state(clone) == "unfinished"
    half = clone / ".venv" / "half-a-package"
    half.touch()
    (clone / "pip").write_text("exit 0\n", encoding="utf-8")
    assert install(clone).returncode == 0
    assert not half.exists()
    assert state(clone) == "demo"


def test_leaves_a_foreign_environment_untouched(clone):
    (clone / ".venv").mkdir()
    done = install(clone)
    assert done.returncode == 1
    assert ".venv was not made by this Makefile" in done.stderr
    assert list((clone / ".venv").iterdir()) == []


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"TOO_OLD": "1"}, "is not Python 3.10 or newer"),
        ({"NO_VENV": "1"}, "cannot create virtual environments"),
    ],
)
def test_refuses_an_unusable_python_with_a_hint(clone, environment, message):
    done = install(clone, **environment)
    assert done.returncode == 1
    assert message in done.stderr
    assert not (clone / ".venv").exists()
