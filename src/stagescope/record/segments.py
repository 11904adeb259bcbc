"""The files that one process writes: a single one, or where their size is bounded the last few of a row.

A bounded recording is cut into segments of a quarter of the bound each. When the last one is full the oldest is deleted
and a new one begun, so that at least three quarters of what is allowed are there at any time. Each segment is a
recording of its own: it repeats header and names, and tells how many records were stored before it, from which a
reader knows how many were let go.
"""

from __future__ import annotations

import os
from collections import deque

from stagescope.record.file import FrameFile, free_names
from stagescope.vocabulary.errors import UsageError

SEGMENTS = 4
DEFAULT_MAX_BYTES = 2**30
MIN_MAX_BYTES = 2**20
"""Less would not hold the header, the names and one chunk of spans."""


class Segments:
    """Opens the files of one recording one after the other."""

    def __init__(self, directory: str, max_bytes: int) -> None:
        """`max_bytes` bounds all of them together; 0 stands for no bound."""
        self.directory = directory
        self.max_bytes = max_bytes
        self.limit_bytes = self.max_bytes // SEGMENTS
        self.number = 0
        self.facts: dict[str, object] = {}
        self._stem = ""
        self._full: deque[str] = deque()

    def open(self, rank: int, records_before: int) -> FrameFile:
        """Return the first file, or the next one after the room for it was made.

        Its header is to say `facts`. Raises OSError when it cannot be made, or an old one cannot be deleted.
        """
        while self.max_bytes and len(self._full) >= SEGMENTS:
            _delete(self._full[0])
            self._full.popleft()
        stem = f"{self._stem}.{self.number}" if self._stem else f"rank-{rank:05d}"
        file = FrameFile(self.directory, free_names(stem), self.limit_bytes)
        self._stem = self._stem or os.path.basename(file.path).partition(".")[0]
        if self.max_bytes:
            self.facts = {
                "segment": self.number,
                "records_before": records_before,
                "max_bytes": self.max_bytes,
            }
        return file

    def end(self, file: FrameFile) -> None:
        """Close a file that is full; another one may follow."""
        file.sync()
        file.close()
        self._full.append(file.path)
        self.number += 1


def parse_bound(given: int | str) -> int:
    """Return the bytes that a bound such as ``512MiB`` means; raises UsageError for less than 1 MiB that is not 0."""
    if isinstance(given, str) and not given.isdecimal():
        from stagescope.vocabulary.sizes import parse_size_bytes  # and with it regular expressions

        given = parse_size_bytes(given)
    bound = int(given)
    if 0 != bound < MIN_MAX_BYTES:
        raise UsageError.bound_too_small(bound, MIN_MAX_BYTES)
    return bound


def _delete(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:  # somebody else was faster
        return
