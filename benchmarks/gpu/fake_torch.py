"""A torch with a simulated CUDA device, for the dry run of the check: its streams run in real time, its kernels sleep.

A connection runs its work in order: an item starts only after the one before it has started, on whatever stream.
Streams of all priorities share the connections, as on an H100 (driver 580.159.04).
"""

from __future__ import annotations

import itertools
import json
import os
import struct
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

CYCLES_PER_MS = 1_000_000
KERNEL_NS = 2_000
PRODUCT_NS = 1_000_000
EVENT_NS = 1_000
SEEN_NS = 3_000
LAUNCH_NS = 500_000
"""From the launch of a graph to its first item, so that the host is ahead of the items."""
POOL = 32
OFFSET_NS = 123_456_789_000
DRIFT = 20e-6


def now_ns() -> int:
    """Return the time of the host, which the simulated device shares except for `OFFSET_NS` and `DRIFT`."""
    return time.monotonic_ns()


class Device:
    """The queues of the device, what runs during a capture, and what the profiler has seen."""

    def __init__(self) -> None:
        single = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1"
        self.connections = 1 if single else 8
        self.started_ns: dict[object, int] = {}
        self.capture: list[Any] | None = None
        self.capture_is_broken = False
        self.profile: list[dict[str, Any]] | None = None
        self.numbers = itertools.count(1)
        self.lock = threading.RLock()


DEVICE = Device()


class Stream:
    """A stream on one of the connections of the device."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.free_ns = 0
        self.connection = number % DEVICE.connections + (number > 0 and DEVICE.connections > 1)

    def run(self, duration_ns: int) -> tuple[int, int]:
        """Queue an item; return when it starts and ends."""
        with DEVICE.lock:
            start_ns = max(now_ns() + EVENT_NS, self.free_ns, DEVICE.started_ns.get(self.connection, 0))
            self.free_ns = start_ns + duration_ns
            DEVICE.started_ns[self.connection] = max(DEVICE.started_ns.get(self.connection, 0), start_ns)
            return start_ns, self.free_ns


DEFAULT = Stream(0)
CURRENT = threading.local()
POOLS: dict[int, list[Stream]] = {}
TAKEN: dict[int, itertools.count[int]] = {}


def pooled_stream(device: Any = None, priority: int = 0) -> Stream:
    """Return the next stream of the pool of a priority; the 33rd is the first again."""
    del device
    pool = POOLS.setdefault(priority, [Stream(7 + number) for number in range(POOL)])
    return pool[next(TAKEN.setdefault(priority, itertools.count())) % POOL]


def current_stream(device: Any = None) -> Stream:
    """Return the current stream of this thread."""
    del device
    return getattr(CURRENT, "stream", DEFAULT)


class Event:
    """An event; an external one reports its last occurrence until the device reaches the next."""

    def __init__(self, *, enable_timing: bool = False, external: bool = False) -> None:
        self.enable_timing = enable_timing
        self.external = external
        self.done_ns = 0
        self.earlier_ns = 0

    def record(self, stream: Stream | None = None) -> None:
        """Record the event, in a capture as an item of the graph."""
        stream = stream or current_stream()
        if DEVICE.capture is not None and stream is current_stream() and self.external:
            DEVICE.capture.append(self)
            return
        self._happen(stream)

    def replay(self, stream: Stream) -> None:
        """Happen again in a replay."""
        self.earlier_ns = self.done_ns
        self._happen(stream)

    def query(self) -> bool:
        """Return whether the event has happened; breaks a capture."""
        if DEVICE.capture is not None:
            DEVICE.capture_is_broken = True
            raise RuntimeError("operation not permitted when stream is capturing")
        return now_ns() >= self.done_ns + SEEN_NS

    def elapsed_time(self, other: Event) -> float:
        """Return milliseconds as float32."""
        if not (self.query() and other.query()):
            raise RuntimeError("not ready")
        elapsed_ms = (other.done_ns - self.done_ns) * (1 + DRIFT) / 1e6
        return struct.unpack("<f", struct.pack("<f", elapsed_ms))[0]

    def _happen(self, stream: Stream) -> None:
        _, self.done_ns = stream.run(0)


def _kernel(duration_ns: int) -> None:
    if DEVICE.capture is not None:
        DEVICE.capture.append(duration_ns)
        return
    _run_kernel(current_stream(), duration_ns)


def _run_kernel(stream: Stream, duration_ns: int) -> None:
    launched_ns = now_ns()
    start_ns, end_ns = stream.run(duration_ns)
    if DEVICE.profile is None:
        return
    correlation = next(DEVICE.numbers)
    for category, begin_ns, finish_ns in (
        ("cuda_runtime", launched_ns, now_ns()),
        ("kernel", start_ns, end_ns),
    ):
        args = {"correlation": correlation, "stream": stream.number}
        DEVICE.profile.append(_trace_event(category, category, begin_ns, finish_ns) | {"args": args})


def _trace_event(category: str, name: str, start_ns: int, end_ns: int) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": start_ns / 1e3, "dur": (end_ns - start_ns) / 1e3}


def _sleep(cycles: int) -> None:
    _kernel(round(cycles / CYCLES_PER_MS * 1e6))


def synchronize(device: Any = None) -> None:
    """Wait for all streams."""
    del device
    streams = [DEFAULT, *itertools.chain(*POOLS.values())]
    while (left_ns := max(stream.free_ns for stream in streams) + SEEN_NS - now_ns()) > 0:
        time.sleep(left_ns / 1e9)


@contextmanager
def stream_context(stream: Stream) -> Any:
    """Make a stream current."""
    before, CURRENT.stream = current_stream(), stream
    try:
        yield
    finally:
        CURRENT.stream = before


class CUDAGraph:
    """A graph: the kernels and external events of its capture."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """Begin a capture."""
        del pool, capture_error_mode
        DEVICE.capture, DEVICE.capture_is_broken = [], False

    def capture_end(self) -> None:
        """End the capture. Raises RuntimeError if a query has broken it."""
        self.items, DEVICE.capture = DEVICE.capture or [], None
        if DEVICE.capture_is_broken:
            raise RuntimeError("capture was invalidated")

    def replay(self) -> None:
        """Queue the items of the graph."""
        stream = current_stream()
        stream.run(LAUNCH_NS)
        for item in self.items:
            if isinstance(item, Event):
                item.replay(stream)
            else:
                _run_kernel(stream, item)


@contextmanager
def graph(captured: CUDAGraph, capture_error_mode: str = "global") -> Any:
    """Capture the work of the block."""
    captured.capture_begin(capture_error_mode=capture_error_mode)
    try:
        yield
    finally:
        captured.capture_end()


class Tensor:
    """A tensor of one element whose operations are kernels."""

    def __init__(self, *, pinned: bool = False) -> None:
        self.visible_ns = 0
        self.pinned = pinned

    def add_(self, value: float) -> Tensor:
        """Queue a small kernel."""
        del value
        _kernel(KERNEL_NS)
        return self

    def zero_(self) -> Tensor:
        """Set a pinned tensor to 0 on the host."""
        self.visible_ns = 0
        return self

    def copy_(self, source: Tensor, *, non_blocking: bool = False) -> Tensor:
        """Queue a copy to the host."""
        del source, non_blocking
        self.visible_ns = current_stream().run(KERNEL_NS)[1]
        return self

    def item(self) -> float:
        """Return what the host sees."""
        return float(0 < self.visible_ns <= now_ns())


def _mm(one: Any, other: Any, out: Any) -> None:
    del one, other, out
    _kernel(PRODUCT_NS)


class Profile:
    """Collects kernels and launches, as torch.profiler does."""

    def __init__(self, activities: Any) -> None:
        del activities
        self.base_ns = time.time_ns() - now_ns()

    def __enter__(self) -> Any:
        DEVICE.profile = self.events = []
        return self

    def __exit__(self, *error: object) -> None:
        DEVICE.profile = None

    def export_chrome_trace(self, path: str) -> None:
        """Write the trace."""
        trace = {"baseTimeNanoseconds": self.base_ns, "traceEvents": self.events}
        Path(path).write_text(json.dumps(trace), encoding="utf-8")


@contextmanager
def record_function(name: str) -> Any:
    """Annotate the block."""
    start_ns = now_ns()
    yield
    if DEVICE.profile is not None:
        DEVICE.profile.append(_trace_event("user_annotation", name, start_ns, now_ns()) | {"args": {}})


def install() -> Any:
    """Put the simulated torch in the place of torch."""
    graphs = ModuleType("torch.cuda.graphs")
    graphs.CUDAGraph = CUDAGraph  # type: ignore[attr-defined]
    cuda = ModuleType("torch.cuda")
    names = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "get_device_name": lambda index=0: f"simulated device {index}",
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "memory_allocated": lambda index=0: 1 + index,
        "is_current_stream_capturing": lambda: DEVICE.capture is not None,
        "Stream": pooled_stream,
        "stream": stream_context,
        "graph": graph,
        "graphs": graphs,
    }
    own = (Event, CUDAGraph, current_stream, synchronize, _sleep)
    for name, value in {**names, **{one.__name__: one for one in own}}.items():
        setattr(cuda, name, value)
    torch = ModuleType("torch")
    torch.cuda = cuda  # type: ignore[attr-defined]
    vars(torch)["_C"] = SimpleNamespace()
    torch.__version__ = "simulated"
    torch.version = SimpleNamespace(cuda="simulated", hip=None)  # type: ignore[attr-defined]
    torch.bfloat16 = "bfloat16"  # type: ignore[attr-defined]
    torch.mm = _mm  # type: ignore[attr-defined]
    torch.randn = torch.ones = lambda *_, **__: Tensor()  # type: ignore[attr-defined]
    torch.zeros = lambda *_, pin_memory=False, **__: Tensor(pinned=pin_memory)  # type: ignore[attr-defined]
    torch.empty_like = lambda _: Tensor()  # type: ignore[attr-defined]
    activities = SimpleNamespace(CPU="cpu", CUDA="cuda")
    torch.profiler = SimpleNamespace(  # type: ignore[attr-defined]
        profile=Profile, ProfilerActivity=activities, record_function=record_function
    )
    sys.modules.update({"torch": torch, "torch.cuda": cuda, "torch.cuda.graphs": graphs})
    return torch
