# noqa: INP001 - a script, not a package
"""Run pytest, and run a few failed tests once more, alone: run_tests.py ARGUMENT...

Many tests start trainings, servers and browsers. On a machine that is busy with other work, one of ten thousand can
time out without a defect. If at most `FEW` tests failed, they run again, one after the other in one process. A test
that fails twice is a failure. One that passes alone is listed, because it depends on the load, on chance or on other
tests, which has to be mended.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

FEW = 5
"""As many failures can be chance; more are a defect of the change or of the machine."""
CACHE = Path("build/test-cache")
SOME_FAILED, NOTHING_SELECTED = 1, 5


def main(arguments: list[str]) -> int:
    """Return the exit status: 0 if every test passed, at the latest when it ran alone."""
    shutil.rmtree(CACHE, ignore_errors=True)
    status = run_pytest(arguments)
    failed = failures()
    if status != SOME_FAILED or not 0 < len(failed) <= FEW:
        return status
    report(f"\n{len(failed)} failed. Running what failed once more, alone.")
    again = run_pytest([*arguments, "--last-failed", "--last-failed-no-failures", "none", "-n", "0"])
    if again not in (0, SOME_FAILED):
        return SOME_FAILED if again == NOTHING_SELECTED else again
    remaining = failures()
    for name in failed:
        report(f"FAILED TWICE {name}" if name in remaining else f"PASSED ONLY ALONE {name}")
    return SOME_FAILED if remaining else again


def run_pytest(arguments: list[str]) -> int:
    """Run pytest with a cache of its own, which states what failed, and return its exit status."""
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={CACHE}", *arguments]
    return subprocess.run(command, check=False).returncode


def failures() -> list[str]:
    """Return the names of the tests that failed when they last ran."""
    file = CACHE / "v" / "cache" / "lastfailed"
    return sorted(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else []


def report(line: str) -> None:
    """Write a line before what the next process writes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
