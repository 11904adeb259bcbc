"""The content of one process's recording: header, names, spans, clock anchors and the number of lost spans.

When a frame does not fit into a bounded file, the next segment begins with its own header and names (see
segments.py).
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections import deque
from typing import TYPE_CHECKING

from stagescope.record.buffers import RECORD_BYTES
from stagescope.record.clock import RAW_SPACING_NS, read_anchor, read_raw
from stagescope.record.format import (
    ANCHOR,
    CLOCK,
    COUNTER,
    COUNTERS,
    DEVICE_CLOCK,
    DROPS,
    END,
    HEADER,
    MAX_PAYLOAD_BYTES,
    NAMES,
    RAW_ANCHOR,
    RAW_CLOCK,
    SPANS,
    STATE,
)
from stagescope.record.messages import in_language_of_user
from stagescope.record.retention import SEGMENTS, Retention
from stagescope.record.segments import Segments

if TYPE_CHECKING:
    from stagescope.record.counters import Counters
    from stagescope.record.file import FrameFile

ANCHOR_INTERVAL_S = 10.0
MAX_HEADER_BYTES = MAX_PAYLOAD_BYTES // 2
MAX_STATE_BYTES = 2**18
MAX_NAMES = 2**14
"""Names beyond this number share the last entry: one name per span must not exhaust memory in a long training."""
MAX_NAME_CHARACTERS = 512
NAMES_PER_FRAME = 256
"""This many names fit one frame even if JSON escapes every character to twelve bytes."""
MAX_DEVICE_ANCHORS = 2**10
MAX_RAW_READINGS = 2**10
RAW_READINGS_PER_FRAME = 8
"""With one reading every half second, a process that is killed loses those of its last four seconds."""
MORE_NAMES = "(more names than a recording holds)"
TABLE_SHARE = 4
"""Header and names may each take at most 1/4 of a bounded file, so that at least half of it is left for spans."""


class Recording:
    """The recording of one process. Its file is created with the first span. No method raises OSError."""

    def __init__(self, directory: str, max_bytes: int = 0, retention: Retention | None = None) -> None:
        """Write below `directory`, at most `max_bytes` in total (0: unlimited), and `retention` of the past."""
        self._segments = Segments(directory, max_bytes, retention or Retention())
        self._max_table_bytes = max_bytes // SEGMENTS // TABLE_SHARE or MAX_HEADER_BYTES
        self.spans_written = 0
        self.spans_lost = 0
        self.counters: Counters | None = None
        self._header: dict[str, object] = {}
        self._header_changed = False
        self._numbers = itertools.count(1)
        self._names: dict[int, str] = {}
        self._names_bytes = 0
        self.shared_name = 0
        self._names_written = 0
        self._device_anchors: deque[bytes] = deque(maxlen=MAX_DEVICE_ANCHORS)
        self.step_ends: deque[tuple[int, int | None, int]] = deque(maxlen=MAX_RAW_READINGS)
        self._raw_readings: list[bytes] = []
        self._last_raw_ns = -RAW_SPACING_NS
        self._file: FrameFile | None = None
        self._dropped = 0
        self._dropped_reported = (0, 0)
        self._next_anchor_s = 0.0
        self._warned: set[str] = set()
        self.keeps_without_spans = False
        self.exception: str | None = None
        self.exit_status: int | None = None

    def write_into(self, directory: str) -> None:
        """Change the output directory. Has no effect once the file exists."""
        self._segments.directory = directory

    @property
    def path(self) -> str | None:
        """Path of the file, None before it is created."""
        return self._file.path if self._file else None

    def describe(self, facts: dict[str, object]) -> None:
        """Add facts to the header, which is written before the next spans.

        Facts that JSON cannot represent are omitted.
        """
        for name, value in facts.items():
            header = {**self._header, name: value}
            if _fits(header, min(self._max_table_bytes, MAX_HEADER_BYTES)):
                self._header = header
                self._header_changed = True
            else:
                self.warn(f"cannot record the fact {name!r}: it is too large or not JSON")

    def add_name(self, text: str) -> int:
        """Add a string table entry and return its number. Number 0 means "no name".

        Beyond `MAX_NAMES` all new names share one entry, whose number is `shared_name`. Takes no lock: a signal
        handler may call this while it has interrupted this very method.
        """
        if not text.isascii():  # half of a surrogate pair cannot be stored in UTF-8
            text = text.encode("utf-8", "backslashreplace").decode()
        if self.shared_name:
            return self.shared_name
        number = next(self._numbers)
        self._names_bytes += len(json.dumps(text)) + 1
        if number >= MAX_NAMES or (self._segments.max_bytes and self._names_bytes > self._max_table_bytes):
            self.shared_name, text = number, MORE_NAMES
        self._names[number] = text
        return number

    def add_device_anchor(self, record: bytes) -> None:
        """Queue a packed DEVICE_CLOCK record, to be written before the next spans."""
        self._device_anchors.append(record)

    def write_spans(self, records: bytes) -> None:
        """Write packed records; if that fails, count them as lost."""
        if not records:
            return
        count = len(records) // RECORD_BYTES
        if self._file is not None and self._segments.age.is_up:
            self._file.is_full = True
        if self._append(SPANS, records):
            self.spans_written += count
            self._segments.age.add(records)
        else:
            self.spans_lost += count

    def write_counters(self, *, is_last: bool = False) -> None:
        """Write the values that `counters` has collected; if that fails, count them as dropped."""
        if self.counters is None or not self._exists_or_is_kept:
            return
        records = self.counters.collect(is_last=is_last)
        if records and not self._append(COUNTERS, records):
            self.counters.dropped += len(records) // COUNTER.size

    def write_state(self, state: dict[str, object]) -> None:
        """Write what the process is doing, unless there is no file or it does not fit."""
        payload = _json(state)
        if self._exists_or_is_kept and len(payload) <= MAX_STATE_BYTES:
            self._append(STATE, payload)

    def write_anchor_if_due(self) -> None:
        """Write a clock anchor and sync the file every ten seconds."""
        if not self._exists_or_is_kept or time.monotonic() < self._next_anchor_s:
            return
        self._next_anchor_s = time.monotonic() + ANCHOR_INTERVAL_S
        self.write_raw_readings(1)
        if self._append(CLOCK, ANCHOR.pack(*read_anchor())) and self._file is not None:
            self._file.sync()
        self._warn_if_deleted()

    def write_raw_readings(self, least: int = RAW_READINGS_PER_FRAME) -> None:
        """Read the raw clock, and write the readings if there are `least` of them.

        `step_ends` has further ones: the raw clock between two readings of the monotonic clock.
        """
        if not self._exists_or_is_kept:
            return
        for _ in range(len(self.step_ends)):
            before_ns, raw_ns, after_ns = self.step_ends.popleft()
            if raw_ns is not None:
                self._add_raw((before_ns + after_ns) // 2, raw_ns, after_ns - before_ns)
        now = read_raw()
        if now is not None:
            self._add_raw(*now)
        if len(self._raw_readings) >= least and self._append(RAW_CLOCK, b"".join(self._raw_readings)):
            self._raw_readings.clear()

    def _add_raw(self, monotonic_ns: int, raw_ns: int, width_ns: int) -> None:
        """Queue a reading, unless it follows the last one closely or too many could not be written."""
        if monotonic_ns - self._last_raw_ns < RAW_SPACING_NS or len(self._raw_readings) >= MAX_RAW_READINGS:
            return
        self._last_raw_ns = monotonic_ns
        self._raw_readings.append(RAW_ANCHOR.pack(monotonic_ns, raw_ns, width_ns))

    @property
    def _exists_or_is_kept(self) -> bool:
        """Whether there is a file, or should be one although no span has been recorded: its header is the message."""
        return self._file is not None or self.keeps_without_spans

    def write_drops(self, dropped_spans: int) -> None:
        """Write the total numbers of dropped spans and values of counters if they have changed."""
        self._dropped = dropped_spans
        dropped_counters = self.counters.dropped if self.counters else 0
        dropped = (dropped_spans, dropped_counters)
        if dropped == self._dropped_reported:
            return
        more = {"dropped_counters": dropped_counters} if dropped_counters else {}
        if self._append(DROPS, _json({"dropped_spans": dropped_spans, **more})):
            self._dropped_reported = dropped

    def finish(self, reason: str) -> None:
        """Write a last anchor and the END frame, and close the file."""
        if not self._exists_or_is_kept:
            return
        self.write_raw_readings(1)
        self.write_counters(is_last=True)
        self.write_drops(self._dropped)
        self._append(CLOCK, ANCHOR.pack(*read_anchor()))
        end = {"spans": self.spans_written, "dropped_spans": self._dropped, "reason": reason}
        if self.exception is not None:
            end["exception"] = self.exception
        if self.exit_status:
            end["exit_status"] = self.exit_status
        self._append_end(end)
        self._warn_if_deleted()
        self.close()

    def close(self) -> None:
        """Close the file without writing an END frame."""
        if self._file:
            self._file.close()
            self._file = None

    def warn(self, message: str) -> None:
        """Print `message` on stderr, once."""
        if message in self._warned:
            return
        self._warned.add(message)
        try:
            sys.stderr.write(f"stagescope: {in_language_of_user(message)}\n")
        except (AttributeError, OSError, ValueError):  # stderr is closed or None
            return

    def _ensure_file(self) -> bool:
        """Open the first file, or the next segment when the current one is full. Return whether a file is open."""
        if self._file is not None and self._file.is_full:
            self._segments.end(self._file)
            self._file = None
        if self._file is None:
            rank = self._header.get("rank")
            try:
                self._file = self._segments.open(rank if isinstance(rank, int) else 0, self.spans_written)
            except OSError as error:
                self.warn(f"cannot record into {self._segments.directory}: {error.strerror or error}")
                return False
            self._header_changed = True
            self._names_written = 0
            self._dropped_reported = (0, 0)
            self._next_anchor_s = 0.0
        return True

    def _write_tables(self) -> bool:
        """Write header and names that the current file does not contain yet."""
        file = self._file
        if file is None:
            return False
        if self._header_changed:
            self._header_changed = False  # before reading it: another thread may add facts meanwhile
            if not file.append_json(HEADER, {**self._header, **self._segments.facts, **file.written()}):
                self._header_changed = True
                return False
        first = self._names_written + 1
        while first in self._names:
            numbers = itertools.takewhile(self._names.__contains__, range(first, first + NAMES_PER_FRAME))
            fresh = [self._names[number] for number in numbers]
            if not file.append_json(NAMES, {"first": first, "names": fresh}):
                break
            first += len(fresh)
        self._names_written = first - 1
        self._write_device_anchors(file)
        return True

    def _write_device_anchors(self, file: FrameFile) -> None:
        fresh = [self._device_anchors.popleft() for _ in range(len(self._device_anchors))]
        if fresh and not file.append(DEVICE_CLOCK, b"".join(fresh)):
            self._device_anchors.extendleft(reversed(fresh))

    def _warn_if_deleted(self) -> None:
        if self._file and self._file.is_deleted():
            self.warn(f"{self.path} was deleted while it was being written; what it held is lost")

    def _append(self, frame_type: int, payload: bytes) -> bool:
        """Append a frame, preceded by the tables it refers to; when the file is full, use the next segment."""
        stored = self._try_to_append(frame_type, payload)
        if not stored and self._file and self._file.is_full:
            stored = self._try_to_append(frame_type, payload)
        if not stored and self._file:
            self.warn(f"cannot write {self.path}; spans are dropped and counted")
        return stored

    def _append_end(self, end: dict[str, object]) -> None:
        """Append the END frame, with the counts of the file that it is in: it may be the first of a new file."""
        for _ in range(2):
            # Names and header first: they are frames of the file that END counts.
            if not self._ensure_file() or not self._write_tables() or self._file is None:
                continue
            if self._file.append(END, _json({**end, **self._file.written()})):
                return
        if self._file:
            self.warn(f"cannot write {self.path}; its end is missing")

    def _try_to_append(self, frame_type: int, payload: bytes) -> bool:
        if not self._ensure_file() or not self._write_tables() or self._file is None:
            return False
        return self._file.append(frame_type, payload)


def _json(facts: dict[str, object]) -> bytes:
    return json.dumps(facts, separators=(",", ":")).encode()


def _fits(header: dict[str, object], limit_bytes: int) -> bool:
    """Return whether the header can be encoded within `limit_bytes`."""
    try:
        return len(json.dumps(header, default=str)) <= limit_bytes
    except Exception:  # noqa: BLE001  # default=str runs __str__ of arbitrary objects
        return False
