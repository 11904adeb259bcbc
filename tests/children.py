"""Real child processes for the tests of the recorder, and the content of their recordings.

Every child has a time limit and is killed by its process id, so no test leaves one behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stagescope.ingest.recording.frames import Contents, read_contents

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

LIMIT_S = 60
FORK_WARNING = "ignore:This process:DeprecationWarning"
"""Python 3.12 and later warn about a fork in a process with threads, which these tests do on purpose."""
CLEARED = (
    *(
        "STAGESCOPE_OUT",
        "STAGESCOPE_RECORD",
        "STAGESCOPE_STEPS",
        "STAGESCOPE_RUN",
        "STAGESCOPE_MAX_BYTES",
        "STAGESCOPE_KEEP",
        "STAGESCOPE_ALSO",
        "STAGESCOPE_DETAIL",
    ),
    *("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "PYTHONPATH"),
    *("SLURM_JOB_ID", "SLURM_PROCID", "TORCHELASTIC_RUN_ID", "KUBERNETES_SERVICE_HOST", "MASTER_ADDR"),
)


def clean_environment(**changes: str) -> dict[str, str]:
    """Return our environment without the recorder's variables, and with `changes`."""
    kept = {name: value for name, value in os.environ.items() if name not in CLEARED}
    return {**kept, **changes}


def recording_command(directory: object, *options: str) -> list[str]:
    """Return the command that records the command appended to it."""
    return [sys.executable, "-m", "stagescope", "run", *options, "-o", str(directory), "--"]


def run_child(code: str, *arguments: object, **options) -> subprocess.CompletedProcess[str]:
    """Run a Python program to its end; return how it ended and its output."""
    options = {"env": clean_environment(), "timeout": LIMIT_S, **options}
    return subprocess.run(_command(code, arguments), capture_output=True, text=True, check=False, **options)


@contextmanager
def child(code: str, *arguments: object, **options) -> Iterator[subprocess.Popen[str]]:
    """Start a Python program, wait for its first line of output (``ready``), and kill it at the end if necessary."""
    options = {"env": clean_environment(), **options}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(_command(code, arguments), text=True, **pipes, **options) as process:
        killer = threading.Timer(LIMIT_S, process.kill)
        killer.start()
        try:
            assert process.stdout.readline().strip() == "ready", process.stderr.read()
            yield process
        finally:
            killer.cancel()
            process.kill()


def end_of(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> int:
    """Send a signal to a child and return its exit code, negative for a signal."""
    process.send_signal(number)
    return process.wait(LIMIT_S)


def contents_in(directory: Path) -> list[Contents]:
    """Return the content of all recordings in a directory, sorted by file name."""
    return [read_contents(path.read_bytes()) for path in sorted(directory.glob("*.sscope"))]


def only_contents(directory: Path) -> Contents:
    """Return the content of the only recording in a directory."""
    (contents,) = contents_in(directory)
    return contents


def microbatches(contents: Contents) -> list[int]:
    """Return the micro-batches of a recording's spans in file order, by which these tests number their spans."""
    return contents.spans["microbatch"].tolist()


def _command(code: str, arguments: Sequence[object]) -> list[str]:
    return [sys.executable, "-W", FORK_WARNING, "-c", textwrap.dedent(code), *map(str, arguments)]
