"""How much of the past a recording keeps: a bound in bytes, in time, in steps, or several of them.

The files of a process are a few segments, of which the oldest is deleted when a new one begins (segments.py). A bound
in time or steps therefore ends a segment when it has its share of it: three full segments have all of it, and the one
that is being written comes on top. Only spans count: a training that hangs for an hour, or is paused, must not lose
what happened before.
"""

from __future__ import annotations

import struct
import time
from typing import NamedTuple

from stagescope.record.format import NONE, SPAN, SPAN_FIELDS
from stagescope.vocabulary.errors import UsageError

SEGMENTS = 4
"""Files of one process: three full ones and the one that is being written."""
FULL = SEGMENTS - 1
DEFAULT_MAX_BYTES = 2**30
MIN_MAX_BYTES = 2**20
"""A smaller bound would not hold the header, the names and one chunk of spans."""
MIN_SECONDS = 10
LEAST_SEGMENT_S = 5.0
"""Of a bound in steps: steps of milliseconds must not become as many files."""

UNITS_S = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
STEPS = ("step", "steps")
ALL = "all"
OPTION = "--keep"
BYTES, SECONDS, NUMBER = "bytes", "seconds", "steps"
MOST_DIGITS = 12
EXPECTED = "expected bounds such as 500MB, 30m, 200steps or 1GB,30m, or all"

_WORD_BYTES = 4
_STEP = next(place for place, (name, _) in enumerate(SPAN_FIELDS) if name == "step")
_STEP_WORD = struct.calcsize("<" + SPAN.format.lstrip("<")[:_STEP]) // _WORD_BYTES


class Retention(NamedTuple):
    """At least so many seconds and steps are kept, as far as the bound in bytes allows it; 0 for no bound."""

    seconds: int = 0
    steps: int = 0


class Kept(NamedTuple):
    """The bound in bytes, 0 for none, and those in time and steps."""

    max_bytes: int = DEFAULT_MAX_BYTES
    retention: Retention = Retention()


def parse_keep(keep: str | None, max_bytes: int | str | None = None) -> Kept | None:
    """Return the bounds of a text such as ``500MB``, ``30m``, ``200steps`` or ``1GB,30m``, or of a size alone.

    Sizes end with B, times with s, m, h or d, and each kind may occur once; ``all`` is no bound. Without a size, the
    default one applies. None if neither is given. Raises UsageError for anything else, for two sizes, and for bounds
    that are too small.

    >>> parse_keep("200steps")
    Kept(max_bytes=1073741824, retention=Retention(seconds=0, steps=200))
    """
    if keep is None:
        return None if max_bytes is None else Kept(parse_bound(max_bytes))
    is_unbounded = keep.strip().lower() == ALL
    found: dict[str, int] = {BYTES: 0} if is_unbounded else {}
    for part in () if is_unbounded else keep.split(","):
        kind, number = _bound(part.strip(), keep)
        if kind in found:
            raise UsageError.unusable_value(OPTION, keep, f"it has two bounds of {kind}")
        found[kind] = number
    if max_bytes is not None:
        if BYTES in found:
            raise UsageError.one_of((OPTION, "--max-bytes"), (f"{OPTION} {keep}", f"--max-bytes {max_bytes}"))
        found[BYTES] = parse_bound(max_bytes)
    return Kept(found.get(BYTES, DEFAULT_MAX_BYTES), Retention(found.get(SECONDS, 0), found.get(NUMBER, 0)))


def _bound(part: str, text: str) -> tuple[str, int]:
    """Return the kind of one bound and its number, of bytes, seconds or steps."""
    rest = part.lstrip("0123456789")
    digits, unit = part[: len(part) - len(rest)], rest.strip()
    number = int(digits) if digits.isascii() and 0 < len(digits) <= MOST_DIGITS else 0
    if not number:
        raise UsageError.unusable_value(OPTION, text, EXPECTED)
    if unit[-1:] in {"b", "B"}:
        return BYTES, parse_bound(part)
    if unit in STEPS:
        return NUMBER, number
    if unit not in UNITS_S:
        raise UsageError.unusable_value(OPTION, text, EXPECTED)
    seconds = number * UNITS_S[unit]
    if seconds < MIN_SECONDS:
        raise UsageError.unusable_value(OPTION, text, f"the shortest time is {MIN_SECONDS}s")
    return SECONDS, seconds


def parse_bound(given: int | str) -> int:
    """Return the bytes of a size such as ``512MiB``; raises UsageError below 1 MiB, except for 0."""
    if isinstance(given, str) and not given.isdecimal():
        from stagescope.vocabulary.sizes import (
            parse_size_bytes,
        )  # imports regular expressions, which few processes need

        given = parse_size_bytes(given)
    bound = int(given)
    if 0 != bound < MIN_MAX_BYTES:
        raise UsageError.bound_too_small(bound, MIN_MAX_BYTES)
    return bound


class SegmentAge:
    """How much of a bound in time and steps is in the segment that is being written."""

    def __init__(self, retention: Retention) -> None:
        """Begin an empty segment."""
        self._seconds = retention.seconds / FULL
        # The first step of a segment may have begun in the one before it.
        self._steps = -(-retention.steps // FULL) + 1 if retention.steps else 0
        self.begin()

    def begin(self) -> None:
        """Begin an empty segment."""
        self._since_s: float | None = None
        self._seen: set[int] = set()

    def add(self, records: bytes) -> None:
        """Count spans that were written into the segment."""
        if self._since_s is None:
            self._since_s = time.monotonic()
        if self._steps:
            words = memoryview(records).cast("i")
            self._seen.update(words[_STEP_WORD :: SPAN.size // _WORD_BYTES])
            self._seen.discard(NONE)

    @property
    def is_up(self) -> bool:
        """Whether the next spans belong into another segment."""
        if self._since_s is None:
            return False
        age_s = time.monotonic() - self._since_s
        if self._seconds and age_s >= self._seconds:
            return True
        return bool(self._steps) and age_s >= LEAST_SEGMENT_S and len(self._seen) >= self._steps
