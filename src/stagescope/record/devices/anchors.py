"""Takes the anchors of a device: moments that are known on its clock and on the host's.

An anchor is an event on a stream of the recorder's own. The host waits for it, but never longer than a given
patience. Where that stream shares a hardware queue with the training, the event completes only after the work that was
queued before it: with CUDA_DEVICE_MAX_CONNECTIONS=1, with more streams than the device has queues, under MPS, and on
AMD devices, which have four (pytorch/pytorch#188316). The host does not wait for such a late anchor. It is looked at
whenever an action begins or ends, and its bracket extends from the last look at which it had not happened to the first
at which it had. The bracket is then as wide as the distance of two looks, which is stated like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagescope.record.clock import now_ns
from stagescope.record.devices.device_clock import DeviceClock
from stagescope.record.format import DEVICE_ANCHOR

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.devices.device import Device
    from stagescope.record.devices.device_clock import Anchor
    from stagescope.record.devices.marks import Mark, MarkPool
    from stagescope.record.recorder import Recorder

ANCHOR_INTERVAL_NS = 1_000_000_000
STALE_NS = 8_000_000_000
"""An action that begins later than this after the last anchor requests a new one: float32 steps are 0.5 us there."""
ANCHOR_TRIES = 5
WIDE_NS = 50_000
"""A wider bracket is accepted only if there has been no better one for `STALE_NS`, or if it is urgent."""
USEFUL_NS = STALE_NS // 100
"""A late anchor that was not looked at for longer has a bracket that is not even accepted then: another is tried."""
PATIENCE_NS = 200_000
# The first anchor and the last one are indispensable, so the device gets more time for them.
LONG_PATIENCE_NS = 20_000_000
VISIBLE_NS = 100_000
"""An assumption: the host sees an event as completed at most this long after it has happened."""


class Bracket(NamedTuple):
    """A mark that has happened, and the host times before and after it."""

    mark: Mark
    before_ns: int
    after_ns: int

    @property
    def width_ns(self) -> int:
        """The uncertainty of the host time."""
        return self.after_ns - self.before_ns


class Anchors:
    """The anchors of one device. Not thread-safe: the caller holds a lock during each method.

    `late` is a mark that the device had not reached when the host stopped waiting for it, and a host time at which it
    certainly had not. `on_added` is called with each anchor.
    """

    def __init__(self, recorder: Recorder, device: Device, marks: MarkPool) -> None:
        self.clock = DeviceClock(
            lambda start, end: device.elapsed_ms(start.event, end.event), device.resolution_ns
        )
        self.late: tuple[Mark, int] | None = None
        self.on_added: Callable[[Anchor], object] = bool
        self.stale_ns = 0
        self._due_ns = 0
        self._recorder = recorder
        self._device = device
        self._marks = marks

    @property
    def is_due(self) -> bool:
        """Whether the last anchor was taken so long ago that the next one should be."""
        return now_ns() >= self._due_ns

    def take(self, patience_ns: int, *, accept_wide: bool = False) -> None:
        """Add the narrowest of `ANCHOR_TRIES` anchors to the clock and to the recording."""
        best = self._look()
        for _ in range(ANCHOR_TRIES if self.late is None else 0):
            bracket = self._try(patience_ns)
            if bracket is None:
                break
            if best is None or bracket.width_ns < best.width_ns:
                best = bracket
        self._due_ns = self.stale_ns = now_ns() + ANCHOR_INTERVAL_NS
        if best is not None:
            self._add(best, accept_wide=accept_wide)

    def look(self, *, accept_wide: bool = False) -> None:
        """Add the late anchor, if the device has reached it by now."""
        bracket = self._look()
        if bracket is not None and (accept_wide or bracket.width_ns <= USEFUL_NS):
            self._add(bracket, accept_wide=accept_wide)

    def note_look(self, asked_ns: int) -> None:
        """Note that the late anchor was looked at, and had not happened."""
        if self.late is not None:
            mark, before_ns = self.late
            self.late = mark, max(before_ns, asked_ns - VISIBLE_NS)

    def _look(self) -> Bracket | None:
        """Return the late anchor, if the device has reached it by now."""
        if self.late is None:
            return None
        mark, before_ns = self.late
        asked_ns = now_ns()
        if not self._device.is_done(mark.event):
            self.note_look(asked_ns)
            return None
        self.late = None
        return Bracket(mark, before_ns, now_ns())

    def _try(self, patience_ns: int) -> Bracket | None:
        """Return an event with its bracket, or None if it takes too long; it is then late."""
        mark = self._marks.take(None)
        before_ns = now_ns()
        self._device.record_on_side_stream(mark.event)
        while not self._device.is_done(mark.event):
            if now_ns() - before_ns > patience_ns:
                self.late = mark, before_ns
                return None
        return Bracket(mark, before_ns, now_ns())

    def _add(self, bracket: Bracket, *, accept_wide: bool) -> None:
        """Add an anchor unless it is too wide to be useful now."""
        now, latest = now_ns(), self.clock.latest
        is_recent = latest is not None and now - latest.host_ns < STALE_NS
        if bracket.width_ns > WIDE_NS and is_recent and not accept_wide:
            return
        error_ns = self.clock.add(*bracket)
        anchor = self.clock.latest
        if error_ns is not None and anchor is not None:
            self._due_ns, self.stale_ns = now + ANCHOR_INTERVAL_NS, now + STALE_NS
            self.on_added(anchor)
            self._recorder.add_device_anchor(
                DEVICE_ANCHOR.pack(anchor.device_ns, anchor.host_ns, anchor.width_ns, error_ns)
            )
