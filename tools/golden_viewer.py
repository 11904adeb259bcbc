# noqa: INP001 - a script, not a package
"""Regenerate the screenshots that tests/browser/test_look.py compares with; inspect each before committing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Run the screenshot tests in the mode that writes the files, and return their exit code."""
    command = [sys.executable, "-m", "pytest", "-q", "tests/browser/test_look.py", "-k", "picture_equals"]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "WRITE_PICTURES": "1"}, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
