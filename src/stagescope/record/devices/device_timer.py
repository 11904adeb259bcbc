"""Times actions with pairs of events on their stream, without ever making that stream or the host wait.

An event costs the host a few microseconds and its stream about two. Its time is read later, at the end of a
step and only if it has happened by then. No event is recorded on the streams of NCCL: with
CUDA_DEVICE_MAX_CONNECTIONS=1 that would serialize transfers that otherwise overlap (volcengine/veScale#46).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from stagescope.record import compiled
from stagescope.record.clock import now_ns
from stagescope.record.devices.anchors import LONG_PATIENCE_NS, PATIENCE_NS, Anchors
from stagescope.record.devices.cuda_graphs import CapturedActions, Graph
from stagescope.record.devices.device import OtherDeviceError
from stagescope.record.devices.device_clock import Moment, host_time_ns
from stagescope.record.devices.marks import UNMARKED, Mark, MarkPool
from stagescope.record.format import NONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.compiled import DeviceRecords
    from stagescope.record.devices.device import Device
    from stagescope.record.devices.device_clock import Anchor
    from stagescope.record.recorder import Recorder

HARVEST_EVERY = 256
MAX_WAITING = 4096
"""Limit of actions that wait for their events or for the next anchor; they take about 4 MiB."""
URGENT_WAITING = MAX_WAITING // 2
"""With so many actions waiting, an anchor with a wide bracket is better than none."""
FINISH_TIMEOUT_S = 1.0
MAX_FAILURES = 16
LEAST_EVENTS, MORE_EVENTS = 64, 128
"""With fewer events for marks of wrappers in C, so many more are made."""
PAUSE_NS = 1_000_000_000
"""How long the driver is left alone after `MAX_FAILURES` errors in a row."""
CAPTURE_WAIT_S = 0.1
"""How long the begin of a capture waits for another thread that is querying events."""


class DeviceTimer:
    """Times the actions of this process on one device. Never raises; actions that cannot be timed are counted.

    `records` are those of actions that wrappers in C have timed; None if all actions are timed here.
    """

    def __init__(self, recorder: Recorder, device: Device) -> None:
        self.name = device.name
        self.model = device.model
        self._recorder = recorder
        self.device = device
        self._marks = MarkPool(device)
        self._anchors = Anchors(recorder, device, self._marks)
        self._clock = self._anchors.clock
        self.graphs = CapturedActions(device)
        self._pending: deque[tuple[Callable[..., None], tuple[Mark, ...]]] = deque()
        self._located: deque[tuple[Callable[..., None], list[Moment]]] = deque()
        self._harvest_at = HARVEST_EVERY
        self._failures = 0
        self._resume_ns = 0
        self._at_work = threading.Lock()
        self.records = compiled.device_records(recorder, device)
        self._completed = 0
        self._anchors.on_added = self._added

    def begin(self) -> object:
        """Return the current moment of the current stream: a Mark, during a capture a GraphMark, or UNMARKED."""
        if self._failures >= MAX_FAILURES and now_ns() < self._resume_ns:
            return UNMARKED
        try:
            if self.device.is_capturing():
                return self.graphs.mark() or UNMARKED
            if self._anchors.late is not None or now_ns() >= self._anchors.stale_ns:
                self._refresh()
            latest = self._clock.latest
            if latest is None:
                return UNMARKED
            mark = self._marks.take(latest)
            self.device.record(mark.event)
        except OtherDeviceError as error:
            self._warn(error)
            return UNMARKED
        except Exception as error:  # noqa: BLE001  # driver errors must not reach the training through the recorder
            self._fail(error)
            return UNMARKED
        self._failures = 0
        if self.records is not None:
            self._let_mark(self.records)
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
        """Record the action from `token` until now, once the device has completed it.

        Does what `resolve` does, without a call.
        """
        recorder, pending = self._recorder, self._pending
        end = self.begin()
        if self.graphs.is_capturing and not isinstance(token, Mark) and not isinstance(end, Mark):
            emit = partial(
                recorder.emit, kind, stage=stage, microbatch=microbatch, chunk=chunk, name=name, pair=pair
            )
            self.graphs.add(emit, token, end)
        elif not isinstance(token, Mark) or not isinstance(end, Mark) or self._waiting >= MAX_WAITING:
            recorder.drop(1)
        else:
            emit = partial(
                recorder.emit, kind, stage=stage, microbatch=microbatch, chunk=chunk, name=name, pair=pair,
                step=recorder.step,
            )  # fmt: skip
            pending.append((emit, (token, end)))
            if self._unread >= self._harvest_at:
                self.harvest()

    def resolve(self, function: Callable[..., None], *marks: Any) -> None:
        """Call `function` with the host times of these marks once they are known."""
        if not all(isinstance(mark, Mark) for mark in marks) or self._waiting >= MAX_WAITING:
            self._recorder.drop(1)
            return
        self._pending.append((function, marks))
        if self._unread >= self._harvest_at:
            self.harvest()

    @property
    def is_waiting(self) -> bool:
        """Whether there are actions whose times are not known yet."""
        return bool(self._waiting or self.graphs.unread)

    @property
    def has_capacity(self) -> bool:
        """Whether marks that are not of actions can wait without displacing actions."""
        return self._waiting < MAX_WAITING // 2

    def harvest(self) -> None:
        """Record the actions that the device has completed, and take an anchor if one is due. Does not wait."""
        if not self._at_work.acquire(
            blocking=False
        ):  # another thread is harvesting, or a signal handler has interrupted a harvest
            return
        try:
            if not self._is_capturing():
                self._read_graphs(list(self.graphs.unread))
                self._collect(every=False)
                if self._anchor_is_due():
                    self._anchors.take(PATIENCE_NS, accept_wide=self._is_urgent)
                self._record()
        except Exception as error:  # noqa: BLE001  # as in begin
            self._fail(error)
        finally:
            self._harvest_at = self._unread + HARVEST_EVERY
            if self.records is not None:
                self._let_mark(self.records)
            self._at_work.release()

    def begin_capture(self, graph: Any) -> None:
        """Stop querying events in all threads until the capture of `graph` ends."""
        self.harvest()
        self.graphs.begin_capture(graph)
        if self.records is not None:
            self.records.ready_until_ns = 0
        if self._at_work.acquire(timeout=CAPTURE_WAIT_S):
            self._at_work.release()

    def before_replay(self, graph: Graph) -> Anchor | None:
        """Read the times of a captured graph's last replay before the next one overwrites them.

        Returns the last anchor before that next replay.
        """
        if graph.replay is None:
            return self._clock.latest
        if self._at_work.acquire(blocking=False):
            try:
                self._read_graphs([] if self._is_capturing() else [graph])
            except Exception as error:  # noqa: BLE001  # as in begin
                self._fail(error)
            finally:
                self._at_work.release()
        self._recorder.drop(self.graphs.discard(graph))
        return self._clock.latest

    def after_replay(self, graph: Graph, anchor: Anchor | None) -> None:
        """Expect new times of a captured graph, which has just been launched on the current stream after `anchor`."""
        self._recorder.drop(graph.unmarked)
        if anchor is None:
            self._recorder.drop(len(graph.actions))
            return
        try:
            self.graphs.launch(graph, self._recorder.step, self._mark(anchor))
        except Exception as error:  # noqa: BLE001  # as in begin
            self._fail(error)
            self._recorder.drop(len(graph.actions))

    def finish(self) -> None:
        """Record what the device completes within `FINISH_TIMEOUT_S`, and count the rest as dropped."""
        if not self._at_work.acquire(blocking=False):
            return
        try:
            self._finish()
        except Exception as error:  # noqa: BLE001  # as in begin
            self._fail(error)
        finally:
            unread = sum(map(self.graphs.discard, list(self.graphs.unread)))
            cleared = self.records.clear() if self.records is not None else 0
            self._recorder.drop(len(self._pending) + len(self._located) + unread + cleared)
            self._pending.clear()
            self._located.clear()
            self._at_work.release()

    @property
    def _waiting(self) -> int:
        return len(self._pending) + len(self._located) + (0 if self.records is None else len(self.records))

    @property
    def _unread(self) -> int:
        """How many wait for the device."""
        return self._waiting - len(self._located) - self._completed

    @property
    def _is_urgent(self) -> bool:
        return self._waiting >= URGENT_WAITING

    def _mark(self, anchor: Anchor) -> Mark:
        mark = self._marks.take(anchor)
        self.device.record(mark.event)
        return mark

    def _finish(self) -> None:
        give_up_s = time.monotonic() + FINISH_TIMEOUT_S
        while self._unread or self.graphs.unread:
            if not self._is_capturing():
                self._read_graphs(list(self.graphs.unread))
                self._collect(every=True)
            if time.monotonic() >= give_up_s:
                break
            time.sleep(0.001)
        while self._located or self._completed:
            if not self._is_capturing():
                self._anchors.take(LONG_PATIENCE_NS, accept_wide=True)
                self._record()
            if time.monotonic() >= give_up_s:
                break
            time.sleep(0.001)

    def _is_capturing(self) -> bool:
        """Return whether any stream is being captured: querying an event would invalidate the capture.

        CUDA forbids cudaEventQuery in all threads during a capture in the default mode (pytorch/pytorch#104487).
        """
        return self.graphs.is_capturing or self.device.is_capturing()

    def _read_graphs(self, graphs: list[Graph]) -> None:
        """Locate the actions of those `graphs` whose last replay has completed."""
        for graph in graphs:
            replay = graph.replay
            if self.graphs.is_capturing or replay is None or not self.device.is_done(replay.mark.event):
                continue
            self.graphs.discard(graph)
            for action in graph.actions:
                self._locate(replay.emitter_of(action), (action.start, action.end), replay.mark.anchor)

    def _collect(self, *, every: bool) -> None:
        """Locate the marks that have happened.

        Unless `every` is set, stops at the first action that has not: actions on a single stream end in order.
        """
        self._collect_records(every=every)
        for _ in range(len(self._pending)):
            if self.graphs.is_capturing:  # another thread has begun a capture
                return
            function, marks = self._pending[0]
            if not all(self.device.is_done(mark.event) for mark in reversed(marks)):
                if not every:
                    return
                self._pending.rotate(-1)
                continue
            self._pending.popleft()
            self._locate(function, marks)

    def _collect_records(self, *, every: bool) -> None:
        """Record the actions of wrappers in C that the device has completed, except for those after the last anchor."""
        if self.records is None or self.graphs.is_capturing:
            return
        try:
            self._completed = self.records.collect(every)
        except Exception as error:  # noqa: BLE001  # as in begin
            self._completed = 0
            self._fail(error)
        self._recorder.drop(self.records.take_dropped())

    def _locate(
        self, function: Callable[..., None], marks: tuple[Any, ...], anchor: Anchor | None = None
    ) -> None:
        """Locate completed marks between the anchors, from `anchor` on or from the one of each mark."""
        try:
            moments = [self._clock.locate(mark, anchor or mark.anchor) for mark in marks]
        except Exception as error:  # noqa: BLE001  # as in begin
            self._fail(error)
            self._recorder.drop(1)
        else:
            self._located.append((function, moments))

    def _record(self) -> None:
        """Record the actions whose moments are followed by an anchor."""
        if self._completed:
            self._collect_records(every=False)
        while self._located:
            function, moments = self._located[0]
            times_ns = [host_time_ns(moment) for moment in moments]
            if None in times_ns:
                return
            self._located.popleft()
            function(*times_ns)

    def _refresh(self) -> None:
        """Look at a late anchor, and take one before an action that would be measured from an outdated one."""
        if self._at_work.acquire(blocking=False):
            try:
                if self._is_capturing():
                    return
                anchors, has_none = self._anchors, self._clock.latest is None
                if self.records is not None:
                    anchors.note_look(self.records.looked_ns)
                if now_ns() >= anchors.stale_ns:
                    anchors.take(LONG_PATIENCE_NS if has_none else PATIENCE_NS, accept_wide=True)
                else:
                    anchors.look(accept_wide=self._is_urgent or has_none)
            finally:
                self._at_work.release()

    def _anchor_is_due(self) -> bool:
        located = len(self._located) + self._completed
        return bool(located) and (self._anchors.is_due or located >= MAX_WAITING // 8)

    def _added(self, anchor: Anchor) -> None:
        if self.records is not None:
            self.records.add_anchor(anchor, anchor.mark.event, anchor.device_ns, anchor.host_ns)

    def _let_mark(self, records: DeviceRecords) -> None:
        """Let wrappers in C mark actions until something has to be done here."""
        late = self._anchors.late
        records.late = None if late is None else late[0].event
        records.most = min(len(records) + max(0, self._harvest_at - self._unread), MAX_WAITING)
        while records.free < LEAST_EVENTS:
            for _ in range(MORE_EVENTS):
                records.append(self.device.new_event())
        is_ready = self._clock.latest is not None and not self.graphs.is_capturing
        records.ready_until_ns = self._anchors.stale_ns if is_ready else 0

    def _fail(self, error: Exception) -> None:
        self._failures += 1
        if self._failures >= MAX_FAILURES:
            self._resume_ns = now_ns() + PAUSE_NS
        self._warn(error)

    def _warn(self, error: Exception) -> None:
        self._recorder.warn(
            f"actions on {self.name} could not be timed; they are dropped and counted: {error}"
        )
