"""`make demo-live` on a real training, from the beginning to the end."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from children import clean_environment

ROOT = Path(__file__).parents[2]
LIMIT_S = 400


def running(word):
    """Return the processes with a word in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if word.encode() in command:
            found.append(path.parent.name)
    return found


@pytest.mark.exhaustive
def test_slow_rank_and_hung_rank_are_named_and_everything_ends(tmp_path):
    pytest.importorskip("torch")
    directory = tmp_path / "demo-live"
    command = [sys.executable, "-m", "tools.demo_live", str(directory)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    session = (directory / "session.txt").read_text(encoding="utf-8")
    assert done.returncode == 0, f"{done.stderr}{session}"
    assert re.search(r"alarm \d+: Rank 2 is \d+ % slower", session)
    assert re.search(r"--pause\n(?:\[watch\].*\n)*ranks 0-3 accepted .*", session)
    assert re.search(r"\nRank 1 holds up the training: it has been in forward", session)
    assert "[watch] The training is over: ranks 0-3 ended." in session
    assert running(str(directory)) == []


def test_directory_of_something_else_is_left_alone(tmp_path):
    kept = tmp_path / "file"
    kept.write_text("kept")
    command = [sys.executable, "-m", "tools.demo_live", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, kept.read_text()) == (1, "kept")
    assert "is not of this demo" in done.stderr
