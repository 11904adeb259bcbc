"""A scheduler of Dask and its workers, as processes of their own on the loopback interface."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def dask_scheduler(workers: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield the process of a scheduler and its address; so many workers are connected to it, and end afterwards."""
    python = [sys.executable, "-m"]
    own = [*python, "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with ExitStack() as running:
        process = running.enter_context(
            subprocess.Popen(own, env=environment, stderr=subprocess.PIPE, text=True)
        )
        running.callback(process.kill)
        assert process.stderr is not None
        address = next(line for line in process.stderr if "Scheduler at:" in line).split()[-1]
        worker = [*python, "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-dashboard"]
        for _ in range(workers):
            started = running.enter_context(
                subprocess.Popen(worker, env=environment, stderr=subprocess.DEVNULL)
            )
            running.callback(started.kill)
        yield process, address
