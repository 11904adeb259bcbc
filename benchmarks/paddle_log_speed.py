"""Speed of reading Paddle's worker logs: 8 logs of 100,000 jobs each, and a log that is nine tenths noise.

The noisy log is compared with a plain `re` scan of the same bytes in the same process. The logs are read in a separate
process, whose peak memory is printed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from itertools import cycle, islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from timing import median_cpu_seconds

from paddle_logs import NOISE, PaddleRun, write_worker_logs
from stagescope.ingest.paddle import find_worker_logs, read_worker_logs
from stagescope.ingest.paddle.log_scan import scan_log
from stagescope.ingest.reader import ReadOptions
from stagescope.ingest.streams import open_stream

RUN = PaddleRun(devices=8, microbatches=64, steps=775, noise_lines=0.5)
ROUNDS = 3
NOISE_TENTHS = 9
LIMIT_S, LIMIT_RSS_MB, LIMIT_MB_PER_S = 3.0, 400, 600

PLAIN = re.compile(
    rb"Profiler Info: Job \(\d+\), type = (\w+), .*job_start_time = ([\d.]+), job_end_time = ([\d.]+)"
)


def read_plainly(path: Path) -> int:
    return len(PLAIN.findall(path.read_bytes()))


def scan(path: Path) -> int:
    with open_stream(path) as stream:
        return scan_log(stream)["jobs"].height


def write_noisy_log(path: Path, jobs: Path) -> None:
    """Write the lines of a log between nine times as many bytes of other lines."""
    noise = cycle(f"{line}\n".encode() for line in NOISE)
    with path.open("wb") as file, jobs.open("rb") as lines:
        for line in islice(lines, 150_000):
            if b"Profiler" in line:
                file.write(line)
                file.writelines(islice(noise, NOISE_TENTHS * len(line) // 90))


def peak_memory_mb() -> float:
    """Return the peak memory of this process; getrusage would include that of its parent."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1e3


def read_logs(directory: Path) -> None:
    logs = find_worker_logs(directory)
    size_mb = sum(log.path.stat().st_size for log in logs) / 1e6
    spans = read_worker_logs(logs, ReadOptions()).spans.height
    peak_mb = peak_memory_mb()
    read_s = median_cpu_seconds(ROUNDS, read_worker_logs, logs, ReadOptions())
    print(
        f"{len(logs)} logs, {spans:,} jobs, {size_mb:.0f} MB: {read_s:.2f} CPU s, at most {LIMIT_S} wanted;"
        f" peak {peak_mb:.0f} MB, at most {LIMIT_RSS_MB} wanted"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_worker_logs(directory, RUN)
        subprocess.run([sys.executable, __file__, name], check=True)
        noisy = directory / "noisy"
        write_noisy_log(noisy, directory / "workerlog.0")
        size_mb = noisy.stat().st_size / 1e6
        rate = size_mb / median_cpu_seconds(ROUNDS, scan, noisy)
        plain = size_mb / median_cpu_seconds(ROUNDS, read_plainly, noisy)
        print(
            f"{size_mb:.0f} MB of which {read_plainly(noisy):,} job lines: {rate:.0f} MB per CPU s, at least"
            f" {LIMIT_MB_PER_S} wanted; a plain re scan {plain:.0f} MB per CPU s"
        )


if __name__ == "__main__":
    read_logs(Path(sys.argv[1])) if len(sys.argv) > 1 else main()
