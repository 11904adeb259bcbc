"""Times actions by pairs of events on the stream that they run on, without ever making that stream or the host wait.

An event costs the host some microseconds and the device nothing that is worth measuring. Where it stands in time is
asked for later, at the end of a step, of those events that have happened by then; none is waited for. Events are
pooled: one goes back as soon as nobody refers to its mark any more, so none is used again before it was read.

Anchors come from a stream of the recorder's own. They take a host's time of a few round trips to the device, and
their wait is given up after `PATIENCE_NS` where the device is too busy even for that. No event goes to the streams of
NCCL: with CUDA_DEVICE_MAX_CONNECTIONS=1 that would put transfers in a row which else overlap (volcengine/veScale#46).
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
"""A action that begins later than this after the last anchor asks for a new one: float32 steps are 0.5 us there."""
ANCHOR_TRIES = 5
WIDE_NS = 50_000
"""A bracket wider than this is only taken when there is no better one for too long."""
PATIENCE_NS = 200_000
LONG_PATIENCE_NS = 20_000_000
HARVEST_EVERY = 256
MAX_WAITING = 4096
"""Actions whose events have not happened, or whose moments no anchor has followed: about 4 MiB."""
FINISH_TIMEOUT_S = 1.0
MAX_FAILURES = 16


UNMARKED = object()
"""A moment that could not be marked: the action that begins or ends there is dropped and counted."""


class Mark:
    """An event on the device, and the last anchor before it; returns the event to its pool at its own end."""

    __slots__ = ("_pool", "anchor", "event")

    def __init__(self, event: Any, anchor: Anchor | None, pool: deque[Any]) -> None:
        self.event = event
        self.anchor = anchor
        self._pool = pool

    def __del__(self) -> None:
        self._pool.append(self.event)


class DeviceTimer:
    """Times the actions of this process on one device. Methods never raise; what cannot be timed is counted."""

    def __init__(self, recorder: Recorder, device: Device) -> None:
        self.name = device.name
        self.model = device.model
        self.graphs = CapturedActions(device)
        self._recorder = recorder
        self._device = device
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
        """Return this moment of the current stream: a Mark, a GraphMark in a capture, or UNMARKED."""
        if self._failures >= MAX_FAILURES:
            return UNMARKED
        try:
            if self._device.is_capturing():
                return self.graphs.mark() or UNMARKED
            if now_ns() >= self._stale_ns:
                self._refresh()
            if self._clock.latest is None:
                return UNMARKED
            mark = Mark(self._take_event(), self._clock.latest, self._free)
            self._device.record(mark.event)
        except Exception as error:  # noqa: BLE001  # whatever a driver says, it is not the training's to hear from us
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
        """Record the action that began at `token` and ends here, when the device has come so far."""
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
        """Record the actions that the device has done; takes an anchor where one is due. Does not wait."""
        if not self._at_work.acquire(
            blocking=False
        ):  # another thread is at it, or we have interrupted ourselves
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
        """Read what the last replay of a captured graph has left, before the next one overwrites it."""
        self.harvest()
        self.graphs.lose(graph)

    def after_replay(self, graph: Any) -> None:
        """Expect the actions of a captured graph again, which has just been launched."""
        self.graphs.launch(graph, self._recorder.step, self._clock.latest)

    def finish(self) -> None:
        """Record what the device does within a moment, and count the rest as dropped."""
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
        """Return whether any stream is being captured: asking after an event would break that.

        CUDA forbids cudaEventQuery to every thread while one captures in the default mode (pytorch/pytorch#104487).
        """
        return self.graphs.is_capturing or self._device.is_capturing()

    def _read_graphs(self) -> None:
        for function, start, end, anchor in self.graphs.done():
            moments = [self._clock.locate(mark, anchor) for mark in (start, end)]
            self._located.append((function, moments))
        self._recorder.drop(self.graphs.take_lost())

    def _collect(self, *, every: bool) -> None:
        """Find out when the marks were that have happened; actions end in order unless there are several streams."""
        for _ in range(len(self._pending)):
            function, marks = self._pending[0]
            if not all(self._device.is_done(mark.event) for mark in reversed(marks)):
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
        """Record the actions whose moments lie between two anchors."""
        while self._located:
            function, moments = self._located[0]
            times_ns = [host_time_ns(moment) for moment in moments]
            if None in times_ns:
                return
            self._located.popleft()
            function(*times_ns)

    def _refresh(self) -> None:
        """Take an anchor before a action that would else be measured from an old one."""
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
        """Add the narrowest of a few anchors to the clock and to the recording."""
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
        """Return an event and the host times that it lies between, None where it takes too long."""
        mark = Mark(self._take_event(), None, self._free)
        before_ns = now_ns()
        self._device.record_aside(mark.event)
        while not self._device.is_done(mark.event):
            if now_ns() - before_ns > patience_ns:
                return None
        return mark, before_ns, now_ns()

    def _take_event(self) -> Any:
        try:
            return self._free.pop()
        except IndexError:
            return self._device.new_event()

    def _fail(self, error: Exception) -> None:
        self._failures += 1
        self._recorder.warn(
            f"actions on {self.name} could not be timed; they are dropped and counted: {error}"
        )
