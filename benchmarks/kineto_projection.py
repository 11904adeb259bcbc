"""Compare the kineto reader with a plain projection of kernels, on real torch.profiler traces.

    python benchmarks/kineto_projection.py TRACE.json[.gz]...

Traces of pipelines on GPUs are not public, but traces of other trainings are. In a copy of each, an annotation like
those of a pipeline's forwards (`F0.0`, `F0.1` ...) is put around the outermost operators of the thread that launched
most, up to 1,000 that launched a kernel; everything else is unchanged. Independently of the reader, plain Python
takes for each of them the launches inside it, on any thread, their kernels by correlation id but those of NCCL, and
the first start and the last end. A line per trace reports how many actions were compared, how many differ by a
nanosecond or more, and by how much the device lagged the host: the median time from the end of an operator to the end
of its last kernel.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any

from stagescope import api as workflow
from stagescope.ingest.kineto.event_types import KERNELS, LAUNCHES

Event = dict[str, Any]
Interval = tuple[int, int]

MOST_ACTIONS = 1000


def main() -> None:
    """Print one line per trace."""
    parser = argparse.ArgumentParser()
    parser.add_argument("traces", nargs="+", type=Path)
    for path in parser.parse_args().traces:
        trace = load_trace(path)
        actions, behind_ns = plant_actions(trace)
        found = read_actions(trace) if actions else {}
        differ = sum(found.get(number) != action for number, action in enumerate(actions))
        lag_us = median(behind_ns) / 1000 if actions else 0.0
        print(
            f"{path.name}: {len(actions)} actions compared, {differ} differ, device lag {lag_us:.1f} us (median)"
        )


def load_trace(path: Path) -> Event:
    """Return the trace in a file; ends the program with one sentence if there is none."""
    try:
        data = path.read_bytes()
        trace = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    except (OSError, EOFError, ValueError) as reason:
        raise SystemExit(f"{path}: cannot be read: {reason}") from None
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise SystemExit(f"{path}: not a trace of torch.profiler: it has no list `traceEvents`")
    return trace


def plant_actions(trace: Event) -> tuple[list[Interval], list[int]]:
    """Add annotations to a trace; return when their actions ran on the device, and how far it lagged the host."""
    base_ns = trace.get("baseTimeNanoseconds", 0)
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    kernels = _kernels(events)
    launches = sorted((e["ts"], _correlation(e), e["tid"]) for e in events if e.get("cat") in LAUNCHES)
    actions: list[Interval] = []
    behind_ns: list[int] = []
    for operator in _outermost(events, Counter(thread for *_, thread in launches)):
        start_us, end_us = operator["ts"], operator["ts"] + operator["dur"]
        first = bisect_left(launches, start_us, key=lambda launch: launch[0])
        last = bisect_right(launches, end_us, key=lambda launch: launch[0])
        ran = [kernel for _, number, _ in launches[first:last] for kernel in kernels[number]]
        if not ran or len(actions) == MOST_ACTIONS:
            continue
        annotation = {"cat": "user_annotation", "name": f"F0.{len(actions)}"}
        trace["traceEvents"].append(
            {key: operator[key] for key in ("ph", "pid", "tid", "ts", "dur")} | annotation
        )
        actions.append((base_ns + min(start for start, _ in ran), base_ns + max(end for _, end in ran)))
        behind_ns.append(actions[-1][1] - base_ns - _nanoseconds(end_us))
    return actions, behind_ns


def _outermost(events: list[Event], launched: Counter[Any]) -> list[Event]:
    """Return the outermost operators of the thread with the most launches."""
    if not launched:
        return []
    thread = launched.most_common(1)[0][0]
    own = [event for event in events if event.get("cat") == "cpu_op" and event["tid"] == thread]
    found: list[Event] = []
    for operator in sorted(own, key=lambda event: (event["ts"], -event["dur"])):
        if not found or operator["ts"] > found[-1]["ts"] + found[-1]["dur"]:
            found.append(operator)
    return found


def _kernels(events: list[Event]) -> defaultdict[int, list[Interval]]:
    """Return start and end of all non-NCCL kernels, in nanoseconds since the base time, by correlation id."""
    found: defaultdict[int, list[Interval]] = defaultdict(list)
    for event in events:
        if event.get("cat") in KERNELS and "nccl" not in event["name"].lower():
            start_ns = _nanoseconds(event["ts"])
            found[_correlation(event)].append((start_ns, start_ns + _nanoseconds(event["dur"])))
    return found


def _nanoseconds(microseconds: float) -> int:
    """Return the nearest nanosecond; a double cannot hold the nanoseconds of a trace without a base time."""
    return round(Fraction(microseconds) * 1000)


def _correlation(event: Event) -> int:
    return int(event.get("args", {}).get("correlation", -1))


def read_actions(trace: Event) -> dict[int, Interval]:
    """Return start and end of the forwards that stagescope reads from a trace, by micro-batch."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.json"
        path.write_text(json.dumps(trace))
        actions = workflow.read(path).spans.filter(kind="forward").select("microbatch", "start_ns", "end_ns")
    return {microbatch: (start_ns, end_ns) for microbatch, start_ns, end_ns in actions.iter_rows()}


if __name__ == "__main__":
    main()
