"""Which frames of a file were written once and are there again, and how many are missing.

The recorder numbers the frames of a file from 0. A number that occurs twice, or records that are there twice under two
numbers, come from a copy of a part of the file: used again, their spans would count twice.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagescope.record.format import Frame

BEGINNING_BYTES = 72
"""Frames are compared as a whole only if they begin with the same record, which contains a timestamp."""


class FrameOrder:
    """The frames of one file that were accepted so far.

    `repeated` counts frames that are there again, `contradictory` those that have the number of a frame with other
    content. Neither is used.
    """

    def __init__(self) -> None:
        self.repeated = 0
        self.contradictory = 0
        self._by_number: dict[int, Frame] = {}
        self._by_beginning: defaultdict[tuple[int, bytes], list[Frame]] = defaultdict(list)

    def accepts(self, frame: Frame, *, has_records: bool) -> bool:
        """Return whether a frame is new. Only frames that have records may not be repeated under another number."""
        known = self._by_number.setdefault(frame.sequence, frame)
        if known is not frame:
            is_copy = (known.type, known.payload) == (frame.type, frame.payload)
            self.repeated += is_copy
            self.contradictory += not is_copy
            return False
        if has_records and len(frame.payload):
            alike = self._by_beginning[frame.type, bytes(frame.payload[:BEGINNING_BYTES])]
            if any(other.payload == frame.payload for other in alike):
                self.repeated += 1
                return False
            alike.append(frame)
        return True

    @property
    def missing(self) -> int:
        """How many numbers below the highest one are missing."""
        return max(self._by_number, default=-1) + 1 - len(self._by_number)
