"""The host clock: CLOCK_MONOTONIC for spans, anchored to the wall clock at regular intervals.

All processes of one boot and one time namespace share CLOCK_MONOTONIC, and it is never set. A time namespace has an
offset of its own (time_namespaces(7)); containers restored from a checkpoint run in one. The wall clock may be set at
any time. An anchor is one reading of the wall clock between two readings of the monotonic clock, so its error is at
most `width_ns` / 2.

CLOCK_MONOTONIC is never set, but time synchronization changes its rate: ntpd by up to 500 ppm, chrony by up to 10 %.
CLOCK_MONOTONIC_RAW has the rate of the hardware. Readings of both show every change of the rate.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

now_ns = time.monotonic_ns
CLOCK_NAME = "CLOCK_MONOTONIC"
RAW_SPACING_NS = 10_000_000
"""Readings of the raw clock that follow each other more closely are not stored."""

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


class RawReading(NamedTuple):
    """The raw clock at one moment of the monotonic clock, which is the middle of an interval of `width_ns`."""

    monotonic_ns: int
    raw_ns: int
    width_ns: int


def _no_clock() -> None:
    """Replace a clock that this platform does not have."""


def _raw_clock() -> Callable[[], int | None]:
    try:
        read = partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC_RAW)
        read()
    except (AttributeError, OSError):
        return _no_clock
    return read


raw_ns = _raw_clock()
"""Returns the time of CLOCK_MONOTONIC_RAW, None on platforms without it."""


def read_raw() -> RawReading | None:
    """Return the narrowest of `_TRIES` readings of the raw clock; None without one."""
    found = [_raw_once() for _ in range(_TRIES)]
    return min((each for each in found if each), key=lambda reading: reading.width_ns, default=None)


def _raw_once() -> RawReading | None:
    before_ns, reading_ns, after_ns = now_ns(), raw_ns(), now_ns()
    if reading_ns is None:
        return None
    return RawReading((before_ns + after_ns) // 2, reading_ns, after_ns - before_ns)


def boot_id() -> str:
    """Return the identifier of this boot, which identifies the monotonic clock; empty if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().strip().decode(errors="replace")
    except OSError:
        return ""


def namespace(kind: str) -> str:
    """Return the identifier of a namespace of this process, such as ``time:[4026531834]``; empty if unknown."""
    try:
        return os.readlink(f"/proc/self/ns/{kind}")  # that of time since Linux 5.6
    except OSError:
        return ""
