"""CPU seconds and memory for reading a report of Nsight Systems with 5 million kernels, in a separate process.

The report is synthetic: ranges of a pipeline's actions, a launch and a kernel every few microseconds, with the columns
that nsys exports. The baseline is a loop over the same rows with sqlite3: the minimum cost in Python.
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from nsight_reports import GEMM, LAUNCH, SCHEMA, STRINGS, thread

KERNELS = int(os.environ.get("STAGESCOPE_NSIGHT_KERNELS", "5000000"))
KERNELS_PER_ACTION = 1000
MICROBATCHES = 8
ROUNDS = 3
LIMIT_SECONDS = 15
LIMIT_MB = 1000
READ = """
import sys
from pathlib import Path
from stagescope.ingest.nsight.exports import read_report
(trace,) = read_report(Path(sys.argv[1]))
print(trace.spans.height)
"""
LOOP = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
count = 0
for table, columns in (("CUPTI_ACTIVITY_KIND_RUNTIME", "start, globalTid, correlationId"),
                       ("CUPTI_ACTIVITY_KIND_KERNEL", "start, end, globalPid, correlationId, streamId, deviceId")):
    cursor = database.execute(f"SELECT {columns} FROM {table}")
    while rows := cursor.fetchmany(1 << 16):
        count += len(rows)
print(count)
"""


def write_report(path: Path) -> None:
    """Write a report of one process."""
    with closing(sqlite3.connect(path)) as database:
        database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + SCHEMA)
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", STRINGS.items())
        database.executemany(
            "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid) VALUES (?, ?, 59, ?, ?)",
            ranges(),
        )
        database.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?, 0, NULL)", launches()
        )
        database.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 1, 7, ?, ?, ?, ?, NULL)", kernels()
        )
        database.commit()


def ranges() -> Iterator[tuple[int, int, str, int]]:
    for action in range(KERNELS // KERNELS_PER_ACTION):
        start_ns = action * KERNELS_PER_ACTION * 10_000
        step, place = divmod(action, 2 * MICROBATCHES)
        name = f"{'FB'[place % 2]}0.{place // 2} step {step}"
        yield start_ns, start_ns + KERNELS_PER_ACTION * 10_000 - 1, name, thread(100)


def launches() -> Iterator[tuple[int, int, int, int, int]]:
    for number in range(KERNELS):
        yield number * 10_000, number * 10_000 + 3_000, thread(100), number + 1, LAUNCH


def kernels() -> Iterator[tuple[int, int, int, int, int, int]]:
    for number in range(KERNELS):
        start_ns = number * 10_000 + 50_000
        yield start_ns, start_ns + 8_000, number + 1, thread(100, 0), GEMM, GEMM


def measure(code: str, path: Path) -> tuple[float, float]:
    """Return the CPU seconds and the peak memory in MB of a process."""
    process = subprocess.Popen([sys.executable, "-c", code, path], stdout=sys.stderr)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "rank0.sqlite")
        write_report(path)
        size_mb = path.stat().st_size / 1e6
        for what, code in (("read", READ), ("rows in sqlite3 alone", LOOP)):
            runs = [measure(code, path) for _ in range(ROUNDS)]
            seconds, memory_mb = (statistics.median(column) for column in zip(*runs, strict=True))
            print(
                f"{what}: {KERNELS:,} kernels, {size_mb:.0f} MB, in {seconds:.1f} CPU s (at most {LIMIT_SECONDS}),"
                f" {memory_mb:.0f} MB (at most {LIMIT_MB})"
            )


if __name__ == "__main__":
    main()
