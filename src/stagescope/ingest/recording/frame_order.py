"""Which frames of a file were written once and are there again, and how many are missing.

The recorder numbers the frames of a file from 0. A number that occurs twice, or records that are there twice under two
numbers, come from a copy of a part of the file: used again, their spans would count twice.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import Counter, defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.record.format import RECORDS

if TYPE_CHECKING:
    from stagescope.record.format import Frame

    Payload = memoryview | bytes

BEGINNING_BYTES = 72
"""Frames are compared as a whole only if they begin with the same record, which contains a timestamp."""

STATED = ("file_frames", "file_records")
"""What HEADER and END frames state: the frames and the records of each kind before them in their file."""


class _Known(NamedTuple):
    """A frame that was accepted: its type, and its payload or the digest of that."""

    type: int
    payload: Payload


class FrameOrder:
    """The frames of one file that were accepted so far.

    `repeated` counts frames that are there again, `contradictory` those that have the number of a frame with other
    content. Neither is used.
    """

    def __init__(self) -> None:
        self.repeated = 0
        self.contradictory = 0
        self._by_number: dict[int, _Known] = {}
        self._used: list[tuple[int, int, int]] = []
        self._stated: list[tuple[int, dict[str, Any]]] = []
        self._by_beginning: defaultdict[tuple[int, bytes], list[_Known]] = defaultdict(list)
        self._has_payloads = True

    def accepts(self, frame: Frame, *, has_records: bool) -> bool:
        """Return whether a frame is new. Only frames that have records may not be repeated under another number."""
        own = _Known(frame.type, frame.payload if self._has_payloads else _digest(frame.payload))
        known = self._by_number.setdefault(frame.sequence, own)
        if known is not own:
            is_copy = known == own
            self.repeated += is_copy
            self.contradictory += not is_copy
            return False
        if has_records and len(frame.payload):
            alike = self._by_beginning[frame.type, bytes(frame.payload[:BEGINNING_BYTES])]
            if own in alike:
                self.repeated += 1
                return False
            alike.append(own)
        self._used.append((frame.sequence, frame.type, len(frame.payload)))
        return True

    def forget_payloads(self) -> None:
        """Compare frames by digests of their payloads from now on, so that these need no memory."""
        if not self._has_payloads:
            return
        self._has_payloads = False
        light = {id(each): each._replace(payload=_digest(each.payload)) for each in self._by_number.values()}
        self._by_number = {number: light[id(each)] for number, each in self._by_number.items()}
        for alike in self._by_beginning.values():
            alike[:] = [light[id(each)] for each in alike]

    @property
    def missing(self) -> int:
        """How many numbers below the highest one are missing."""
        return max(self._by_number, default=-1) + 1 - len(self._by_number)

    def states(self, frame: Frame, facts: dict[str, Any]) -> None:
        """Remember what a frame states about the frames of its file before it; nothing in files of older versions."""
        if "file_records" in facts:
            self._stated.append((frame.sequence, facts))

    def differences(self) -> Counter[str]:
        """Return by how many the records of each kind differ from what frames state: missing ones are positive.

        The frames before a frame are those with lower numbers. The largest difference of any frame counts. `frames`
        are those of any kind.
        """
        used = sorted(self._used)
        numbers = [number for number, _, _ in used]
        found: dict[str, list[int]] = {"frames": list(range(len(used) + 1))}
        for frame_type, (name, size_bytes) in RECORDS.items():
            counts = (length // size_bytes if own == frame_type else 0 for _, own, length in used)
            found[name] = list(accumulate(counts, initial=0))
        largest: Counter[str] = Counter()
        for number, facts in self._stated:
            place = bisect_left(numbers, number)
            for name, stated in _counts_of(facts).items():
                if abs(missing := stated - found[name][place]) > abs(largest[name]):
                    largest[name] = missing
        return largest


def _digest(payload: Payload) -> bytes:
    return hashlib.sha256(payload).digest()


def _counts_of(facts: dict[str, Any]) -> dict[str, int]:
    """Return the stated numbers of frames and of records of each known kind; those that are no counts are left out."""
    records = facts.get("file_records")
    stated: dict[str, Any] = {name: 0 for name, _ in RECORDS.values()} | (
        records if isinstance(records, dict) else {}
    )
    stated["frames"] = facts.get("file_frames")
    names = ("frames", *(name for name, _ in RECORDS.values()))
    return {name: stated[name] for name in names if isinstance(stated[name], int)}
