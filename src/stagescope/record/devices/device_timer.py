"""Times actions with pairs of events on their stream, without ever making that stream or the host wait.

An event costs the host a few microseconds and the device nothing measurable. Its time is read later, at the end of a
step and only if it has happened by then. Events are pooled: an event returns to the pool when its mark is no longer
referenced, so it is never reused before it has been read.

Anchors use a stream of the recorder's own. They cost the host a few round trips to the device, and are abandoned
after `PATIENCE_NS` if the device is too busy. No event is recorded on the streams of NCCL: with
CUDA_DEVICE_MAX_CONNECTIONS=1 that would serialize transfers that otherwise overlap (volcengine/veScale#46).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from stagescope.record.clock import now_ns
from stagescope.record.devices.cuda_graphs import CapturedActions, GraphMark
from stagescope.record.devices.device_clock import Anchor, DeviceClock, Moment, host_time_ns
from stagescope.record.format import DEVICE_ANCHOR, NONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.devices.device import Device
    from stagescope.record.recorder import Recorder

ANCHOR_INTERVAL_NS = 1_000_000_000
STALE_NS = 8_000_000_000
"""An action that begins later than this after the last anchor requests a new one: float32 steps are 0.5 us there."""
ANCHOR_TRIES = 5
WIDE_NS = 50_000
"""A wider bracket is accepted only if there has been no better one for `STALE_NS`."""
PATIENCE_NS = 200_000
# The first anchor and the last one are indispensable, so the device gets more time for them.
LONG_PATIENCE_NS = 20_000_000
HARVEST_EVERY = 256
MAX_WAITING = 4096
"""Limit of actions that wait for their events or for the next anchor; they take about 4 MiB."""
FINISH_TIMEOUT_S = 1.0
MAX_FAILURES = 16


UNMARKED = object()
"""A moment that could not be marked: the action that begins or ends there is dropped and counted."""


class Mark:
    """An event on the device, and the last anchor before it. Returns the event to its pool when it is deleted."""

    __slots__ = ("_pool", "anchor", "event")

    def __init__(self, event: Any, anchor: Anchor | None, pool: deque[Any]) -> None:
        self.event = event
        self.anchor = anchor
        self._pool = pool

    def __del__(self) -> None:
        self._pool.append(self.event)


class DeviceTimer:
    """Times the actions of this process on one device. Never raises; actions that cannot be timed are counted."""

    def __init__(self, recorder: Recorder, device: Device) -> None:
        self.name = device.name
        self.model = device.model
        self.graphs = CapturedActions(device)
        self._recorder = recorder
        self.device = device
        self._clock = DeviceClock(
            lambda start, end: device.elapsed_ms(start.event, end.event), device.resolution_ns
        )
        self._free: deque[Any] = deque()
        self._pending: deque[tuple[Callable[..., None], tuple[Mark, ...]]] = deque()
        self._located: deque[tuple[Callable[..., None], list[Moment]]] = deque()
        self._harvest_at = HARVEST_EVERY
        self._anchor_due_ns = self._stale_ns = 0
        self._failures = 0
        self._at_work = threading.Lock()

    def begin(self) -> object:
        """Return the current moment of the current stream: a Mark, during a capture a GraphMark, or UNMARKED."""
        if self._failures >= MAX_FAILURES:
            return UNMARKED
        try:
            if self.device.is_capturing():
                return self.graphs.mark() or UNMARKED
            if now_ns() >= self._stale_ns:
                self._refresh()
            if self._clock.latest is None:
                return UNMARKED
            mark = Mark(self._take_event(), self._clock.latest, self._free)
            self.device.record(mark.event)
        except Exception as error:  # noqa: BLE001  # driver errors must not reach the training through the recorder
            self._fail(error)
            return UNMARKED
        self._failures = 0
        return mark

    def end(  # noqa: PLR0917  # the fields of a record, as in Recorder.emit
        self,
        token: Any,
        kind: int,
        stage: int = NONE,
        microbatch: int = NONE,
        chunk: int = NONE,
        name: int = 0,
        pair: int = NONE,
    ) -> None:
        """Record the action from `token` until now, once the device has completed it."""
        recorder = self._recorder
        emit = partial(
            recorder.emit, kind, stage=stage, microbatch=microbatch, chunk=chunk, name=name, pair=pair
        )
        end = self.begin()
        if isinstance(token, GraphMark) and isinstance(end, GraphMark):
            self.graphs.add(emit, token, end)
        else:
            self.resolve(partial(emit, step=recorder.step), token, end)

    def resolve(self, function: Callable[..., None], *marks: Any) -> None:
        """Call `function` with the host times of these marks once they are known."""
        if not all(isinstance(mark, Mark) for mark in marks) or self._waiting >= MAX_WAITING:
            self._recorder.drop(1)
            return
        self._pending.append((function, marks))
        if len(self._pending) >= self._harvest_at:
            self.harvest()

    def harvest(self) -> None:
        """Record the actions that the device has completed, and take an anchor if one is due. Does not wait."""
        if not self._at_work.acquire(
            blocking=False
        ):  # another thread is harvesting, or a signal handler has interrupted a harvest
            return
        try:
            if not self._is_capturing():
                self._read_graphs()
                self._collect(every=False)
                if self._anchor_is_due():
                    self._take_anchor(PATIENCE_NS)
                self._record()
        except Exception as error:  # noqa: BLE001  # as in begin
            self._fail(error)
        finally:
            self._harvest_at = len(self._pending) + HARVEST_EVERY
            self._at_work.release()

    def before_replay(self, graph: Any) -> None:
        """Read the times of a captured graph's last replay before the next one overwrites them."""
        self.harvest()
        self.graphs.count_lost(graph)

    def after_replay(self, graph: Any) -> None:
        """Expect new times of a captured graph, which has just been launched."""
        self.graphs.launch(graph, self._recorder.step, self._clock.latest)

    def finish(self) -> None:
        """Record what the device completes within `FINISH_TIMEOUT_S`, and count the rest as dropped."""
        if not self._at_work.acquire(blocking=False):
            return
        try:
            self._finish()
        except Exception as error:  # noqa: BLE001  # as in begin
            self._fail(error)
        finally:
            self._recorder.drop(self._waiting)
            self._pending.clear()
            self._located.clear()
            self._at_work.release()

    @property
    def _waiting(self) -> int:
        return len(self._pending) + len(self._located)

    def _finish(self) -> None:
        give_up_s = time.monotonic() + FINISH_TIMEOUT_S
        if self._is_capturing():
            return
        self._read_graphs()
        self._collect(every=True)
        while self._pending and time.monotonic() < give_up_s:
            time.sleep(0.001)
            self._collect(every=True)
        if self._located:
            self._take_anchor(LONG_PATIENCE_NS, accept_wide=True)
        self._record()

    def _is_capturing(self) -> bool:
        """Return whether any stream is being captured: querying an event would invalidate the capture.

        CUDA forbids cudaEventQuery in all threads during a capture in the default mode (pytorch/pytorch#104487).
        """
        return self.graphs.is_capturing or self.device.is_capturing()

    def _read_graphs(self) -> None:
        for function, start, end, anchor in self.graphs.done():
            moments = [self._clock.locate(mark, anchor) for mark in (start, end)]
            self._located.append((function, moments))
        self._recorder.drop(self.graphs.take_lost())

    def _collect(self, *, every: bool) -> None:
        """Locate the marks that have happened.

        Unless `every` is set, stops at the first action that has not: actions on a single stream end in order.
        """
        for _ in range(len(self._pending)):
            function, marks = self._pending[0]
            if not all(self.device.is_done(mark.event) for mark in reversed(marks)):
                if not every:
                    return
                self._pending.rotate(-1)
                continue
            self._pending.popleft()
            try:
                moments = [self._clock.locate(mark, mark.anchor) for mark in marks if mark.anchor]
            except Exception as error:  # noqa: BLE001  # as in begin
                self._fail(error)
                self._recorder.drop(1)
            else:
                self._located.append((function, moments))

    def _record(self) -> None:
        """Record the actions whose moments are followed by an anchor."""
        while self._located:
            function, moments = self._located[0]
            times_ns = [host_time_ns(moment) for moment in moments]
            if None in times_ns:
                return
            self._located.popleft()
            function(*times_ns)

    def _refresh(self) -> None:
        """Take an anchor before an action that would otherwise be measured from an outdated one."""
        if self._at_work.acquire(blocking=False):
            try:
                if not self._is_capturing():
                    self._take_anchor(
                        PATIENCE_NS if self._clock.latest else LONG_PATIENCE_NS, accept_wide=True
                    )
            finally:
                self._at_work.release()

    def _anchor_is_due(self) -> bool:
        return bool(self._located) and (
            now_ns() >= self._anchor_due_ns or len(self._located) >= MAX_WAITING // 8
        )

    def _take_anchor(self, patience_ns: int, *, accept_wide: bool = False) -> None:
        """Add the narrowest of `ANCHOR_TRIES` anchors to the clock and to the recording."""
        best = None
        for _ in range(ANCHOR_TRIES):
            bracket = self._try_anchor(patience_ns)
            if bracket is None:
                break
            if best is None or bracket[2] - bracket[1] < best[2] - best[1]:
                best = bracket
        now = now_ns()
        self._anchor_due_ns = self._stale_ns = now + ANCHOR_INTERVAL_NS
        latest = self._clock.latest
        if best is None:
            return
        if best[2] - best[1] > WIDE_NS and latest and not accept_wide and now - latest.host_ns < STALE_NS:
            return
        error_ns = self._clock.add(*best)
        anchor = self._clock.latest
        if error_ns is not None and anchor is not None:
            self._stale_ns = now + STALE_NS
            self._recorder.add_device_anchor(
                DEVICE_ANCHOR.pack(anchor.device_ns, anchor.host_ns, anchor.width_ns, error_ns)
            )

    def _try_anchor(self, patience_ns: int) -> tuple[Mark, int, int] | None:
        """Return an event and the host times that enclose it, None if it takes too long."""
        mark = Mark(self._take_event(), None, self._free)
        before_ns = now_ns()
        self.device.record_on_side_stream(mark.event)
        while not self.device.is_done(mark.event):
            if now_ns() - before_ns > patience_ns:
                return None
        return mark, before_ns, now_ns()

    def _take_event(self) -> Any:
        try:
            return self._free.pop()
        except IndexError:
            return self.device.new_event()

    def _fail(self, error: Exception) -> None:
        self._failures += 1
        self._recorder.warn(
            f"actions on {self.name} could not be timed; they are dropped and counted: {error}"
        )
