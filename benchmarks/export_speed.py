"""How much CPU time and space an export takes, from a Timeline to a finished file.

    python benchmarks/export_speed.py

The run is 1F1B on 8 ranks, once as recorded and once reduced to its transfers. Limits are for 100,000 slices;
the table shows the median of several runs of each format, scaled to that number.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from timing import median_cpu_seconds

from stagescope.api import write
from stagescope.exporters.tracks import lay_out
from synthetic import Shape, pipeline_timeline

if TYPE_CHECKING:
    from stagescope.exporters import Written
    from stagescope.model import Timeline

ROUNDS = 7
LIMITS = {"chrome": (0.8, None), "pftrace": (0.4, 60), "csv": (None, None), "parquet": (None, None)}


def measure(timeline: Timeline, format_name: str, folder: Path) -> tuple[float, Written]:
    """Return the median CPU seconds and what was written."""
    path = folder / format_name
    seconds = median_cpu_seconds(ROUNDS, write, timeline, path, format=format_name, force=True)
    return seconds, write(timeline, path, format=format_name, force=True)


def report(title: str, timeline: Timeline, folder: Path) -> None:
    """Print one table: a row per format, after one for the layout that the trace formats share."""
    layout = lay_out(timeline)
    share = 100_000 / layout.slices.height
    print(f"\n{title}: {layout.slices.height} slices, {layout.flows.height} flows")
    print(f"{'':10}{'CPU s':>8}{'per 100k':>10}{'limit':>7}{'B/slice':>9}{'limit':>7}")
    seconds = median_cpu_seconds(ROUNDS, lay_out, timeline)
    print(f"{'(layout)':10}{seconds:8.3f}{seconds * share:10.3f}")
    for format_name, (limit_seconds, limit_bytes) in LIMITS.items():
        seconds, written = measure(timeline, format_name, folder)
        print(
            f"{format_name:10}{seconds:8.3f}{seconds * share:10.3f}{limit_seconds or '-':>7}"
            f"{written.size_bytes / written.slice_count:9.1f}{limit_bytes or '-':>7}"
        )


def main() -> None:
    """Measure a run with waits and one of transfers alone, which has twice as many flows per slice."""
    timeline = pipeline_timeline(Shape(ranks=8, microbatches=128, steps=14))
    longer = pipeline_timeline(Shape(ranks=8, microbatches=128, steps=27))
    dense = longer.with_spans(
        longer.spans.filter(pl.col("lane") == "comm").with_columns(
            wait_start_ns=pl.lit(None, pl.Int64), wait_end_ns=pl.lit(None, pl.Int64)
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        for number, (title, case) in enumerate([("with waits", timeline), ("transfers only", dense)]):
            (Path(folder) / str(number)).mkdir()
            report(title, case, Path(folder) / str(number))


if __name__ == "__main__":
    main()
