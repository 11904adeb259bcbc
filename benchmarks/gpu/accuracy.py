"""Part F: recorded actions compared with CUPTI, and with a copy to the host. Part G: the rate of the device's clock.

Each action is one to three matrix products on the current stream. It is recorded by a wrapper of the hooks, and at
the same time by torch.profiler, whose CUPTI times of the action's kernels are the truth: from the start of the first
to the end of the last, where a kernel belongs to the annotation in which the host launched it. Both are compared in
nanoseconds of the wall clock, so the differences include the errors of both.

A second truth needs no CUPTI: a copy of one element to pinned memory is queued behind an action, and the host waits
for the element to change. The action has ended by then, and not much earlier.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from gpu.device import profile
from gpu.hooked import FORWARD, HookedStage
from gpu.measures import SETTINGS, Measure, quantile
from stagescope import record
from stagescope.record import format as fmt
from stagescope.record import session

SIZE = 8192
ACTIONS = 16
SPACERS = 4
"""Products before the first action of a step. They keep the host ahead, so no action waits for its own launch."""
PAUSE_S = 0.1
TOLERATED_US = 3.0
"""CUPTI's own error, which an action may be off by in addition to its stated error."""


class Interval(NamedTuple):
    """An action, in nanoseconds since the Unix epoch."""

    start_ns: int
    end_ns: int


class Truth(NamedTuple):
    """An action as CUPTI saw it: its interval, its number of kernels, and whether none ran before its launch."""

    interval: Interval
    kernels: int
    is_causal: bool


class Recorded(NamedTuple):
    """The actions of a recording by micro-batch, and its device anchors: device_ns, host_ns, width_ns, error_ns.

    The host times of the anchors are monotonic; `offset_ns` converts them to nanoseconds since the epoch.
    """

    actions: dict[int, Interval]
    anchors: list[tuple[int, int, int, int]]
    offset_ns: int

    def stated_us(self, moment_ns: int) -> float:
        """Return the error that the recording states for a moment."""
        found = [
            end[3]
            for begin, end in zip(self.anchors, self.anchors[1:], strict=False)
            if begin[1] <= moment_ns - self.offset_ns <= end[1]
        ]
        return max(found, default=0) / 1e3


def read_recording(path: Path) -> Recorded:
    """Read the one recording in a folder. Raises TypeError if it is damaged."""
    (file,) = path.rglob("*.sscope")
    spans, anchors, device_anchors = [], [], []
    for frame in fmt.scan_frames(file.read_bytes()):
        if isinstance(frame, fmt.Gap):
            raise TypeError(f"{file} is damaged at byte {frame.offset}")
        if frame.type == fmt.SPANS:
            spans += fmt.SPAN.iter_unpack(frame.payload)
        elif frame.type == fmt.CLOCK:
            anchors += fmt.ANCHOR.iter_unpack(frame.payload)
        elif frame.type == fmt.DEVICE_CLOCK:
            device_anchors += fmt.DEVICE_ANCHOR.iter_unpack(frame.payload)
    monotonic_ns, realtime_ns, *_ = min(anchors, key=lambda anchor: anchor[2])
    offset_ns = realtime_ns - monotonic_ns
    names = [name for name, _ in fmt.SPAN_FIELDS]
    fields = [dict(zip(names, span, strict=False)) for span in spans]
    actions = {
        span["microbatch"]: Interval(span["start_ns"] + offset_ns, span["end_ns"] + offset_ns)
        for span in fields
        if span["kind"] == FORWARD
    }
    return Recorded(actions, device_anchors, offset_ns)


def cupti_actions(trace: dict[str, Any]) -> dict[int, Truth]:
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
        own = [(ts, kernel) for ts, kernel in launches if event["ts"] <= ts <= event["ts"] + event["dur"]]
        if own:
            start_us = min(kernel["ts"] for _, kernel in own)
            end_us = max(kernel["ts"] + kernel["dur"] for _, kernel in own)
            interval = Interval(base_ns + round(start_us * 1000), base_ns + round(end_us * 1000))
            is_causal = all(kernel["ts"] >= ts for ts, kernel in own)
            actions[int(event["name"].removeprefix("action "))] = Truth(interval, len(own), is_causal)
    return actions


class Work:
    """Matrix products on the GPU, as actions of steps."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.matrix = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
        self.out = torch.empty_like(self.matrix)
        self.compiled: list[bool] = []
        self._stage: tuple[Any, HookedStage] | None = None
        self.products(10)
        torch.cuda.synchronize()

    def products(self, count: int) -> None:
        """Queue `count` products."""
        for _ in range(count):
            self.torch.mm(self.matrix, self.matrix, out=self.out)

    def step(self, first: int = 0) -> None:
        """Run one recorded and annotated step of actions."""
        recorder = session.recorder
        start_ns = recorder.begin_step()
        self.products(SPACERS)
        stage = self.stage()
        for action in range(first, first + ACTIONS):
            with self.torch.profiler.record_function(f"action {action}"):
                self.action(stage, action)
        self.compiled.append(stage.is_compiled)
        recorder.end_step(start_ns)
        self.torch.cuda.synchronize()

    def stage(self) -> HookedStage:
        """Return the stage whose actions the recorder in use records."""
        if self._stage is None or self._stage[0] is not session.recorder:
            self._stage = session.recorder, HookedStage(session.recorder)
        return self._stage[1]

    def action(self, stage: HookedStage, action: int) -> None:
        """Run one action."""
        stage.forward(action, lambda: self.products(1 + action % 3))


def errors(torch: Any) -> list[Measure]:
    """Measure the differences of recorded actions from CUPTI's and from a copy to the host."""
    work = Work(torch)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)

        def run() -> None:
            record.start(path)
            begun_s, actions = time.monotonic(), 0
            while time.monotonic() < begun_s + SETTINGS.error_s:
                work.step(actions)
                actions += ACTIONS
                time.sleep(PAUSE_S)
            record.stop()

        truth = cupti_actions(profile(torch, run))
        recorded = read_recording(path)
    in_c = Measure("steps whose actions wrappers in C recorded", 100 * statistics.mean(work.compiled), "%")
    if os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
        return serialized([in_c, *compare(recorded, truth)])
    return [in_c, *compare(recorded, truth), *copies(work)]


def serialized(measures: list[Measure]) -> list[Measure]:
    """Return the measures for one connection: anchors are late there, and only the stated errors must hold."""
    return [
        measure._replace(
            name=f"{measure.name}, one connection",
            **({"low": None, "high": None} if measure.unit == "us" else {}),
        )
        for measure in measures
    ]


def compare(recorded: Recorded, truth: dict[int, Truth]) -> list[Measure]:
    """Return how far the actions that both contain are apart, and whether both contain the same."""
    both = sorted(recorded.actions.keys() & truth.keys())
    off_us = [
        ((found - true) / 1e3, recorded.stated_us(found))
        for action in both
        for found, true in zip(recorded.actions[action], truth[action].interval, strict=True)
    ]
    signed_us = [off for off, _ in off_us]
    outside = sum(abs(off) > stated + TOLERATED_US for off, stated in off_us)
    wrong = sum(truth[action].kernels != 1 + action % 3 for action in both)
    early = sum(not truth[action].is_causal for action in both)
    median_us = statistics.median(signed_us) if signed_us else float("nan")
    return [
        Measure("actions of CUPTI that were recorded", 100 * len(both) / max(1, len(truth)), "%", low=100),
        Measure("actions with another number of kernels", wrong, "", high=0),
        Measure("actions with a kernel before its launch", early, "", high=0),
        Measure("starts and ends, signed median", median_us, "us", -5.0, 5.0),
        Measure("the same, 1st percentile", quantile(signed_us, 0.01), "us", low=-20.0),
        Measure("the same, 99th percentile", quantile(signed_us, 0.99), "us", high=20.0),
        Measure("median stated error", quantile([stated for _, stated in off_us], 0.5), "us"),
        Measure("outside stated error + 3 us", 100 * outside / max(1, len(off_us)), "%", high=1.0),
    ]


def copies(work: Work) -> list[Measure]:
    """Return by how much recorded ends are later than a copy that was queued behind them, and how much earlier."""
    torch = work.torch
    ones = torch.ones(1, device="cuda")
    flag = torch.zeros(1, pin_memory=True)
    seen_ns = {}
    with tempfile.TemporaryDirectory() as name:
        record.start(name)
        for action in range(SETTINGS.copies):
            start_ns = session.recorder.begin_step()
            work.products(SPACERS)
            flag.zero_()
            work.action(work.stage(), action)
            flag.copy_(ones, non_blocking=True)
            while not flag.item():
                pass
            seen_ns[action] = time.time_ns()
            session.recorder.end_step(start_ns)
            torch.cuda.synchronize()
        record.stop()
        recorded = read_recording(Path(name))
    early_us = [
        ((seen_ns[action] - interval.end_ns) / 1e3, recorded.stated_us(interval.end_ns))
        for action, interval in recorded.actions.items()
    ]
    late = sum(early + stated < 0 for early, stated in early_us)
    return [
        Measure("ends after a copy behind them, beyond the stated error", late, "", high=0),
        Measure("median time from an end to its copy", quantile([us for us, _ in early_us], 0.5), "us"),
    ]


def drift(torch: Any) -> list[Measure]:
    """Measure the rate of the device's clock under load, and how well each anchor is predicted by its neighbors."""
    work = Work(torch)
    with tempfile.TemporaryDirectory() as name:
        record.start(name)
        begun_s, actions = time.monotonic(), 0
        while time.monotonic() < begun_s + SETTINGS.drift_s:
            work.step(actions)
            actions += ACTIONS
        record.stop()
        anchors = read_recording(Path(name)).anchors
    first, last = anchors[0], anchors[-1]
    rate_ppm = ((last[0] - first[0]) / (last[1] - first[1]) - 1) * 1e6 if last[1] > first[1] else float("nan")
    outside = sum(
        abs(_interpolated(one[0], before, after) - one[1]) > max(one[3], after[3])
        for before, one, after in zip(anchors, anchors[1:], anchors[2:], strict=False)
    )
    return [
        Measure("anchors", len(anchors), "", low=3),
        Measure("rate of the device's clock", rate_ppm, "ppm", -50.0, 50.0),
        Measure("anchors outside their stated error", outside, "", high=0),
    ]


def _interpolated(
    device_ns: int, before: tuple[int, int, int, int], after: tuple[int, int, int, int]
) -> float:
    """Return the host time of a device time on the line between two anchors."""
    return before[1] + (device_ns - before[0]) * (after[1] - before[1]) / (after[0] - before[0])
