"""A device with planted clock, queue and faults, so that recorded times can be compared with the truth.

Times are whole nanoseconds of the host's clock until the device reports them: then they include its offset, drift and
resolution, and the distance of two events is rounded to float32 milliseconds, as in CUDA.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, replace
from types import SimpleNamespace

from stagescope.record.devices import anchors, device_timer
from stagescope.record.devices.device import OtherDeviceError
from stagescope.record.format import DEVICE_ANCHOR


class SimulatedTime:
    """A host clock that advances by a random amount whenever it is read."""

    def __init__(self, seed=0, start_ns=10**15):
        self.random = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self.ns = start_ns

    def __call__(self):
        self.ns += self.random.randint(20, 2_000)
        return self.ns

    def sleep(self, duration_ns):
        self.ns += duration_ns


@dataclass
class FakeEvent:
    """`done_ns` is the true time of the event on the host's clock, None before it is recorded.

    An `external` event, which a graph records, reports its `earlier` occurrence until the device has reached the next.
    """

    done_ns: int | None = None
    seen_ns: int = 0
    external: bool = False
    earlier: FakeEvent | None = None

    def at(self, now_ns):
        """The occurrence that the driver reports."""
        return self.earlier if self.earlier and now_ns < self.done_ns else self


class FakeDevice:
    """A device with one compute stream; `work` queues work on it, `last_ns` is the time of its last event.

    With `shared_queue`, the recorder's own stream also waits for the work that is queued. `side_ns` is the true time of
    the last event on it.
    """

    model = "Fake 1"

    def __init__(self, now, *, name="fake:0", **planted):
        self.now = now
        self.name = name
        self.random = random.Random(planted.get("seed", 0))  # noqa: S311 - same
        self.offset_ns = planted.get("offset_ns", 0)
        self.drift_ppm = planted.get("drift_ppm", 0.0)
        self.tick_ns = self.resolution_ns = planted.get("tick_ns", 500)
        self.latency_ns = planted.get("latency_ns", 4_000)
        self.late_ns = planted.get("late_ns", 3_000)
        self.has_graph_events = planted.get("has_graph_events", True)
        self.shared_queue = planted.get("shared_queue", False)
        self.free_ns = 0
        self.last_ns = self.side_ns = 0
        self.capturing = False
        self.hung = False
        self.error = None
        self.is_elsewhere = False
        self.captured = []
        self.records = 0
        self.queries = 0
        self.events_made = 0
        self.queries_while_capturing = 0

    def work(self, duration_ns):
        """Queue work; return when it will begin and end."""
        begin_ns = max(self.free_ns, self.now())
        self.free_ns = begin_ns + duration_ns
        return begin_ns, self.free_ns

    def new_event(self):
        self.events_made += 1
        return FakeEvent()

    def new_graph_event(self):
        return FakeEvent(external=True) if self.has_graph_events else None

    def is_capturing(self):
        return self.capturing

    def record(self, event):
        self._raise_planted()
        if self.is_elsewhere:
            raise OtherDeviceError("the action runs on fake:1")
        self.records += 1
        if not self.capturing:
            self._happen(event, max(self.free_ns, self.now()))
        else:
            assert event.external
            self.captured.append(event)

    def record_on_side_stream(self, event):
        self._raise_planted()
        reached_ns = max(self.now(), self.free_ns if self.shared_queue else 0)
        self._happen(event, reached_ns + self.random.randint(0, self.latency_ns))
        self.side_ns = event.done_ns

    def replay(self, events):
        """Queue the work of a graph, whose events are a microsecond apart."""
        for event in events:
            if event.done_ns is not None:
                event.earlier = replace(event.at(self.now()), earlier=None)
            self._happen(event, self.work(1_000)[1])

    def is_done(self, event):
        self._raise_planted()
        self.queries += 1
        self.queries_while_capturing += self.capturing
        now_ns = self.now()
        return not self.hung and event.done_ns is not None and event.at(now_ns).seen_ns <= now_ns

    def elapsed_ms(self, start, end):
        self._raise_planted()
        now_ns = self.now()
        start, end = start.at(now_ns), end.at(now_ns)
        if start.seen_ns > now_ns or end.seen_ns > now_ns:
            raise RuntimeError("not ready")
        return as_float32((self.device_ns(end.done_ns) - self.device_ns(start.done_ns)) / 1e6)

    def device_ns(self, host_ns):
        """The device's own clock, which is constant between its ticks."""
        drifted_ns = host_ns + round((host_ns - 10**15) * self.drift_ppm / 1e6)
        return (drifted_ns + self.offset_ns) // self.tick_ns * self.tick_ns

    def _happen(self, event, host_ns):
        event.done_ns = self.last_ns = host_ns
        event.seen_ns = host_ns + self.random.randint(0, self.late_ns)

    def _raise_planted(self):
        if self.error is not None:
            raise self.error


def as_float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


class Notebook:
    """Replaces the recorder: keeps the spans, the anchors, the drops and the warnings."""

    def __init__(self):
        self.step = 0
        self.spans = []
        self.anchors = []
        self.dropped = 0
        self.warnings = []
        self.guards = {}
        self.coverage = SimpleNamespace(installed=lambda *_: None)

    def emit(self, kind, start_ns, end_ns, **fields):
        self.spans.append({"kind": kind, "start_ns": start_ns, "end_ns": end_ns, **fields})

    def add_device_anchor(self, record):
        self.anchors.append(DEVICE_ANCHOR.unpack(record))

    def drop(self, count):
        self.dropped += count

    def warn(self, message):
        self.warnings.append(message)

    def error_ns(self, host_ns):
        """The error stated for the interval of a moment; at a shared anchor, the larger of two."""
        errors = []
        for (_, begin_ns, _, _), (_, end_ns, _, error_ns) in zip(
            self.anchors, self.anchors[1:], strict=False
        ):
            if begin_ns - 2_000 <= host_ns <= end_ns + 2_000:
                errors.append(error_ns)
        return max(errors)


def use(clock, monkeypatch):
    """Let the device timer run in simulated time."""
    monkeypatch.setattr(device_timer, "now_ns", clock)
    monkeypatch.setattr(anchors, "now_ns", clock)
    monkeypatch.setattr(device_timer.time, "monotonic", lambda: clock() / 1e9)
    monkeypatch.setattr(device_timer.time, "sleep", lambda seconds: clock.sleep(round(seconds * 1e9)))
