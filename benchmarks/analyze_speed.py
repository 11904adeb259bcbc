"""CPU time and memory of a report of a large run.

    python benchmarks/analyze_speed.py

The limits are 40 CPU seconds and 3 GiB for 512 ranks x 100 steps x 128 actions, 6.5 million spans. The last row adds
a send and a receive for every message, as in a recorded run: three times as many spans in total. Every run is
generated in one process and analyzed in another one, whose peak memory is printed; `loaded` is its memory before the
analysis, which is mostly the timeline.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from planted_runs import Shape, random_times, run
from stagescope.analysis.report import build_explained_report
from stagescope.model import Timeline, empty_timeline
from stagescope.vocabulary.kinds import COMPUTE, RECEIVES

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

LIMIT_SECONDS, LIMIT_GIB = 40.0, 3.0
SMALL = Shape(pipelines=8, stages=8, microbatches=32, steps=20)
LARGE = Shape(pipelines=64, stages=8, microbatches=64, steps=100)
KIB_PER_GIB = 1 << 20


def main() -> None:
    """Print one row per run."""
    print(
        f"{'ranks':>6}{'steps':>6}{'spans':>10}{'CPU s':>8}{'limit':>7}{'peak GiB':>10}{'loaded':>8}{'limit':>7}"
    )
    for shape, with_transfers in ((SMALL, True), (LARGE, False), (LARGE, True)):
        with tempfile.TemporaryDirectory() as folder:
            _in_process(_make, shape, with_transfers, folder)
            spans, seconds, loaded, peak = _in_process(_explain, folder)
        limits = (LIMIT_SECONDS, LIMIT_GIB) if shape is LARGE else ("-", "-")
        ranks = shape.pipelines * shape.stages
        line = f"{ranks:6}{shape.steps:6}{spans:10}{seconds:8.1f}{limits[0]:>7}{peak:10.2f}{loaded:8.2f}{limits[1]:>7}"
        print(line, flush=True)


def _in_process(work: object, *arguments: object) -> tuple[float, ...]:
    """Return the result of a function called in a new process, so that its peak memory is its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send_result, args=(theirs, work, arguments))
    process.start()
    theirs.close()
    result = ours.recv()
    process.join()
    return result


def _send_result(connection: Connection, work: object, arguments: tuple[object, ...]) -> None:
    connection.send(work(*arguments))


def _make(shape: Shape, with_transfers: bool, folder: str) -> tuple[float, ...]:  # noqa: FBT001  # called by a process
    """Write the tables of a run to a folder."""
    timeline = run(random_times(shape))
    spans = timeline.spans if with_transfers else timeline.spans.filter(pl.col("lane") == COMPUTE)
    received = pl.when(pl.col("kind").is_in(RECEIVES))
    waits = {f"wait_{end}_ns": received.then(f"{end}_ns") for end in ("start", "end")}
    spans.with_columns(**waits).write_parquet(Path(folder, "spans"))
    timeline.ranks.write_parquet(Path(folder, "ranks"))
    return ()


def _explain(folder: str) -> tuple[float, ...]:
    """Return the number of spans, CPU seconds, GiB before the analysis, and peak GiB."""
    bare = empty_timeline()
    spans, ranks = (pl.read_parquet(Path(folder, name)) for name in ("spans", "ranks"))
    timeline = Timeline(spans, ranks, bare.steps, bare.clocks, bare.diagnostics)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of reading
    loaded = _peak_gib()
    began = time.process_time()
    report = build_explained_report(timeline)
    seconds = time.process_time() - began
    assert report.explanation is not None
    assert report.explanation.ledger.steps.height
    return spans.height, seconds, loaded, _peak_gib()


def _peak_gib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / KIB_PER_GIB


if __name__ == "__main__":
    main()
