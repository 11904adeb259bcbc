"""tools/check_platforms.py finds what the standard library lacks on other systems."""

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "check_platforms.py"


def test_finds_a_function_that_one_system_lacks_unless_its_existence_is_checked(tmp_path):
    planted = tmp_path / "planted.py"
    planted.write_text(
        "import os, signal\nos.pread(0, 1, 2)\nsignal.sigtimedwait([], 0)\n"
        "if hasattr(os, 'pwrite'):\n    os.pwrite(0, b'', 0)\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, TOOL, planted], capture_output=True, text=True, check=False)
    found = sorted((line.partition(":")[0], line.split(":")[2]) for line in done.stdout.splitlines())
    assert (done.returncode, found) == (1, [("darwin", "3"), ("win32", "2"), ("win32", "3")]), done.stderr
