# noqa: INP001 - a script, not a package
"""Write the pictures anew that tests/browser/test_look.py compares with: look at each before you keep it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Run the tests of the pictures in the mode that writes them, and return their exit code."""
    command = [sys.executable, "-m", "pytest", "-q", "tests/browser/test_look.py", "-k", "looked_at"]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "WRITE_PICTURES": "1"}, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
