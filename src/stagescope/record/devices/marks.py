"""Events on a device, reused from a pool.

An event costs the driver a few microseconds to create and less than one to record again. It returns to its pool when
its mark is no longer referenced, so it is never recorded again before it has been read.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stagescope.record.devices.device import Device
    from stagescope.record.devices.device_clock import Anchor


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


class MarkPool:
    """Makes the marks of one device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: deque[Any] = deque()

    def take(self, anchor: Anchor | None) -> Mark:
        """Return a mark that has not been recorded yet."""
        free = self._free
        try:
            event = free.pop()
        except IndexError:
            event = self._device.new_event()
        return Mark(event, anchor, free)
