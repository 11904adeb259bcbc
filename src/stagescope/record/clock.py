"""The host clock: CLOCK_MONOTONIC for spans, anchored to the wall clock at regular intervals.

All processes of one boot and one time namespace share CLOCK_MONOTONIC, and it is never set. A time namespace has an
offset of its own (time_namespaces(7)); containers restored from a checkpoint run in one. The wall clock may be set at
any time. An anchor
is one reading of the wall clock between two readings of the monotonic clock, so its error is at most `width_ns` / 2.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

now_ns = time.monotonic_ns
CLOCK_NAME = "CLOCK_MONOTONIC"
# The process may be descheduled between the readings; one of a few tries is usually undisturbed.
_TRIES = 5


class Anchor(NamedTuple):
    """The wall clock at one moment of the monotonic clock, which is the middle of an interval of `width_ns`."""

    monotonic_ns: int
    realtime_ns: int
    width_ns: int


def read_anchor() -> Anchor:
    """Return the narrowest of `_TRIES` anchors."""
    return min((_read_once() for _ in range(_TRIES)), key=lambda anchor: anchor.width_ns)


def _read_once() -> Anchor:
    before_ns = time.monotonic_ns()
    realtime_ns = time.time_ns()
    after_ns = time.monotonic_ns()
    return Anchor((before_ns + after_ns) // 2, realtime_ns, after_ns - before_ns)


def boot_id() -> str:
    """Return the identifier of this boot, which identifies the monotonic clock; empty if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().strip().decode(errors="replace")
    except OSError:
        return ""


def time_namespace() -> str:
    """Return the identifier of this process's time namespace, such as ``time:[4026531834]``; empty if unknown."""
    try:
        return os.readlink("/proc/self/ns/time")  # Linux 5.6 and later
    except OSError:
        return ""
