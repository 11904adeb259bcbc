"""What one process writes: header, names, spans, clock anchors and the count of everything lost."""

from __future__ import annotations

import sys
import time

from stagescope.record.buffers import RECORD_BYTES
from stagescope.record.clock import read_anchor
from stagescope.record.file import FrameFile
from stagescope.vocabulary.recording import ANCHOR, CLOCK, DROPS, END, HEADER, NAMES, SPANS

ANCHOR_INTERVAL_S = 10.0


class Recording:
    """One process's recording; its file is made when the first span arrives. No method raises OSError."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.spans_written = 0
        self.spans_lost = 0
        self._header: dict[str, object] = {}
        self._header_changed = False
        self._names: list[str] = []
        self._names_written = 0
        self._file: FrameFile | None = None
        self._dropped_reported = 0
        self._next_anchor_s = 0.0
        self._warned = False

    @property
    def path(self) -> str | None:
        """Path of the file, None before there is one."""
        return self._file.path if self._file else None

    def describe(self, facts: dict[str, object]) -> None:
        """Add facts to the header; they are written before the next spans."""
        self._header = {**self._header, **facts}
        self._header_changed = True

    def add_name(self, text: str) -> None:
        """Add an entry to the string table; entries count from 1, 0 stands for no name."""
        self._names.append(text)

    def write_spans(self, records: bytes) -> None:
        """Write packed records, or count them as lost."""
        count = len(records) // RECORD_BYTES
        if self._ensure_file() and self._write_tables() and self._append(SPANS, records):
            self.spans_written += count
        else:
            self.spans_lost += count

    def write_anchor_if_due(self) -> None:
        """Write a clock anchor every ten seconds and have the system store what is there."""
        if self._file is None or time.monotonic() < self._next_anchor_s:
            return
        self._next_anchor_s = time.monotonic() + ANCHOR_INTERVAL_S
        self._append(CLOCK, ANCHOR.pack(*read_anchor()))
        self._file.sync()

    def write_drops(self, dropped_spans: int) -> None:
        """Write how many spans are dropped so far, if that has changed."""
        if dropped_spans == self._dropped_reported or not self._ensure_file():
            return
        if self._file and self._file.append_json(DROPS, {"dropped_spans": dropped_spans}):
            self._dropped_reported = dropped_spans

    def finish(self, reason: str) -> None:
        """Write a last anchor and the END frame, and close the file."""
        if self._file is None:
            return
        self._write_tables()
        self._append(CLOCK, ANCHOR.pack(*read_anchor()))
        self._file.append_json(
            END, {"spans": self.spans_written, "dropped_spans": self._dropped_reported, "reason": reason}
        )
        self.close()

    def close(self) -> None:
        """Close the file without a word."""
        if self._file:
            self._file.close()
            self._file = None

    def _ensure_file(self) -> bool:
        if self._file is None:
            rank = self._header.get("rank")
            try:
                self._file = FrameFile(self.directory, rank if isinstance(rank, int) else 0)
            except OSError as error:
                self._warn(f"cannot record into {self.directory}: {error.strerror or error}")
                return False
        return True

    def _write_tables(self) -> bool:
        """Write header and names that the file does not hold yet."""
        file = self._file
        if file is None:
            return False
        if self._header_changed:
            self._header_changed = False
            self._header_changed = not file.append_json(HEADER, self._header)
        fresh = self._names[self._names_written :]
        if fresh and file.append_json(NAMES, {"first": self._names_written + 1, "names": fresh}):
            self._names_written += len(fresh)
        return not self._header_changed

    def _append(self, frame_type: int, payload: bytes) -> bool:
        if self._file and self._file.append(frame_type, payload):
            return True
        self._warn(f"cannot write {self.path}; spans are dropped and counted")
        return False

    def _warn(self, message: str) -> None:
        """Say once on stderr that recording suffers; the training goes on."""
        if not self._warned:
            self._warned = True
            sys.stderr.write(f"stagescope: {message}\n")
