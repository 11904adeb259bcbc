"""Compare reports of public traces with figures from their raw events, by code that shares none with stagescope.

    python benchmarks/public_traces.py MEGATRONAPP STRAGGLERANALYSIS PROFILE_DATA

The arguments are checkouts of OpenSQZ/MegatronApp, ByteDance-Seed/StragglerAnalysis and deepseek-ai/profile-data. Each
trace is read with `stagescope report FILE --json -`, without any other option. A line per trace has the number of
actions, the mean window of a pipeline and step, and the bubble, or the communication of the pair and what of it is
hidden, as the report states them and as computed here; the exit code is 1 if one differs by more than 1e-6 of itself.
"""

from __future__ import annotations

import gzip
import json
import math
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

Figures = dict[str, float]
MEGASCAN = "profiling/data-1-pipeline-4-tensor-1-{}-aggregated{}.json"


class Action(NamedTuple):
    """An action as a trace has it; times in microseconds."""

    pipeline: int
    rank: tuple[int, int]
    step: int
    start: float
    end: float


def events_of(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    found = json.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    return found["traceEvents"] if isinstance(found, dict) else found


def megascan(path: Path) -> list[Action]:
    """Pairs of begin and end events; the end states the iteration."""
    begun: defaultdict[Any, list[float]] = defaultdict(list)
    actions = []
    for event in events_of(path):
        key = event.get("pid"), event.get("tid"), event.get("name")
        if event["ph"] == "B":
            begun[key].append(event["ts"])
        elif event["ph"] == "E" and event["name"] in {"forward", "backward"}:
            start, step = begun[key].pop(0), event["args"]["iteration"]
            actions.append(Action(0, (0, event["pid"]), step, start, event["ts"]))
    return actions


def bytedance(path: Path) -> list[Action]:
    """Complete events; a process is a replica, with five threads per rank."""
    return [
        Action(
            one["pid"], (one["pid"], one["tid"] // 5), one["args"]["step"], one["ts"], one["ts"] + one["dur"]
        )
        for one in events_of(path)
        if one["ph"] == "X" and one["name"].endswith("-compute")
    ]


def figures_of_actions(actions: list[Action], steps: set[int]) -> Figures:
    """Return the figures of the pipelines' windows in these steps."""
    of_window: defaultdict[tuple[int, int], list[Action]] = defaultdict(list)
    for action in actions:
        if action.step in steps:
            of_window[action.pipeline, action.step].append(action)
    windows, busy, space = [], 0.0, 0.0
    for found in of_window.values():
        windows.append(max(one.end for one in found) - min(one.start for one in found))
        ranks = {one.rank for one in found}
        space += windows[-1] * len(ranks)
        busy += sum(covered([(one.start, one.end) for one in found if one.rank == rank]) for rank in ranks)
    return {
        "actions": len(actions),
        "steps": len(steps),
        "window_ms": math.fsum(windows) / len(windows) / 1000,
        "bubble_percent": 100 * (1 - busy / space),
    }


def covered(intervals: list[tuple[float, float]]) -> float:
    """Return the length of a union."""
    length, reached = 0.0, -math.inf
    for start, end in sorted(intervals):
        length += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return length


def of_pair(path: Path) -> Figures:
    """Return the all-to-all of the overlapped pair, and what of it any other kernel runs beside.

    DeepEP computes the layout of a dispatch on the device (get_dispatch_layout), which is no communication.
    """
    kernels = [one for one in events_of(path) if one.get("cat") == "kernel"]
    groups: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for one in kernels:
        name = one["name"]
        is_exchange = any(word in name for word in ("dispatch", "combine", "notify"))
        is_exchange = is_exchange and "get_dispatch_layout" not in name
        groups[is_exchange].append((one["ts"], one["ts"] + one["dur"]))
    both = covered([*groups[True], *groups[False]])
    exchange = covered(groups[True])
    hidden = exchange + covered(groups[False]) - both
    return {"exchange_ms": exchange / 1000, "hidden_ms": hidden / 1000, "kernels": len(groups[True])}


def report_of(path: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "stagescope", "report", str(path), "--json", "-"]
    return json.loads(subprocess.run(command, capture_output=True, check=False).stdout)


def reported(report: dict[str, Any]) -> Figures:
    """Return the same figures as the report has them."""
    windows = [one["window_ns"] for one in report["ledger"]["steps"]]
    low, high = report["understood"]["actions_per_step"]
    steps = report["understood"]["steps"]["count"]
    return {
        "actions": low * steps if low == high else math.nan,
        "steps": len(report["bubble"]["steps"]),
        "window_ms": math.fsum(windows) / len(windows) / 1e6,
        "bubble_percent": 100 * report["bubble"]["fraction"],
    }


def reported_of_pair(report: dict[str, Any]) -> Figures:
    found = report["kernels"]["communication"]
    (pair,) = [one for one in found if one["within"] == "pair" and one["operation"] == "any"]
    return {
        "exchange_ms": pair["communication_ns"] / 1e6,
        "hidden_ms": pair["hidden_ns"] / 1e6,
        "kernels": pair["kernels"],
    }


def compare(name: str, computed: Figures, found: Figures) -> bool:
    parts = [
        f"{key} {found[key]:.6g} = {value:.6g}"
        if is_equal(value, found[key])
        else f"{key} {found[key]} != {value}"
        for key, value in computed.items()
    ]
    print(f"{name}: {', '.join(parts)}", flush=True)
    return all(is_equal(value, found[key]) for key, value in computed.items())


def is_equal(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-6)


def main() -> None:
    megatron, stragglers, deepseek = map(Path, sys.argv[1:])
    traces = [
        (megatron / MEGASCAN.format(run, part), megascan) for run in ("pp", "dpp") for part in ("", "-iter10")
    ]
    traces += [
        (stragglers / "data" / f"{kind}-{run}.json.gz", bytedance)
        for kind in ("timeline", "ideal-timeline")
        for run in ("ST", "SE", "AR")
    ]
    equal = []
    for path, actions_of in traces:
        report = report_of(path)
        computed = figures_of_actions(actions_of(path), set(report["bubble"]["steps"]))
        equal.append(compare(path.name, computed, reported(report)))
    pair = deepseek / "train.json"
    equal.append(compare(pair.name, of_pair(pair), reported_of_pair(report_of(pair))))
    raise SystemExit(not all(equal))


if __name__ == "__main__":
    main()
