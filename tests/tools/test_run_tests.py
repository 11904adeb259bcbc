"""Failed tests run once more, alone, and what passes only then is listed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIPT = Path(__file__).parents[2] / "tools" / "run_tests.py"
CONFTEST = Path(__file__).parents[1] / "conftest.py"
PASSES = "def test_passes():\n    pass\n"
FAILS = "def test_fails():\n    assert False\n"
ONCE = """
from pathlib import Path

def test_once():
    marker = Path("ran")
    ran = marker.exists()
    marker.touch()
    assert ran
"""
MANY = (
    "import pytest\n\n@pytest.mark.parametrize('number', range(6))\ndef test_all(number):\n    assert False\n"
)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the script in a project of the given test files."""

    def run_in_project(*texts: str) -> subprocess.CompletedProcess[str]:
        for number, text in enumerate(texts):
            (tmp_path / f"test_{number}.py").write_text(text, encoding="utf-8")
        command = [sys.executable, str(SCRIPT), "-q", "-n", "2", "-p", "no:hypothesispytest"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)

    return run_in_project


def test_passing_tests_run_once(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    result = run(PASSES)
    assert (result.returncode, "once more" in result.stdout) == (0, False)


def test_a_test_that_fails_twice_is_a_failure(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    result = run(PASSES, FAILS, ONCE)
    assert result.returncode == 1
    assert "FAILED TWICE test_1.py::test_fails" in result.stdout
    assert "PASSED ONLY ALONE test_2.py::test_once" in result.stdout


def test_a_test_that_passes_alone_is_listed(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    result = run(PASSES, ONCE)
    assert (result.returncode, "PASSED ONLY ALONE test_1.py::test_once" in result.stdout) == (0, True)


@pytest.mark.parametrize(
    ("text", "status"), [(MANY, 1), ("import no_such_module\n", 2), ("", 5)], ids=["many", "import", "none"]
)
def test_what_no_second_run_can_change_keeps_its_status(
    run: Callable[..., subprocess.CompletedProcess[str]], text: str, status: int
) -> None:
    assert run(text).returncode == status


@pytest.mark.skipif(sys.platform == "win32", reason="what is ignored is not inherited there")
def test_programs_that_tests_start_get_ctrl_c_where_the_tests_run_in_the_background():
    program = """
import runpy, signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
runpy.run_path(sys.argv[1])
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
asks = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
print(subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True).stdout)
"""
    command = [sys.executable, "-c", program, str(CONFTEST)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.split() == ["True", "True"]
