"""Time and memory to read some steps of a run that is too large to be read as a whole.

    python benchmarks/some_steps.py DIRECTORY [--ranks 10000] [--steps 100]

The recordings of a planted run are written into DIRECTORY by the code of the real format, unless they are there
already: pipelines of 8 ranks on 2 machines, 32 micro-batches, 177 spans per rank and step with all transfers and one
gradient reduction, 13 GB for the defaults. Each row is one process that runs `stagescope COMMAND DIRECTORY --steps
A:B`: CPU time and peak memory, also per span of the steps that are read, and CPU time per byte of the files, all of
which have to be looked at.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial, reduce
from multiprocessing import get_context
from pathlib import Path

import polars as pl

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from planted_runs import Ends, Shape, Times, ends_of, random_times, run
from recorded_runs import write_recordings
from stagescope.record.format import SUFFIX

STAGES, MICROBATCHES, SPANS_PER_STEP = 8, 32, 177
RANKS_PER_MACHINE = 4
RANKS_AT_ONCE = 80
STEPS_READ = (1, 2, 5)


def main() -> None:
    """Print one row per number of steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--ranks", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--command", default="report")
    options = parser.parse_args()
    generate(options.directory, options.ranks, options.steps)
    size_bytes = sum(file.stat().st_size for file in options.directory.glob(f"*{SUFFIX}"))
    print(f"{options.ranks} ranks x {options.steps} steps, {size_bytes / 1e9:.1f} GB")
    head = (
        "steps read",
        "spans read",
        "exit code",
        "wall s",
        "CPU s",
        "peak GB",
        "B/span",
        "us/span",
        "ns/B",
    )
    print("".join(f"{name:>12}" for name in head))
    for steps in STEPS_READ:
        first = options.steps // 2
        command = [
            sys.executable, "-m", "stagescope", options.command, str(options.directory), "--steps",
            f"{first}:{first + steps}",
        ]  # fmt: skip
        wall_s, cpu_s, peak_bytes, code = _measure(command)
        spans = options.ranks * steps * SPANS_PER_STEP
        cells = (
            f"{steps}", f"{spans:.3g}", f"{code}", f"{wall_s:.0f}", f"{cpu_s:.0f}", f"{peak_bytes / 1e9:.2f}",
            f"{peak_bytes / spans:.0f}", f"{cpu_s / spans * 1e6:.1f}", f"{cpu_s / size_bytes * 1e9:.2f}",
        )  # fmt: skip
        print("".join(f"{cell:>12}" for cell in cells), flush=True)


def generate(directory: Path, ranks: int, steps: int) -> None:
    """Write the recordings that are not there, a few pipelines at a time, which share steps and reductions."""
    starts = range(0, ranks, RANKS_AT_ONCE)
    if all((directory / f"rank-{first:05}{SUFFIX}").exists() for first in (*starts, ranks - 1)):
        return
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        whole = reduce(Ends.latest, pool.map(partial(_ends, ranks=ranks, steps=steps), starts))
        write = partial(_write, directory=directory, ranks=ranks, steps=steps, whole=whole)
        for _ in pool.map(write, starts):
            pass


def _ends(first: int, ranks: int, steps: int) -> Ends:
    """Return when the steps of some pipelines would end without the others."""
    return ends_of(_times(first, ranks, steps))


def _write(first: int, directory: Path, ranks: int, steps: int, whole: Ends) -> None:
    """Write the recordings of some pipelines."""
    part = run(_times(first, ranks, steps), whole)
    shifted = part.spans.with_columns(pl.col("rank") + first, pl.col("peer") + first)
    write_recordings(
        part.with_spans(shifted),
        directory,
        STAGES,
        ranks_per_machine=RANKS_PER_MACHINE,
        seed=first,
        world_size=ranks,
    )


def _times(first: int, ranks: int, steps: int) -> Times:
    """Return the times of some pipelines of the run, which reduce gradients together."""
    count = min(RANKS_AT_ONCE, ranks - first)
    shape = Shape(pipelines=count // STAGES, stages=STAGES, microbatches=MICROBATCHES, steps=steps)
    return replace(random_times(shape, seed=first), reduces=True)


def _measure(command: list[str]) -> tuple[float, float, int, int]:
    """Return wall time, CPU time, peak memory in bytes and exit code of a process."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    peak_bytes = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return time.perf_counter() - began, used.ru_utime + used.ru_stime, peak_bytes, process.returncode


if __name__ == "__main__":
    main()
