"""Compare the nsight reader with a row-by-row projection of kernels, on real Nsight reports.

    python benchmarks/nsight_projection.py [--parquet] REPORT.sqlite...

Real reports of pipelines are not public, but reports of other trainings and programs are. In a copy of each, the
outermost NVTX ranges that launched a kernel, up to 1,000, are renamed to forwards (`F0.0`, `F0.1` ...): ranges,
launches and kernels are unchanged. Independently of the reader, plain Python takes for each range the launches
inside it on its thread, their kernels by correlation id and process but those of NCCL, and the first start and the
last end. A line per report reports how many actions were compared, how many differ by a nanosecond or more, and how far
the device lagged the host: the median time from the end of a range to the end of its last kernel. With
`--parquet`, stagescope reads the same tables from a directory of Parquet files, as `nsys export --type parquetdir`
writes.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import sys
import tempfile
from bisect import bisect_left, bisect_right
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from nsight_reports import parquet_copy
from stagescope import api as workflow

MOST_RANGES = 1000
THREAD_BITS = 0xFFFFFF
"""The lowest bits of a global thread id are the thread, the others its process, as in a kernel's global process id."""

RANGES = """SELECT rowid, start, end, globalTid FROM NVTX_EVENTS WHERE end NOT NULL AND eventType = 59
    ORDER BY start, end DESC"""
LAUNCHES = "SELECT globalTid, start, correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME ORDER BY start"
KERNELS = """SELECT k.globalPid, k.correlationId, k.start, k.end, s.value FROM CUPTI_ACTIVITY_KIND_KERNEL AS k
    JOIN StringIds AS s ON s.id = k.shortName"""
SESSION = "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME"


class Action(NamedTuple):
    """A renamed range: when its host ended it, and from its first kernel's start to its last one's end."""

    host_end_ns: int
    start_ns: int
    end_ns: int


def main() -> None:
    """Print one line per report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("reports", nargs="+", type=Path)
    parser.add_argument("--parquet", action="store_true")
    given = parser.parse_args()
    for report in given.reports:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(shutil.copy(report, folder))
            actions = plant_actions(copy)
            export = parquet_copy(copy, Path(folder, "report.parquetdir")) if given.parquet else copy
            found = read_actions(export) if actions else {}
        differ = sum(
            found.get(number) != (action.start_ns, action.end_ns) for number, action in enumerate(actions)
        )
        lag_us = median(action.end_ns - action.host_end_ns for action in actions) / 1000 if actions else 0.0
        print(
            f"{report.name}: {len(actions)} actions compared, {differ} differ, device lag {lag_us:.1f} us (median)"
        )


def plant_actions(report: Path) -> list[Action]:
    """Rename ranges of a report to forwards of stage 0; return what they should be read as, by micro-batch."""
    actions: list[Action] = []
    with closing(sqlite3.connect(report)) as database, database:
        (epoch_ns,) = database.execute(SESSION).fetchone()
        kernels, launches = _kernels(database), _launches(database)
        done_ns: dict[int, int] = {}
        for row, start_ns, end_ns, thread in database.execute(RANGES).fetchall():
            own = _within(launches[thread], start_ns, end_ns)
            ran = [kernels[key] for number in own if (key := (thread & ~THREAD_BITS, number)) in kernels]
            if not ran or start_ns < done_ns.get(thread, 0) or len(actions) == MOST_RANGES:
                continue
            done_ns[thread] = end_ns
            name = f"F0.{len(actions)}"
            database.execute("UPDATE NVTX_EVENTS SET text = ?, textId = NULL WHERE rowid = ?", (name, row))
            first_ns, last_ns = min(start for start, _ in ran), max(end for _, end in ran)
            actions.append(Action(*(epoch_ns + moment for moment in (end_ns, first_ns, last_ns))))
    return actions


def _kernels(database: sqlite3.Connection) -> dict[tuple[int, int], tuple[int, int]]:
    """Return start and end of all non-NCCL kernels, by process and correlation id."""
    rows = database.execute(KERNELS)
    return {
        (process, number): (start, end)
        for process, number, start, end, name in rows
        if not name.lower().startswith("nccl")
    }


def _launches(database: sqlite3.Connection) -> defaultdict[int, list[tuple[int, int]]]:
    """Return when each thread called the runtime, and the correlation id of the call."""
    found: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for thread, start_ns, number in database.execute(LAUNCHES):
        found[thread].append((start_ns, number))
    return found


def _within(launches: list[tuple[int, int]], start_ns: int, end_ns: int) -> list[int]:
    """Return the correlation ids of the launches between two moments."""
    first = bisect_left(launches, start_ns, key=lambda launch: launch[0])
    last = bisect_right(launches, end_ns, key=lambda launch: launch[0])
    return [number for _, number in launches[first:last]]


def read_actions(report: Path) -> dict[int, tuple[int, int]]:
    """Return start and end of the forwards that stagescope reads from a report, by micro-batch."""
    spans = workflow.read(report).spans
    actions = spans.filter(kind="forward").select("microbatch", "start_ns", "end_ns")
    return {microbatch: (start_ns, end_ns) for microbatch, start_ns, end_ns in actions.iter_rows()}


if __name__ == "__main__":
    main()
