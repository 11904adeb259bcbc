"""Read the events of a Chrome trace as a stream of lists, in bounded memory.

Source: the Trace Event Format document of the Chromium project, JSON object form (events in `traceEvents`) and array
form. The list of events is split between events, and each piece is decoded as a list: a typed decode of one piece at a
time is several times faster than decoding the whole file, and holds only one piece in memory. If the decoder rejects a
piece, its events are decoded one by one (structure.py), and unreadable ones are counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from stagescope.ingest.streams import open_stream
from stagescope.ingest.trace_json.structure import find_elements
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stagescope.ingest.streams import ByteStream

Event = TypeVar("Event")

PIECE_BYTES = 1 << 17
"""Size of a piece. It and its decoded events fit into the processor's caches; larger pieces are slower."""

MOST_EVENT_BYTES = 64 << 20
"""An event or a header larger than this is skipped."""

MOST_TAIL_BYTES = 1 << 20
"""How much is read after the list of events: a few facts come first, then large tables that no reader needs."""

FREE_BYTES = 256 << 20
MOST_RATIO = 60
"""Beyond FREE_BYTES, a compressed file may unpack to at most this multiple of its size. Real traces reach about 30."""

MOST_UNPACKED_BYTES = 256 << 30

NEAR_WINDOW, TAIL_WINDOW = 1 << 12, 1 << 16
LIST_BEGINS = re.compile(rb'"traceEvents"\s*:\s*\[')
SEPARATOR = re.compile(rb"\}\s*,\s*(?=\{)")
"""The separator between two events. It may also occur inside an event; the decoder then rejects the piece, and its
events are decoded one by one."""

NO_NUMBERS = re.compile(rb"(?<=[:,\[])(\s*)(?:NaN|-?Infinity)(?=\s*[,\]}])")
BYTE = re.compile(r" \(byte \d+\)")
"""The decoder's position within a piece, removed from messages because it is not a position in the file."""

REFUSALS = (msgspec.DecodeError, RecursionError)


class UnpackedTooFarError(Exception):
    """A compressed file unpacks to more than any real trace would."""


@dataclass
class EventStream(Generic[Event]):
    """The events of one file, decoded as `Event`.

    After `pieces()` is exhausted, `facts` has the fields before and after the list of events, and `diagnostics()`
    reports what could not be read.
    """

    path: Path
    decoder: msgspec.json.Decoder[list[Event]]
    facts: dict[str, Any] = field(default_factory=dict)
    lost: int = 0
    first_lost: str = ""
    is_cut: bool = False
    damage: str | None = None
    _read_bytes: int = 0
    _is_bare: bool = False
    _is_lost: bool = False

    def pieces(self) -> Iterator[list[Event]]:
        """Yield the events in the order of the file; raises InputError for a file without a list of events."""
        with open_stream(self.path) as stream:
            try:
                rest = self._open_list(stream)
                yield from self._events(stream, rest)
            except UnpackedTooFarError:
                self.is_cut = True
                self.damage = f"it unpacks to more than {MOST_RATIO}x its size"
            self.damage = self.damage or stream.damage

    def diagnostics(self) -> list[Diagnostic]:
        """Return an error for dropped events, and one for a file that ends before its list of events does."""
        found = []
        if self.lost:
            text = f"events cannot be read and were dropped: {self.first_lost}"
            found.append(Diagnostic("error", text, str(self.path), count=self.lost, code="events.dropped"))
        if self.is_cut:
            reason = self.damage or "the list of events does not end"
            text = f"the trace is truncated; everything before the cut was read: {reason}"
            location = f"byte {self._read_bytes}"
            found.append(Diagnostic("error", text, str(self.path), location=location, code="input.truncated"))
        return found

    def _next(self, stream: ByteStream) -> bytes:
        """Return the next bytes; raises UnpackedTooFarError for a decompression bomb."""
        block = stream.read(PIECE_BYTES)
        self._read_bytes += len(block)
        if self._read_bytes > FREE_BYTES:
            size_bytes = max(self.path.stat().st_size, 1)
            if (
                self._read_bytes - FREE_BYTES > MOST_RATIO * size_bytes
                or self._read_bytes > MOST_UNPACKED_BYTES
            ):
                raise UnpackedTooFarError
        return block

    def _open_list(self, stream: ByteStream) -> bytes:
        """Return the bytes read after the opening bracket of the list of events; record the fields before it."""
        buffer = self._next(stream).removeprefix(b"\xef\xbb\xbf").lstrip()
        if buffer.startswith(b"["):
            self._is_bare = True
            return buffer[1:]
        while (opened := LIST_BEGINS.search(buffer)) is None:
            block = self._next(stream)
            if not block or len(buffer) > MOST_EVENT_BYTES:
                raise InputError.damaged(
                    self.path, "no list of events (traceEvents): it is not a Chrome trace"
                )
            buffer += block
        self._note(buffer[: opened.start()].rstrip().rstrip(b",") + b"}")
        return buffer[opened.end() :]

    def _note(self, text: bytes) -> None:
        try:
            found = msgspec.json.decode(NO_NUMBERS.sub(rb"\1null", text))
        except REFUSALS:
            return
        self.facts |= found if isinstance(found, dict) else {}

    def _events(self, stream: ByteStream, buffer: bytes) -> Iterator[list[Event]]:
        while block := self._next(stream):
            buffer = self._resumed(buffer + block)
            cut = _last_end(buffer, len(block))
            if cut is None:
                continue
            try:
                yield self.decoder.decode(b"[" + buffer[: cut[0]] + b"]")
                buffer = buffer[cut[1] :]
            except REFUSALS:
                events, buffer, ended = self._salvage(buffer)
                yield events
                if ended:
                    return self._read_tail(stream, buffer)
        events, buffer, ended = self._salvage(self._resumed(buffer))
        yield events
        if ended:
            return self._read_tail(stream, buffer)
        # The format allows a bare list to omit its closing bracket.
        self.is_cut = not self._is_bare or bool(buffer.strip(b" \t\r\n,"))
        return None

    def _salvage(self, buffer: bytes) -> tuple[list[Event], bytes, bool]:
        """Return the readable events, the bytes after them, and whether the list ended."""
        found = find_elements(buffer)
        if len(found.starts) == 0:
            return [], buffer[found.end or 0 :], found.end is not None
        rest = buffer[found.rest if found.end is None else found.end :].lstrip(b" \t\r\n,")
        try:
            whole = self.decoder.decode(b"[" + buffer[found.starts[0] : found.stops[-1]] + b"]")
        except REFUSALS:
            whole = list(self._one_by_one(buffer, found.starts.tolist(), found.stops.tolist()))
        return whole, rest, found.end is not None

    def _one_by_one(self, buffer: bytes, starts: list[int], stops: list[int]) -> Iterator[Event]:
        for start, stop in zip(starts, stops, strict=True):
            text = buffer[start:stop]
            try:
                yield self.decoder.decode(b"[" + text + b"]")[0]
            except REFUSALS as reason:
                try:
                    yield self.decoder.decode(b"[" + NO_NUMBERS.sub(rb"\1null", text) + b"]")[0]
                except REFUSALS:
                    self._lose(BYTE.sub("", str(reason)).replace("$[0]", "event"))

    def _lose(self, reason: str) -> None:
        self.first_lost = self.first_lost or reason
        self.lost += 1

    def _resumed(self, buffer: bytes) -> bytes:
        """Return the buffer, without the event at its beginning if that is larger than any event may be."""
        if len(buffer) > MOST_EVENT_BYTES:
            self._lose(f"one is larger than {MOST_EVENT_BYTES >> 20} MiB")
            self._is_lost, buffer = True, buffer[-TAIL_WINDOW:]
        if self._is_lost and (found := SEPARATOR.search(buffer)):
            self._is_lost, buffer = False, buffer[found.end() :]
        return buffer[-TAIL_WINDOW:] if self._is_lost else buffer

    def _read_tail(self, stream: ByteStream, rest: bytes) -> None:
        """Record the fields after the list of events."""
        while len(rest) < MOST_TAIL_BYTES and (block := stream.read(MOST_TAIL_BYTES)):
            rest += block
        text = rest.strip().lstrip(b",")
        if text and text != b"}":
            self._note(b"{" + text[:MOST_TAIL_BYTES])


def _last_end(buffer: bytes, new_bytes: int) -> tuple[int, int] | None:
    """Return the end of the second-to-last event in the buffer, and the start of the last one."""
    last = None
    for window in (NEAR_WINDOW, TAIL_WINDOW, new_bytes + TAIL_WINDOW):
        for last in SEPARATOR.finditer(buffer, max(0, len(buffer) - window)):  # noqa: B007 - the last one is wanted
            pass
        if last is not None:
            return last.start() + 1, last.end()
    return None
