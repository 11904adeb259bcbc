"""Compare the rocprof reader with a row-by-row projection of kernels, on a real trace of rocprofv3.

    python benchmarks/rocprof_projection.py RESULTS.json...

The public trace (908_results.json.gz of AMD-AGI/TraceLens) has kernels, but neither calls nor ranges. In a copy, each
kernel gets a call a little before it, in order, and each 40 of the first 40,000 calls get a roctx range, a forward
`F0.0`, `F0.1` ...: the kernels are unchanged. Independently of the reader, plain Python takes the first start and the
last end of the kernels of each range that its thread launched, on the stream with the most work. A line per trace and
format reports how many actions were compared, and how many differ by a nanosecond or more.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from stagescope import api as workflow

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from nsight_reports import Planted, thread
from rocprof_traces import BOOT_NS, write_rocpd

CALLS, EACH = 40_000, 40
FIRST_MARK = 1 << 40


def main() -> None:
    """Print two lines per trace."""
    parser = argparse.ArgumentParser()
    parser.add_argument("traces", nargs="+", type=Path)
    for trace in parser.parse_args().traces:
        content = json.loads(
            gzip.decompress(trace.read_bytes()) if trace.suffix == ".gz" else trace.read_bytes()
        )
        (process,) = content["rocprofiler-sdk-tool"]
        wanted = plant(process)
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "copy_results.json")
            copy.write_text(json.dumps(content))
            database = write_rocpd(
                Path(folder, "copy_results.db"), as_planted(process), names=names_of(process)
            )
            for path in (copy, database):
                found = read_actions(path)
                differ = sum(found.get(number) != times for number, times in enumerate(wanted))
                print(f"{trace.name}, {path.suffix}: {len(wanted)} actions compared, {differ} differ")


def plant(process: dict[str, Any]) -> list[tuple[int, int]]:
    """Add calls and ranges to a process; return the first start and last end of the kernels of each range."""
    kernels = sorted(process["buffer_records"]["kernel_dispatch"], key=lambda row: row["start_timestamp"])[
        :CALLS
    ]
    kinds = [row["kind"] for row in process["strings"]["buffer_records"]]
    marker = next(number for number, kind in enumerate(kinds) if kind.startswith("MARKER_CORE"))
    process["buffer_records"]["kernel_dispatch"] = kernels
    calls, ranges, texts = [], [], []
    load: Counter[int] = Counter()
    first = kernels[0]["start_timestamp"] - 10**9
    for number, row in enumerate(kernels):
        row["correlation_id"] = {"internal": number + 1, "external": 0}
        at = first + 100 * number
        calls.append(_record(1, row["thread_id"], number + 1, (at, at + 10)))
        load[_stream(row)] += row["end_timestamp"] - row["start_timestamp"]
    for number in range(len(kernels) // EACH):
        at = first + 100 * number * EACH
        owner = kernels[number * EACH]["thread_id"]
        ranges.append(_record(marker, owner, FIRST_MARK + number, (at - 5, at + 100 * EACH - 20)))
        texts.append({"key": FIRST_MARK + number, "value": f"F0.{number}"})
    process["buffer_records"] |= {"hip_api": calls, "marker_api": ranges}
    process["strings"]["marker_api"] = texts
    names = names_of(process)
    return [_extent(kernels[at : at + EACH], load, names) for at in range(0, len(ranges) * EACH, EACH)]


def _extent(kernels: list[dict[str, Any]], load: Counter[int], names: dict[int, str]) -> tuple[int, int]:
    launched = [row for row in kernels if row["thread_id"] == kernels[0]["thread_id"]]
    own = [row for row in launched if not names[row["dispatch_info"]["kernel_id"]].lower().startswith("nccl")]
    stream = max({_stream(row) for row in own}, key=lambda found: load[found])
    on_stream = [row for row in own if _stream(row) == stream]
    return min(row["start_timestamp"] for row in on_stream), max(row["end_timestamp"] for row in on_stream)


def _stream(row: dict[str, Any]) -> int:
    number: int = row["stream_id"]["handle"]
    return number


def _record(kind: int, owner: int, number: int, times: tuple[int, int]) -> dict[str, Any]:
    correlation = {"internal": number, "external": 0}
    start, end = times
    return {"kind": kind, "operation": 0, "thread_id": owner, "correlation_id": correlation,
            "start_timestamp": start, "end_timestamp": end}  # fmt: skip


def names_of(process: dict[str, Any]) -> dict[int, str]:
    """Return the names of kernels by number."""
    return {row["kernel_id"]: row["formatted_kernel_name"] for row in process["kernel_symbols"]}


def as_planted(process: dict[str, Any]) -> Planted:
    """Return the same calls, ranges and kernels for a rocpd database."""
    pid, records = process["metadata"]["pid"], process["buffer_records"]
    planted = Planted()
    for text, row in zip(process["strings"]["marker_api"], records["marker_api"], strict=True):
        planted.ranges.append((*_times(row), 59, text["value"], None, thread(pid, row["thread_id"])))
    for row in records["hip_api"]:
        number = row["correlation_id"]["internal"]
        planted.launches.append((*_times(row), 0, thread(pid, row["thread_id"]), number, 1, 0))
    for row in records["kernel_dispatch"]:
        number, name = row["correlation_id"]["internal"], row["dispatch_info"]["kernel_id"]
        planted.kernels.append((*_times(row), 0, 1, _stream(row), number, thread(pid, 0), name, name, None))
    return planted


def _times(row: dict[str, Any]) -> tuple[int, int]:
    return row["start_timestamp"] - BOOT_NS, row["end_timestamp"] - BOOT_NS


def read_actions(trace: Path) -> dict[int, tuple[int, int]]:
    """Return start and end of the forwards that stagescope reads from a trace, by micro-batch."""
    spans = workflow.read(trace).spans
    actions = spans.filter(kind="forward").select("microbatch", "start_ns", "end_ns")
    return {microbatch: (start_ns, end_ns) for microbatch, start_ns, end_ns in actions.iter_rows()}


if __name__ == "__main__":
    main()
