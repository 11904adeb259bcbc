"""Time and memory to store a run of any size and to analyze it completely, with several numbers of workers.

    python benchmarks/scale_speed.py DIRECTORY [--ranks 1000] [--steps 100] [--workers 1 2] [--cores-per-worker 1]

The recordings are those of some_steps.py, written into DIRECTORY/recordings unless they are there already: 177 spans
per rank and step. Each row is a run of `stagescope store DIRECTORY/recordings`, and then one of the analysis of what is
stored, in a new process: wall-clock time, CPU time of all processes, and the most memory of one process. `gain` is how
much faster both together are than with the first number of workers. Amdahl's law for the first and the last number
gives the part that one process does, and what 64 workers would gain.

One worker uses all cores where Polars does. With --cores-per-worker, the processes of each row have that many cores for
each worker, which is what one more machine brings.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from some_steps import SPANS_PER_STEP, generate

PROJECTED = 64
WORK = """
import json, os, resource, sys, time
if __name__ == "__main__":
    what, source, place, workers, cores = sys.argv[1:]
    if int(cores):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(cores)])
    from stagescope import api
    work = {"store": api.store, "analyze": api.save_report}[what]
    began = time.perf_counter()
    if what == "store":
        work(source, out=place, workers=int(workers))
    else:
        work(place, workers=int(workers))
    wall = time.perf_counter() - began
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(json.dumps({
        "wall": wall,
        "cpu": sum(each.ru_utime + each.ru_stime for each in usages),
        "peak": max(each.ru_maxrss for each in usages) * (1 if sys.platform == "darwin" else 1024) / 1e9,
    }))
"""


class Cost(NamedTuple):
    """Wall-clock and CPU seconds, and the most memory of a process in GB."""

    wall: float
    cpu: float
    peak: float


def main() -> None:
    """Print one row per number of workers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--ranks", type=int, default=1_000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--cores-per-worker", type=int, default=0, help="Linux only")
    options = parser.parse_args()
    recordings, place = options.directory / "recordings", options.directory / "run.stagescope"
    began = time.perf_counter()
    generate(recordings, options.ranks, options.steps)
    os.sync()  # files that are synchronized later would wait for these
    spans = options.ranks * options.steps * SPANS_PER_STEP
    made = f"generated in {time.perf_counter() - began:.0f} s"
    print(f"{options.ranks} ranks x {options.steps} steps, {spans:,} spans, {made}")
    head = ("workers", "store s", "CPU s", "us/span", "GB", "analysis s", "CPU s", "us/span", "GB", "gain")
    print("".join(f"{name:>12}" for name in head), flush=True)
    walls = []
    for workers in options.workers:
        shutil.rmtree(place, ignore_errors=True)
        numbers = workers, workers * options.cores_per_worker
        stored, analyzed = (_cost(what, recordings, place, numbers) for what in ("store", "analyze"))
        walls.append(stored.wall + analyzed.wall)
        cells = [f"{workers}"]
        for cost in (stored, analyzed):
            cells += [
                f"{cost.wall:.1f}",
                f"{cost.cpu:.1f}",
                f"{cost.cpu / spans * 1e6:.2f}",
                f"{cost.peak:.2f}",
            ]
        print("".join(f"{cell:>12}" for cell in [*cells, f"{walls[0] / walls[-1]:.2f}"]), flush=True)
    if options.workers[0] != options.workers[-1]:
        _project(options.workers, walls)


def _cost(what: str, recordings: Path, place: Path, numbers: tuple[int, int]) -> Cost:
    """Return what a process costs that has these numbers of workers and of cores, 0 for all."""
    command = [sys.executable, "-c", WORK, what, str(recordings), str(place), *map(str, numbers)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


def _project(workers: list[int], walls: list[float]) -> None:
    """Print what Amdahl's law makes of the first and the last row, which have different numbers of workers."""
    few, many = workers[0], workers[-1]
    # wall = alone + shared / workers
    shared = (walls[0] - walls[-1]) / (1 / few - 1 / many)
    alone = walls[-1] - shared / many
    most = alone + shared / PROJECTED
    print(f"one process alone: {alone:.1f} s, {100 * alone / (alone + shared):.0f} % of the work; "
          f"{PROJECTED} workers: {most:.1f} s, {(alone + shared) / most:.1f} times one")  # fmt: skip


if __name__ == "__main__":
    main()
