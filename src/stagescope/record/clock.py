"""The host clock: CLOCK_MONOTONIC for spans, anchored to the wall clock again and again.

All processes of one boot share CLOCK_MONOTONIC and nobody steps it. The wall clock may jump; an anchor is one
reading of it between two readings of the monotonic clock, so the pair is known to `width_ns`.
"""

from __future__ import annotations

import time
from typing import NamedTuple

now_ns = time.monotonic_ns
CLOCK_NAME = "CLOCK_MONOTONIC"
_TRIES = 5


class Anchor(NamedTuple):
    """The wall clock at one moment of the monotonic clock, which lies in the middle of `width_ns`."""

    monotonic_ns: int
    realtime_ns: int
    width_ns: int


def read_anchor() -> Anchor:
    """Return the tightest of a few anchors."""
    return min((_read_once() for _ in range(_TRIES)), key=lambda anchor: anchor.width_ns)


def _read_once() -> Anchor:
    before_ns = time.monotonic_ns()
    realtime_ns = time.time_ns()
    after_ns = time.monotonic_ns()
    return Anchor((before_ns + after_ns) // 2, realtime_ns, after_ns - before_ns)


def boot_id() -> str:
    """Return what identifies this boot of this machine, and so its monotonic clock; empty if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().strip().decode(errors="replace")
    except OSError:
        return ""
