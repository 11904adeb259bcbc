"""CPU time and size of a stored run.

    python benchmarks/store_speed.py [--ranks-per-machine 8]

A planted run with all transfers is written as one table of spans and as recordings, one per rank, on clocks that
disagree. Both are stored, and the stored table is read back. The limits are those of docs/scale.md: 6 bytes per span,
and no more CPU time to read the stored run than to read the table. The last columns are for the recordings, aligned:
CPU time per span to read and align them, CPU time to write the files, and how much faster two workers write them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from planted_runs import Shape, random_times, run
from recorded_runs import write_recordings
from stagescope.api import read, store
from stagescope.execution import executor_for
from stagescope.exporters.stored_run import WriteOptions, write_stored_run
from stagescope.model.stored_run import FORMAT, VERSION, Manifest
from stagescope.vocabulary.kinds import RECEIVES

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPES = (
    Shape(pipelines=8, stages=8, microbatches=32, steps=20),
    Shape(pipelines=32, stages=8, microbatches=64, steps=40),
)
ROUNDS = 3
LIMIT_BYTES, LIMIT_RATIO = 6.0, 1.0


def main() -> None:
    """Print one row per run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks-per-machine", type=int, default=8)
    ranks_per_machine = parser.parse_args().ranks_per_machine
    head = (
        "spans",
        "files",
        "B/span",
        "limit",
        "read s",
        "store s",
        "us/span",
        "read stored s",
        "ratio",
        "limit",
        "us/span read",
        "write s",
        "2 workers",
    )
    print("".join(f"{name:>14}" for name in head))
    for shape in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            cells = _measure(shape, Path(folder, "spans.parquet"), Path(folder, "run"))
            cells += _measure_recordings(shape, Path(folder), ranks_per_machine)
        print("".join(f"{cell:>14}" for cell in cells), flush=True)


def _measure(shape: Shape, table: Path, stored: Path) -> tuple[str, ...]:
    """Return the cells of the row of one run."""
    _write(shape, table)
    reading_s = statistics.median(_seconds(lambda: read(table)) for _ in range(ROUNDS))
    storing_s = _seconds(lambda: store(table, out=stored))
    manifest = store(table, out=stored).manifest
    again_s = statistics.median(_seconds(lambda: read(stored)) for _ in range(ROUNDS))
    spans = manifest.span_count
    return (
        f"{spans}", f"{len(manifest.parts)}", f"{manifest.size_bytes / spans:.2f}", f"{LIMIT_BYTES:.0f}",
        f"{reading_s:.2f}", f"{storing_s:.2f}", f"{(storing_s - reading_s) / spans * 1e6:.2f}",
        f"{again_s:.2f}", f"{again_s / reading_s:.2f}", f"{LIMIT_RATIO:.0f}",
    )  # fmt: skip


def _measure_recordings(shape: Shape, folder: Path, ranks_per_machine: int) -> tuple[str, ...]:
    """Return the cells for the same run as recordings."""
    planted = run(random_times(shape))
    write_recordings(planted, folder / "recordings", shape.stages, ranks_per_machine=ranks_per_machine)
    began = time.process_time()
    timeline = read(folder / "recordings")
    reading_s = time.process_time() - began
    empty = Manifest(FORMAT, VERSION, "benchmark", (), {}, aligned=True)
    walls: dict[int, list[float]] = {1: [], 2: []}
    cpus = []
    for attempt in range(ROUNDS):
        for workers, found in walls.items():
            place = folder / f"{workers}-{attempt}"
            place.mkdir()
            with executor_for(workers) as executor:
                began, cpu = time.perf_counter(), time.process_time()
                write_stored_run(timeline, place, empty, WriteOptions(executor=executor))
                found.append(time.perf_counter() - began)
                if workers == 1:
                    cpus.append(time.process_time() - cpu)
    speedup = statistics.median(walls[1]) / statistics.median(walls[2])
    per_span = f"{reading_s / timeline.spans.height * 1e6:.2f}"
    return per_span, f"{statistics.median(cpus):.2f}", f"{speedup:.2f}x"


def _write(shape: Shape, path: Path) -> None:
    """Write the spans of a planted run, with the waits of its receives."""
    received = pl.when(pl.col("kind").is_in(RECEIVES))
    waits = {f"wait_{end}_ns": received.then(f"{end}_ns") for end in ("start", "end")}
    spans = run(random_times(shape)).spans.with_columns(pl.col(pl.Enum).cast(pl.String), **waits)
    spans.write_parquet(path)


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    main()
