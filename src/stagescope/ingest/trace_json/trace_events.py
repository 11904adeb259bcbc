"""The events of a Chrome trace as a stream of lists: bounded memory, whatever the size of the file.

Source: the Trace Event Format document of the Chromium project, JSON object form (events in `traceEvents`) and array
form. The list of events is cut where one event ends and the next begins, and each piece is decoded as a list of its
own: a typed decode of a piece is several times as fast as a decode of the whole, and holds one piece in memory. A piece
that is refused is taken apart event by event (structure.py), and what cannot be read is counted.
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
"""What is decoded at once, with what becomes of it, stays in the caches of a processor: larger ones are slower."""

MOST_EVENT_BYTES = 64 << 20
"""An event, or a header, that is larger than this is not read."""

MOST_TAIL_BYTES = 1 << 20
"""What follows the events is read as far as this: a few facts, before tables that nobody here needs."""

FREE_BYTES = 256 << 20
MOST_RATIO = 60
"""A compressed file may unpack to so many times its size, beyond what is free: traces reach about 30."""

MOST_UNPACKED_BYTES = 256 << 30

NEAR_WINDOW, TAIL_WINDOW = 1 << 12, 1 << 16
LIST_BEGINS = re.compile(rb'"traceEvents"\s*:\s*\[')
SEPARATOR = re.compile(rb"\}\s*,\s*(?=\{)")
"""What stands between two events. It may stand inside one, too; then the piece is refused, and taken apart."""

NO_NUMBERS = re.compile(rb"(?<=[:,\[])(\s*)(?:NaN|-?Infinity)(?=\s*[,\]}])")
BYTE = re.compile(r" \(byte \d+\)")
"""Where in a piece a decoder stopped, which is nowhere in the file."""

REFUSALS = (msgspec.DecodeError, RecursionError)


class UnpackedTooFarError(Exception):
    """A compressed file holds more than any trace that was compressed."""


@dataclass
class EventStream(Generic[Event]):
    """The events of one file, as `Event`, and what could not be read of them.

    After `pieces()` is exhausted, `facts` has what stood before and behind the list of events, and `diagnostics()` says
    what was lost.
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
                self.damage = f"it unpacks to more than {MOST_RATIO} times its size: not read any farther"
            self.damage = self.damage or stream.damage

    def diagnostics(self) -> list[Diagnostic]:
        """Return an error for events that were lost, and one for a file that ends before its list of events does."""
        found = []
        if self.lost:
            text = f"events cannot be read and are left out: {self.first_lost}"
            found.append(Diagnostic("error", text, str(self.path), count=self.lost))
        if self.is_cut:
            reason = self.damage or "the list of events does not end"
            text = f"the trace is cut off, and what stands before the cut is read: {reason}"
            found.append(Diagnostic("error", text, str(self.path), location=f"byte {self._read_bytes}"))
        return found

    def _next(self, stream: ByteStream) -> bytes:
        """Return the next bytes; raises UnpackedTooFarError for a compressed file that has no end."""
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
        """Return what has been read behind the bracket that opens the list of events; note what stands before it."""
        buffer = self._next(stream).removeprefix(b"\xef\xbb\xbf").lstrip()
        if buffer.startswith(b"["):
            self._is_bare = True
            return buffer[1:]
        while (opened := LIST_BEGINS.search(buffer)) is None:
            block = self._next(stream)
            if not block or len(buffer) > MOST_EVENT_BYTES:
                raise InputError.damaged(
                    self.path, "no list of events (traceEvents) in it: it is no Chrome trace"
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
        # The bracket at the end of a bare list may be left out.
        self.is_cut = not self._is_bare or bool(buffer.strip(b" \t\r\n,"))
        return None

    def _salvage(self, buffer: bytes) -> tuple[list[Event], bytes, bool]:
        """Return the events that can be read, what is left behind them, and whether the list ended there."""
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
        """Return the buffer from the next event on, where what it begins with is larger than any event."""
        if len(buffer) > MOST_EVENT_BYTES:
            self._lose(f"one is larger than {MOST_EVENT_BYTES >> 20} MiB")
            self._is_lost, buffer = True, buffer[-TAIL_WINDOW:]
        if self._is_lost and (found := SEPARATOR.search(buffer)):
            self._is_lost, buffer = False, buffer[found.end() :]
        return buffer[-TAIL_WINDOW:] if self._is_lost else buffer

    def _read_tail(self, stream: ByteStream, rest: bytes) -> None:
        """Note the facts that follow the events."""
        while len(rest) < MOST_TAIL_BYTES and (block := stream.read(MOST_TAIL_BYTES)):
            rest += block
        text = rest.strip().lstrip(b",")
        if text and text != b"}":
            self._note(b"{" + text[:MOST_TAIL_BYTES])


def _last_end(buffer: bytes, new_bytes: int) -> tuple[int, int] | None:
    """Return where the last event ends that another follows, and where that one begins."""
    last = None
    for window in (NEAR_WINDOW, TAIL_WINDOW, new_bytes + TAIL_WINDOW):
        for last in SEPARATOR.finditer(buffer, max(0, len(buffer) - window)):  # noqa: B007 - the last one is wanted
            pass
        if last is not None:
            return last.start() + 1, last.end()
    return None
