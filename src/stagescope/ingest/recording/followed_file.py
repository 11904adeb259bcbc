"""One file of a recording that is being written: what was added is read, and only the latest records stay in memory."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from stagescope.ingest.recording.columns import SPAN_DTYPE
from stagescope.ingest.recording.frames import (
    ANCHOR_DTYPE,
    RECORD_BYTES,
    Contents,
    take_facts,
    take_records,
)
from stagescope.ingest.recording.header import checked_header
from stagescope.ingest.recording.segments import Part, identity_of
from stagescope.ingest.streams import open_regular
from stagescope.record import format as fmt
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.kinds import STEP_CODE

if TYPE_CHECKING:
    from pathlib import Path

MOST_READINGS = 512
"""Frames with readings of one clock that are kept: those of more than an hour."""

UNFINISHED_BYTES = fmt.HEAD.size + fmt.MAX_PAYLOAD_BYTES
"""An incomplete frame at the end of a file has fewer bytes; more are damage."""

STEPPED = (fmt.SPANS, fmt.COUNTERS)
"""Frames with records of steps, which are forgotten with their step."""


class FollowedFile:
    """One file of a recording: what it states about its process, and its latest records."""

    def __init__(self, path: Path) -> None:
        """Follow a file from its beginning."""
        self.path = path
        self.ended_step = -1
        """The last step whose end was recorded, -1 before the first."""
        self.latest_step = -1
        """The last step with a span, -1 before the first."""
        self.begin_step = -1
        """The first step with a span, -1 before any."""
        self.forgotten_step = -1
        """The last step of which records were forgotten, -1 if none were."""
        self.began_ns = 0
        """When the process began, on the wall clock of its machine."""
        self.has_more = False
        """Whether the file may have more than was read."""
        self._contents = Contents()
        self._frames: dict[int, deque[tuple[int, bytes]]] = {kind: deque() for kind in RECORD_BYTES}
        self._stepped_bytes = 0
        self._checksum = hashlib.sha256()
        self._next_number = 0
        self._offset = 0
        self._rest = b""

    @property
    def rank(self) -> int | None:
        """The rank that the header states, None before the header was read."""
        rank = self._contents.header.get("rank")
        return rank if type(rank) is int else None

    @property
    def position(self) -> int:
        """How many bytes were read so far."""
        return self._offset

    @property
    def process(self) -> object:
        """What all files of one recording share."""
        return identity_of(Part(self.path, self._contents)) or self.path

    @property
    def has_earlier(self) -> bool:
        """Whether the process recorded spans before this file."""
        before = self._contents.header.get("records_before")
        return type(before) is int and before > 0

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended its recording in this file."""
        return self._contents.end is not None

    @property
    def has_failed(self) -> bool:
        """Whether an exception has ended the process."""
        return "exception" in (self._contents.end or {})

    def read(self, most_bytes: int) -> None:
        """Read what was added, at most so many bytes; `has_more` is whether there may be more.

        Raises FileNotFoundError if the file was deleted, and InputError if it cannot be read.
        """
        try:
            with open_regular(self.path) as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    raise InputError.damaged(self.path, "the file has become shorter while it was followed")
                file.seek(self._offset)
                data = file.read(most_bytes)
        except FileNotFoundError:
            raise
        except OSError as reason:
            raise InputError.cannot_read(self.path, reason) from reason
        self._offset += len(data)
        self.has_more = len(data) == most_bytes
        if data:
            self._take(self._rest + data)

    def forget_before(self, step: int, most_bytes: int) -> None:
        """Forget the records before a step, and the oldest ones beyond `most_bytes`."""
        for kind in STEPPED:
            frames = self._frames[kind]
            while frames and (frames[0][0] < step or self._stepped_bytes > most_bytes):
                last_step, payload = frames.popleft()
                self._stepped_bytes -= len(payload)
                self.forgotten_step = max(self.forgotten_step, last_step)

    def part(self, after_step: int = -1) -> Part:
        """Return what is in memory, in the form of a whole file, without frames that end up to `after_step`."""
        found = replace(self._contents, checksum=self._checksum.digest())
        found.header, found.wrong_facts = checked_header(dict(found.header))
        payloads = {
            kind: [memoryview(data) for last, data in kept if last > after_step or kind not in STEPPED]
            for kind, kept in self._frames.items()
        }
        take_records(found, payloads)
        if found.end is not None:
            found.end = {**found.end, "spans": len(found.spans)}
        return Part(self.path, found)

    def _take(self, data: bytes) -> None:
        self._rest = b""
        for item in fmt.scan_frames(data):
            if isinstance(item, fmt.Frame):
                self._take_frame(item)
            elif item.offset + item.size_bytes == len(data) and item.size_bytes <= UNFINISHED_BYTES:
                self._rest = data[item.offset :]
            else:
                self._contents.gaps.append(item)

    def _take_frame(self, frame: fmt.Frame) -> None:
        if frame.sequence < self._next_number:
            self._contents.repeated_frames += 1
            return
        self._contents.lost_frames += frame.sequence - self._next_number
        self._next_number = frame.sequence + 1
        self._contents.frames += 1
        self._checksum.update(frame.crc.to_bytes(4, "little"))
        if frame.type in self._frames and len(frame.payload) % RECORD_BYTES[frame.type] == 0:
            self._take_records(frame.type, bytes(frame.payload))
        elif not take_facts(self._contents, frame, lambda *_: None):
            self._contents.unknown_frames[frame.type] += 1

    def _take_records(self, kind: int, payload: bytes) -> None:
        frames = self._frames[kind]
        if kind == fmt.SPANS:
            self._note_steps(payload)
        elif kind == fmt.CLOCK and payload and not frames:
            self._note_beginning(payload)
        frames.append((self.latest_step, payload))
        if kind in STEPPED:
            self._stepped_bytes += len(payload)
        elif len(frames) > MOST_READINGS:
            frames.popleft()

    def _note_steps(self, payload: bytes) -> None:
        records = np.frombuffer(payload, SPAN_DTYPE)
        ended = records["step"][records["kind"] == STEP_CODE]
        self.ended_step = max(self.ended_step, int(ended.max(initial=-1)))
        self.latest_step = max(self.latest_step, int(records["step"].max(initial=-1)))
        if self.begin_step < 0:
            numbers = records["step"][records["step"] >= 0]
            self.begin_step = int(numbers.min()) if len(numbers) else -1

    def _note_beginning(self, payload: bytes) -> None:
        first = np.frombuffer(payload, ANCHOR_DTYPE)[0]
        began_ns = self._contents.header.get("process_start_ns")
        on_own_clock_ns = began_ns if isinstance(began_ns, int) else int(first["monotonic_ns"])
        self.began_ns = on_own_clock_ns + int(first["realtime_ns"]) - int(first["monotonic_ns"])
