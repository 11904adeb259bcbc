"""Cost of `stagescope paddle` compared with Paddle's own script, on the same kind of logs, in one run.

    python benchmarks/paddle_command_speed.py            the script on a smaller size, scaled
    python benchmarks/paddle_command_speed.py --full     both on the full size: some minutes

The full size is 8 devices with 100,000 jobs each and one line of noise per two jobs, some 190 MB. CPU seconds and
memory are those of the whole process, including written files. The script's time is linear in its jobs; its time
without jobs (importing Paddle) is measured and not scaled.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from peers import paddle_python, peer_variables

SCRIPT = "paddle.distributed.auto_parallel.static.profiler_helper_static"
OURS = "import sys; from stagescope.cli import main; sys.exit(main(['paddle', *sys.argv[1:]]))"
DEVICES, MICROBATCHES = 8, 64
JOBS_PER_STEP = 2 * MICROBATCHES + 1
FULL_STEPS = 100_000 // JOBS_PER_STEP
SMALL_STEPS = 2_000 // JOBS_PER_STEP
ROUNDS = 3
FASTER_THAN, CPU_LIMIT, MEMORY_LIMIT_MB = 25, 6.6, 500


class Cost(NamedTuple):
    """CPU time and memory of one process."""

    cpu_seconds: float
    memory_mb: float


def write_logs(directory: Path, steps: int) -> int:
    """Write the logs of so many steps and return how many jobs are in them.

    In a process of its own: the peak memory of a child counts from what its parent has when it is started.
    """
    directory.mkdir()
    maker = multiprocessing.get_context("spawn").Process(target=make_logs, args=(directory, steps))
    maker.start()
    maker.join()
    assert maker.exitcode == 0
    return DEVICES * JOBS_PER_STEP * steps


def make_logs(directory: Path, steps: int) -> None:
    from paddle_logs import PaddleRun, write_worker_logs  # noqa: PLC0415 - Polars, which only the child is to load

    run = PaddleRun(devices=DEVICES, microbatches=MICROBATCHES, steps=steps, noise_lines=0.5)
    write_worker_logs(directory, run)


def measure(command: list[str], logs: Path) -> Cost:
    """Return the CPU seconds and the peak memory of one call."""
    devices = ",".join(map(str, range(DEVICES)))
    words = [*command, "--devices", devices, "--log_dir", str(logs)]
    process = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=peer_variables()
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, words
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def median(command: list[str], logs: Path, rounds: int = ROUNDS) -> Cost:
    costs = [measure(command, logs) for _ in range(rounds)]
    return Cost(*(statistics.median(column) for column in zip(*costs, strict=True)))


def scaled(script: list[str], folder: Path, jobs: int) -> Cost:
    """Return the cost of the script for this many jobs, extrapolated from two small sizes."""
    one_jobs = write_logs(folder / "one", 1)
    small_jobs = write_logs(folder / "small", SMALL_STEPS)
    least, small = median(script, folder / "one"), median(script, folder / "small")
    per_job = (small.cpu_seconds - least.cpu_seconds) / (small_jobs - one_jobs)
    print(
        f"script: {least.cpu_seconds:.2f} s for {one_jobs:,} jobs, {small.cpu_seconds:.2f} s for {small_jobs:,}"
    )
    per_job_mb = (small.memory_mb - least.memory_mb) / (small_jobs - one_jobs)
    return Cost(
        least.cpu_seconds + per_job * (jobs - one_jobs), least.memory_mb + per_job_mb * (jobs - one_jobs)
    )


def main() -> None:
    script = [str(paddle_python()), "-m", SCRIPT]
    with tempfile.TemporaryDirectory() as name:
        full = Path(name, "full")
        jobs = write_logs(full, FULL_STEPS)
        size_mb = sum(path.stat().st_size for path in full.iterdir()) / 1e6
        print(f"{jobs:,} jobs, {size_mb:.0f} MB of logs")
        ours = median([sys.executable, "-c", OURS], full)
        written_mb = sum(path.stat().st_size for path in full.glob("pipeline_profile*.json")) / 1e6
        is_full = "--full" in sys.argv
        theirs = median(script, full, rounds=1) if is_full else scaled(script, Path(name), jobs)
    how = "run once" if is_full else "scaled linearly from the two sizes above"
    print(f"{'':12}{'CPU s':>8}{'memory MB':>11}")
    print(f"{'stagescope':12}{ours.cpu_seconds:8.2f}{ours.memory_mb:11.0f}   {written_mb:.0f} MB written")
    print(f"{'script':12}{theirs.cpu_seconds:8.1f}{theirs.memory_mb:11.0f}   {how}")
    print(
        f"{theirs.cpu_seconds / ours.cpu_seconds:.0f} times less CPU, at least {FASTER_THAN} wanted;"
        f" limits: {CPU_LIMIT} CPU s, {MEMORY_LIMIT_MB} MB"
    )


if __name__ == "__main__":
    main()
