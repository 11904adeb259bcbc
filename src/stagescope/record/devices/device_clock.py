"""Converts a device's clock to the host's by linear interpolation between anchors.

An anchor is an event with a bracket of host times: it happened after it was recorded and before it was seen
completed. A device only reports the time between two events, in milliseconds as float32, whose resolution decreases
with the distance (0.06 us at one second, 62 us at ten minutes, 250 us at an hour). Each moment is therefore measured
from the last anchor before it, and interpolated between that anchor and the next one. Nothing is extrapolated: a
moment after the latest anchor has to wait for another one.

The error stated for an interval holds if both clocks keep their rates within it: half of the wider bracket, plus the
rounding of the two distances.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

FLOAT32_STEP = 2.0**29
"""float64 steps per float32 step: the fraction of a float32 is 29 bits shorter."""
NS_PER_MS = 1_000_000


class Anchor:
    """One moment on both clocks, and the following anchor once there is one."""

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
    """The anchors of one device in order of time. Old ones live as long as a moment refers to them.

    `elapsed_ms` returns the distance between two marks, `resolution_ns` is its maximum error apart from rounding.
    """

    def __init__(self, elapsed_ms: Callable[[Any, Any], float], resolution_ns: int) -> None:
        self._elapsed_ms = elapsed_ms
        self._resolution_ns = resolution_ns
        self.latest: Anchor | None = None

    def add(self, mark: Any, before_ns: int, after_ns: int) -> int | None:
        """Add an anchor that happened between two host times; return the error of the interval that it ends.

        Returns 0 for the first anchor, and None without adding it for an anchor at the device time of the last one.
        """
        anchor = Anchor(mark, 0, (before_ns + after_ns) // 2, after_ns - before_ns)
        last = self.latest
        error_ns = 0
        if last is not None:
            elapsed_ms = self._elapsed_ms(last.mark, mark)
            anchor.device_ns = last.device_ns + round(elapsed_ms * NS_PER_MS)
            if anchor.device_ns <= last.device_ns:
                return None
            # Device nanoseconds may be longer or shorter than host nanoseconds; the error is stated in the latter.
            stretch = max(1.0, (anchor.host_ns - last.host_ns) / (anchor.device_ns - last.device_ns))
            distances_ns = 2 * self._distance_error_ns(elapsed_ms) * stretch
            error_ns = max(last.width_ns, anchor.width_ns) // 2 + math.ceil(distances_ns)
            last.next = anchor
        self.latest = anchor
        return error_ns

    def locate(self, mark: Any, anchor: Anchor) -> Moment:
        """Return the position of `mark`, which has completed and was recorded after `anchor`.

        Raises ValueError for a mark that the device reports before `anchor`, such as the event of a graph that still
        has the time of an earlier replay.
        """
        since_ns = self._since_ns(anchor, mark)
        if since_ns < -self._resolution_ns:
            raise ValueError("the device reports an event before the anchor that it was recorded after")
        while anchor.next is not None and anchor.device_ns + since_ns >= anchor.next.device_ns:
            anchor = anchor.next
            since_ns = self._since_ns(anchor, mark)
        return Moment(anchor, since_ns)

    def _since_ns(self, anchor: Anchor, mark: Any) -> int:
        return round(self._elapsed_ms(anchor.mark, mark) * NS_PER_MS)

    def _distance_error_ns(self, elapsed_ms: float) -> int:
        """Return the maximum error of a device distance of up to `elapsed_ms`, in whole nanoseconds, rounded up."""
        rounding_ms = math.ulp(elapsed_ms) * FLOAT32_STEP / 2
        return math.ceil(rounding_ms * NS_PER_MS) + self._resolution_ns + 1


def host_time_ns(moment: Moment) -> int | None:
    """Return a moment on the host's clock, None while no later anchor exists."""
    begin = moment.anchor
    end = begin.next
    if end is None:
        return None
    return begin.host_ns + moment.since_ns * (end.host_ns - begin.host_ns) // (
        end.device_ns - begin.device_ns
    )
