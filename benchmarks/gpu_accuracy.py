"""The accuracy of the recorder on a GPU compared with CUPTI, and its cost. `make gpu-check` runs this.

Needs only torch and a GPU: PYTHONPATH=src python benchmarks/gpu_accuracy.py [--seconds S]. Prints a table and exits
with 0 if every goal is met and with 1 otherwise; without a GPU it reports this and exits with 0.

Each action is a few matrix products on the current stream. It is recorded in the same way as in the hooks, and at the
same time by torch.profiler, whose CUPTI times of the action's kernels are the truth: from the start of the first to
the end of the last. docs/accuracy.md explains the method.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from stagescope import record
from stagescope.record import format as fmt
from stagescope.record import session

SIZE = 8192
ACTIONS = 16
SPACERS = 4
"""Products before the first action of a step. They keep the host ahead, so no action waits for its own launch."""
PAUSE_S = 0.1
SPANS = 200
ROUNDS = 40
FORWARD = 1
GOALS = {"median error": 5.0, "p99 error": 20.0, "step time": 0.1}


class Interval(NamedTuple):
    """An action, in nanoseconds since the Unix epoch."""

    start_ns: int
    end_ns: int


def recorded_actions(path: Path) -> tuple[dict[int, Interval], list[int]]:
    """Return the actions of a recording by micro-batch, and the errors stated in the recording, in ns."""
    spans, anchors, errors_ns = [], [], []
    for frame in fmt.scan_frames(path.read_bytes()):
        if isinstance(frame, fmt.Gap):
            raise TypeError(f"{path} is damaged at byte {frame.offset}")
        if frame.type == fmt.SPANS:
            spans += fmt.SPAN.iter_unpack(frame.payload)
        elif frame.type == fmt.CLOCK:
            anchors += fmt.ANCHOR.iter_unpack(frame.payload)
        elif frame.type == fmt.DEVICE_CLOCK:
            errors_ns += [error_ns for *_, error_ns in fmt.DEVICE_ANCHOR.iter_unpack(frame.payload)]
    monotonic_ns, realtime_ns, _ = min(anchors, key=lambda anchor: anchor[2])
    offset_ns = realtime_ns - monotonic_ns
    names = [name for name, _ in fmt.SPAN_FIELDS]
    fields = [dict(zip(names, span, strict=False)) for span in spans]
    actions = {
        span["microbatch"]: Interval(span["start_ns"] + offset_ns, span["end_ns"] + offset_ns)
        for span in fields
        if span["kind"] == FORWARD
    }
    return actions, errors_ns[1:]


def cupti_actions(trace: dict) -> dict[int, Interval]:
    """Return the actions of a Kineto trace by the number in their annotation, from first to last kernel.

    A kernel belongs to the annotation in which it was launched: the launch and the kernel share a correlation id.
    """
    base_ns = trace["baseTimeNanoseconds"]
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    kernels = {event["args"]["correlation"]: event for event in events if event.get("cat") == "kernel"}
    launches = [
        (event["ts"], kernels[event["args"]["correlation"]])
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver")
        and event.get("args", {}).get("correlation") in kernels
    ]
    actions = {}
    for event in events:
        if event.get("cat") != "user_annotation" or not event["name"].startswith("action "):
            continue
        own = [kernel for ts, kernel in launches if event["ts"] <= ts <= event["ts"] + event["dur"]]
        if own:
            start_us = min(kernel["ts"] for kernel in own)
            end_us = max(kernel["ts"] + kernel["dur"] for kernel in own)
            actions[int(event["name"].removeprefix("action "))] = Interval(
                base_ns + round(start_us * 1000), base_ns + round(end_us * 1000)
            )
    return actions


class Work:
    """Matrix products on the GPU, as actions of steps."""

    def __init__(self, torch) -> None:
        self.torch = torch
        self.matrix = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
        self.out = torch.empty_like(self.matrix)
        self.products(10)
        torch.cuda.synchronize()

    def products(self, count: int) -> None:
        """Queue `count` products."""
        for _ in range(count):
            self.torch.mm(self.matrix, self.matrix, out=self.out)

    def step(self, first: int = 0, *, annotate: bool = False) -> None:
        """Run one step of actions, recorded if a recorder is running."""
        recorder = session.recorder
        start_ns = recorder.begin_step() if recorder else 0
        self.products(SPACERS)
        for action in range(first, first + ACTIONS):
            if annotate:
                with self.torch.profiler.record_function(f"action {action}"):
                    self.action(recorder, action)
            else:
                self.action(recorder, action)
        if recorder:
            recorder.end_step(start_ns)
        self.torch.cuda.synchronize()

    def action(self, recorder, action: int) -> None:
        """Run one action like the hooks do."""
        if recorder is None:
            self.products(1 + action % 3)
            return
        token = recorder.timer.begin()
        self.products(1 + action % 3)
        recorder.timer.end(token, FORWARD, 0, action)


def measure_errors(torch, seconds: float) -> dict[str, list[float]]:
    """Return the differences of starts, ends and durations from CUPTI's, and the stated errors, in microseconds."""
    work = Work(torch)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with tempfile.TemporaryDirectory() as name:
        directory, actions = Path(name), 0
        with torch.profiler.profile(activities=activities) as profiler:
            work.step(10**6)
            record.start(directory / "recording")
            give_up_s = time.monotonic() + seconds
            while time.monotonic() < give_up_s:
                work.step(actions, annotate=True)
                actions += ACTIONS
                time.sleep(PAUSE_S)
            record.stop()
        profiler.export_chrome_trace(str(directory / "trace.json"))
        (path,) = (directory / "recording").rglob("*.sscope")
        recorded, stated_ns = recorded_actions(path)
        truth = cupti_actions(json.loads((directory / "trace.json").read_text(encoding="utf-8")))
    return {
        "actions": [float(actions)],
        **compare(recorded, truth),
        "stated": [one / 1e3 for one in stated_ns],
    }


def compare(recorded: dict[int, Interval], truth: dict[int, Interval]) -> dict[str, list[float]]:
    """Return signed differences in microseconds for the actions that both contain."""
    both = [(recorded[action], truth[action]) for action in sorted(recorded.keys() & truth.keys())]
    return {
        "start": [(one.start_ns - true.start_ns) / 1e3 for one, true in both],
        "end": [(one.end_ns - true.end_ns) / 1e3 for one, true in both],
        "duration": [(one.end_ns - one.start_ns - true.end_ns + true.start_ns) / 1e3 for one, true in both],
    }


def host_cost_us(torch) -> list[float]:
    """Return the host's microseconds for begin and end of one span, in rounds that fit the device's queue."""
    with tempfile.TemporaryDirectory() as name:
        record.start(name)
        timer = session.recorder.timer
        timer.end(timer.begin(), FORWARD)
        costs = []
        for _ in range(ROUNDS):
            begun_ns = time.perf_counter_ns()
            for action in range(SPANS):
                token = timer.begin()
                timer.end(token, FORWARD, 0, action)
            costs.append((time.perf_counter_ns() - begun_ns) / SPANS / 1e3)
            torch.cuda.synchronize()
            timer.harvest()
        record.stop()
    return costs


def step_times_s(torch) -> tuple[list[float], list[float]]:
    """Return the wall times of steps with and without the recorder, measured alternately."""
    work = Work(torch)
    times: tuple[list[float], list[float]] = ([], [])
    with tempfile.TemporaryDirectory() as name:
        for turn in range(2 * ROUNDS):
            recorded = turn % 2 == 0
            if recorded:
                record.start(name)
            work.step()  # the first step with a recorder starts its thread
            for _ in range(3):
                begun_s = time.perf_counter()
                work.step()
                times[not recorded].append(time.perf_counter() - begun_s)
            if recorded:
                record.stop()
    return times


def quantile(values: list[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def print_errors(title: str, errors: dict[str, list[float]]) -> tuple[float, float]:
    """Print one table; return median and p99 of all starts and ends."""
    print(f"\n{title}: {len(errors['start'])} of {errors['actions'][0]:.0f} actions compared")
    print(f"{'':20}{'median us':>10}{'p99 us':>10}{'mean signed us':>16}")
    for name in ("start", "end", "duration"):
        sizes = [abs(one) for one in errors[name]]
        print(
            f"{name:20}{statistics.median(sizes):10.2f}{quantile(sizes, 0.99):10.2f}"
            f"{statistics.fmean(errors[name]):16.2f}"
        )
    if errors["stated"]:
        stated = errors["stated"]
        print(f"{'stated error':20}{statistics.median(stated):10.2f}{max(stated):10.2f} (max)")
    both = [abs(one) for one in errors["start"] + errors["end"]]
    return statistics.median(both), quantile(both, 0.99)


def run_together(seconds: float, count: int) -> list[dict[str, list[float]]]:
    """Return the errors of several processes that use the GPU at the same time."""
    command = [sys.executable, __file__, "--worker", "--seconds", str(seconds)]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    outputs = [worker.communicate()[0] for worker in workers]
    if any(worker.returncode for worker in workers):
        raise SystemExit("a worker failed")
    return [json.loads(one.splitlines()[-1]) for one in outputs]


def find_torch() -> Any:
    """Return torch, None if it is not installed or finds no GPU."""
    try:
        import torch  # noqa: PLC0415 - the benchmark also runs without torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare recorded intervals on a GPU with CUPTI's.")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="how long to measure errors (default: 20)"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch = find_torch()
    if torch is None:
        print("torch finds no GPU: nothing was measured.")
        return 0
    if arguments.worker:
        print(json.dumps(measure_errors(torch, arguments.seconds)))
        return 0
    print(f"{time.strftime('%Y-%m-%d')}, {torch.cuda.get_device_name()}, torch {torch.__version__}")
    (alone,) = run_together(arguments.seconds, 1)
    median_us, p99_us = print_errors("one process", alone)
    for number, errors in enumerate(run_together(arguments.seconds, 2)):
        print_errors(f"two processes share the GPU, process {number}", errors)
    print(f"\nhost cost of a span: {statistics.median(host_cost_us(torch)):.2f} us in the median")
    recorded_s, bare_s = (statistics.median(times) for times in step_times_s(torch))
    more = (recorded_s / bare_s - 1) * 100
    print(f"step time: {bare_s * 1e3:.3f} ms, with the recorder {recorded_s * 1e3:.3f} ms: {more:+.3f} %")
    missed = 0
    print(f"\n{'goal':16}{'measured':>10}{'at most':>10}")
    measured = {"median error": (median_us, "us"), "p99 error": (p99_us, "us"), "step time": (more, "%")}
    for name, (value, unit) in measured.items():
        missed += value > GOALS[name]
        print(f"{name:16}{value:10.2f}{GOALS[name]:10.1f} {unit}{'  MISSED' if value > GOALS[name] else ''}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
