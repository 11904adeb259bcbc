"""The files that one process writes: a single one, or the last few segments of a size-bounded recording.

A bounded recording is divided into segments of a quarter of the bound. When the last segment is full, the oldest one
is deleted and a new one begins, so at least three quarters of the allowed size are on disk at any time. A segment is
full as well when it has a third of the time or of the steps to keep (retention.py). Each segment
is a complete recording: it repeats header and names, and its header holds the number of records stored before it,
from which a reader computes how many were discarded.
"""

from __future__ import annotations

import os
from collections import deque

from stagescope.record.file import FrameFile, free_names
from stagescope.record.retention import SEGMENTS, Retention, SegmentAge


class Segments:
    """Opens the files of one recording one after the other."""

    def __init__(self, directory: str, max_bytes: int, retention: Retention) -> None:
        """`max_bytes` is the limit for all segments together; 0 means unlimited."""
        self.directory = directory
        self.max_bytes = max_bytes
        self.retention = retention
        self.age = SegmentAge(retention)
        self.limit_bytes = self.max_bytes // SEGMENTS
        self.number = 0
        self.facts: dict[str, object] = {}
        self._stem = ""
        self._previous: dict[str, object] = {}
        self._full: deque[str] = deque()

    @property
    def is_bounded(self) -> bool:
        """Whether the oldest segment is deleted at some time."""
        return bool(self.max_bytes or any(self.retention))

    def open(self, rank: int, records_before: int) -> FrameFile:
        """Return the first file, or the next segment after deleting the oldest one if necessary.

        The caller adds `facts` to its header. Raises OSError if the file cannot be created or an old one cannot be
        deleted.
        """
        while self.is_bounded and len(self._full) >= SEGMENTS:
            _delete(self._full[0])
            self._full.popleft()
        stem = f"{self._stem}.{self.number}" if self._stem else f"rank-{rank:05d}"
        file = FrameFile(self.directory, free_names(stem), self.limit_bytes)
        self._stem = self._stem or os.path.basename(file.path).partition(".")[0]
        self.age.begin()
        if self.is_bounded:
            bounds = {"max_bytes": self.max_bytes, "keep_seconds": self.retention.seconds,
                      "keep_steps": self.retention.steps}  # fmt: skip
            self.facts = {
                "segment": self.number,
                "records_before": records_before,
                **{name: bound for name, bound in bounds.items() if bound},
            }
            if self._previous:
                self.facts["previous_file"] = self._previous
        return file

    def end(self, file: FrameFile) -> None:
        """Close a full file. Another one may follow."""
        self._previous = file.written()
        file.sync()
        file.close()
        self._full.append(file.path)
        self.number += 1


def _delete(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:  # another process has already deleted it
        return
