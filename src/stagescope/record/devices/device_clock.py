"""From a device's clock to the host's: anchors, and straight lines between them.

An anchor is an event whose host time is known to lie in a bracket: it cannot have happened before it was recorded,
nor after it was seen done. A device only tells the time between two events, in milliseconds as float32, whose step
grows with the distance (0.06 us at one second, 62 us at ten minutes, 250 us at an hour). So each moment is measured
from the last anchor before it, and lies on the line from that anchor to the next one. There is no extrapolation: a
moment that no anchor has followed yet has to wait for one.

The error that is stated for a line holds if the two clocks keep their rates between its anchors: half of the wider
bracket, and the rounding of the two distances.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

FLOAT32_STEP = 2.0**29
"""Steps of a float64 in one of a float32, whose fraction is 29 bits shorter."""
NS_PER_MS = 1_000_000


class Anchor:
    """One moment on both clocks, and the anchor after it once there is one."""

    __slots__ = ("device_ns", "host_ns", "mark", "next", "width_ns")

    def __init__(self, mark: Any, device_ns: int, host_ns: int, width_ns: int) -> None:
        self.mark = mark
        self.device_ns = device_ns
        self.host_ns = host_ns
        self.width_ns = width_ns
        self.next: Anchor | None = None


class Moment(NamedTuple):
    """A moment on the device: the last anchor before it, and the time since."""

    anchor: Anchor
    since_ns: int


class DeviceClock:
    """The anchors of one device, in the order of their times; old ones live on while a moment refers to them.

    `elapsed_ms` tells the distance of two marks, `resolution_ns` how far it may be off beside its rounding.
    """

    def __init__(self, elapsed_ms: Callable[[Any, Any], float], resolution_ns: int) -> None:
        self._elapsed_ms = elapsed_ms
        self._resolution_ns = resolution_ns
        self.latest: Anchor | None = None

    def add(self, mark: Any, before_ns: int, after_ns: int) -> int | None:
        """Add an anchor that happened between two host times; return the error of the line that leads to it.

        That is 0 for the first anchor, and None, with nothing added, for one that stands where the last one does.
        """
        anchor = Anchor(mark, 0, (before_ns + after_ns) // 2, after_ns - before_ns)
        last = self.latest
        error_ns = 0
        if last is not None:
            elapsed_ms = self._elapsed_ms(last.mark, mark)
            anchor.device_ns = last.device_ns + round(elapsed_ms * NS_PER_MS)
            if anchor.device_ns <= last.device_ns:
                return None
            stretch = max(1.0, (anchor.host_ns - last.host_ns) / (anchor.device_ns - last.device_ns))
            distances_ns = 2 * self._distance_error_ns(elapsed_ms) * stretch
            error_ns = max(last.width_ns, anchor.width_ns) // 2 + math.ceil(distances_ns)
            last.next = anchor
        self.latest = anchor
        return error_ns

    def locate(self, mark: Any, anchor: Anchor) -> Moment:
        """Return when `mark` happened, which is done and came after `anchor`."""
        while True:
            since_ns = round(self._elapsed_ms(anchor.mark, mark) * NS_PER_MS)
            if anchor.next is None or anchor.device_ns + since_ns < anchor.next.device_ns:
                return Moment(anchor, since_ns)
            anchor = anchor.next

    def _distance_error_ns(self, elapsed_ms: float) -> int:
        """Return how far a distance on the device may be off, up to `elapsed_ms`; whole nanoseconds, rounded up."""
        rounding_ms = math.ulp(elapsed_ms) * FLOAT32_STEP / 2
        return math.ceil(rounding_ms * NS_PER_MS) + self._resolution_ns + 1


def host_time_ns(moment: Moment) -> int | None:
    """Return a moment on the host's clock, None while no anchor has followed it."""
    begin = moment.anchor
    end = begin.next
    if end is None:
        return None
    return begin.host_ns + moment.since_ns * (end.host_ns - begin.host_ns) // (
        end.device_ns - begin.device_ns
    )
