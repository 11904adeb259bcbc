"""Memory of the device, as the framework's allocator counts it on the host.

It is read by the thread of the training, at the end of a step: the allocator holds its lock while the driver allocates,
and a thread that waits for this lock holds Python's. A thread of the recorder could therefore stop the process while
the driver hangs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from stagescope.record.clock import now_ns
from stagescope.record.devices.marks import Mark
from stagescope.vocabulary.counters import ALLOCATED, PEAK_ALLOCATED, RESERVED

if TYPE_CHECKING:
    from stagescope.record.counters import Place
    from stagescope.record.devices.device_timer import DeviceTimer
    from stagescope.record.recorder import Recorder

INTERVAL_NS = 1_000_000_000


class DeviceMemory:
    """Adds the memory of one device to the counters."""

    def __init__(self, recorder: Recorder, timer: DeviceTimer) -> None:
        self._recorder = recorder
        self._timer = timer
        self._ask = getattr(timer.device, "memory", None)
        self._due_ns = 0

    def sample(self, *, is_last: bool = False) -> None:
        """Read the memory, at most once a second unless `is_last`."""
        now = now_ns()
        if now >= self._due_ns or is_last:
            self._due_ns = now + INTERVAL_NS
            self._add(self._recorder.counters.place(), self._read(), now)

    def end(self, token: Any, kind: int, *place: int) -> None:
        """Record an action, and the memory at its end: at the time at which the device has reached that end."""
        self._timer.end(token, kind, *place)
        values = self._read()
        if not values:
            return
        action = self._recorder.counters.place(*place[:2])
        mark = self._timer.begin()
        if isinstance(mark, Mark) and self._timer.has_capacity:
            self._timer.resolve(partial(self._add, action, values), mark)
        else:
            self._add(action, values, now_ns())

    def _read(self) -> tuple[int, ...]:
        """Return allocated, reserved and peak bytes; nothing if this allocator does not count them."""
        if self._ask is None:
            return ()
        try:
            found: tuple[int, ...] = self._ask()
        except Exception:  # noqa: BLE001  # an allocator that the training has replaced
            self._ask = None
            return ()
        return found

    def _add(self, place: Place, values: tuple[int, ...], time_ns: int) -> None:
        for name, value in zip((ALLOCATED, RESERVED, PEAK_ALLOCATED), values, strict=False):
            self._recorder.counters.put(name, value, place, time_ns)
