"""Cost of reading the Ascend profiles of 64 ranks (1.9 GB, 200,000 tasks each), including the start of the process.

The peer, msprof-analyze 26.2.0 (cluster -m pp_chart), took 20 CPU seconds for a cluster of this shape on the machine
of the measurement, and about 3 for a small one. If its command is passed as the first argument, it is run on the same
files in the same way.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from ascend_profiles import Cluster, write_cluster

ROUNDS = 3
LIMIT_CPU_SECONDS = 5.0
LIMIT_MB = 400
SHAPE = Cluster(pp=16, dp=4, microbatches=32, steps=10, noise_tasks=200_000)
READ = (
    "import sys, stagescope; t = stagescope.read(sys.argv[1]); "
    "print(t.spans.height, t.spans['microbatch'].null_count(), t.diagnostics.height)"
)


def measure(command: list[str]) -> tuple[float, float]:
    """Return the CPU seconds of a command with all its processes, and the memory of the largest in MB."""
    process = subprocess.Popen(command, stdout=sys.stderr, stderr=subprocess.STDOUT)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        truth = write_cluster(Path(directory), SHAPE)
        size_gb = sum(path.stat().st_size for path in truth.databases.values()) / 1e9
        runs = [measure([sys.executable, "-c", READ, directory]) for _ in range(ROUNDS)]
        seconds, memory_mb = (statistics.median(column) for column in zip(*runs, strict=True))
        print(
            f"{SHAPE.world_size} ranks, {size_gb:.1f} GB, {truth.actions.height} actions, "
            f"{truth.transfers.height} transfers: "
            f"{seconds:.1f} CPU s (at most {LIMIT_CPU_SECONDS:.0f} wanted), {memory_mb:.0f} MB (at most {LIMIT_MB})"
        )
        if sys.argv[1:]:
            peer_seconds, peer_mb = measure([*sys.argv[1:], "cluster", "-m", "pp_chart", "-d", directory])
            print(
                f"peer: {peer_seconds:.1f} CPU s ({peer_seconds / seconds:.1f} times as many), {peer_mb:.0f} MB"
            )


if __name__ == "__main__":
    main()
