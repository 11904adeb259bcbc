"""Read the events of a Chrome trace as a stream of lists, in bounded memory.

Source: the Trace Event Format document of the Chromium project, JSON object form (events in `traceEvents`) and array
form. The list of events is split between events, and each piece is decoded as a list: a typed decode of one piece at a
time is several times faster than decoding the whole file, and holds only one piece in memory.

A file that is not valid JSON up to its end is never read silently: events that cannot be read are dropped and counted
(salvage.py), and damage of the fields around the list of events, bytes after the end, and a missing end are reported
with their position.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from stagescope.ingest.streams import open_stream
from stagescope.ingest.trace_json.repair import REFUSALS, decode, reason_of
from stagescope.ingest.trace_json.salvage import SEPARATOR, salvage
from stagescope.ingest.utf8 import as_utf8, first_invalid, invalid_text
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.limits import limit
from stagescope.vocabulary.sizes import size_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from stagescope.ingest.streams import ByteStream

Event = TypeVar("Event")

PIECE_BYTES = 1 << 17
"""Size of a piece. It and its decoded events fit into the processor's caches; larger pieces are slower."""

MOST_FACT_BYTES = 1 << 20
"""Larger fields next to the list of events are not kept: tables that no reader needs."""

MOST_BASE_NS = 4 * 10**18
"""More than a century since the epoch: a later origin is invalid, and sums with it would not fit."""

MOST_TAIL_BYTES = 64 << 20
"""Of fields after the list of events that are larger together, only the end is checked."""

CUT = "the trace is truncated; everything before the cut was read"
MAYBE_CUT = "the trace may be truncated"
NEAR_WINDOW, TAIL_WINDOW = 1 << 12, 1 << 16
LIST_BEGINS = re.compile(rb'"traceEvents"\s*:\s*\[')
LONGEST_BEGINNING = 256
BETWEEN = re.compile(rb"\A\s*,?\s*")
FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class ListDecoder(Protocol[Event]):
    """What msgspec.json.Decoder of a list is."""

    def decode(self, text: bytes, /) -> list[Event]:
        """Return the events of a JSON list; raises msgspec.DecodeError."""


@dataclass
class EventStream(Generic[Event]):
    """The events of one file, decoded as `Event`.

    After `pieces()` is exhausted, `facts` has the fields before and after the list of events, and `diagnostics()`
    reports what could not be read.
    """

    path: Path
    decoder: ListDecoder[Event]
    facts: dict[str, Any] = field(default_factory=dict)
    lost: int = 0
    first_lost: tuple[str, int] = ("", 0)
    invalid_text: list[int] = field(default_factory=list)
    damages: list[tuple[str, int]] = field(default_factory=list)
    cut: tuple[str, int, str] | None = None
    _read_bytes: int = 0
    _is_bare: bool = False
    _is_streamed: bool = False
    _is_lost: bool = False
    _try_bytes: int = 0

    def pieces(self) -> Iterator[list[Event]]:
        """Yield the events in the order of the file; raises InputError for a file without a list of events."""
        with open_stream(self.path) as stream:
            yield from self._events(stream, self._open_list(stream))
            if stream.damage and self.cut is None:
                self.damages.append((stream.damage, self._read_bytes))
            elif stream.damage and self.cut:
                self.cut = (stream.damage, self.cut[1], "error")

    def diagnostics(self) -> list[Diagnostic]:
        """Return what of the file is not valid: dropped events, other damage, a missing end, and replaced text."""
        source = str(self.path)
        found = []
        if self.lost:
            reason, at = self.first_lost
            text = f"events cannot be read and were dropped: {reason}"
            where = f"first at byte {at}"
            found.append(
                Diagnostic("error", text, source, location=where, count=self.lost, code="events.dropped")
            )
        for reason, at in self.damages:
            text = f"the trace is not valid JSON, which may have cost a part of it: {reason}"
            found.append(Diagnostic("error", text, source, location=f"byte {at}", code="file.damaged"))
        if self.cut:
            reason, at, severity = self.cut
            cut = CUT if severity == "error" else MAYBE_CUT
            text = f"{cut}: {reason}"
            found.append(Diagnostic(severity, text, source, location=f"byte {at}", code="input.truncated"))
        if self.invalid_text:
            found.append(invalid_text(self.path, self.invalid_text[0], count=len(self.invalid_text)))
        return found

    def _next(self, stream: ByteStream) -> bytes:
        block = stream.read(PIECE_BYTES)
        self._read_bytes += len(block)
        return block

    def _open_list(self, stream: ByteStream) -> bytes:
        """Return the bytes read after the opening bracket of the list of events; record the fields before it."""
        buffer = self._next(stream).lstrip()
        self._read_bytes += stream.mark_bytes  # positions are those in the file
        if buffer.startswith(b"["):
            self._is_bare = True
            return buffer[1:].lstrip()
        searched = 0
        while (opened := LIST_BEGINS.search(buffer, searched)) is None:
            block = self._next(stream)
            if not block or len(buffer) > limit("string"):
                raise InputError.damaged(
                    self.path, "no list of events (traceEvents): it is not a Chrome trace"
                )
            searched = max(0, len(buffer) - LONGEST_BEGINNING)
            buffer += block
        header = buffer[: opened.start()].rstrip()
        self._is_streamed = header == b"{" and buffer[opened.end() :].startswith(b"\n")
        if header != b"{":
            complete = header[:-1] + b"}" if header.endswith(b",") else header
            self._note(complete, self._read_bytes - len(buffer))
        return buffer[opened.end() :].lstrip()

    def _note(self, text: bytes, at: int, shift: int = 0) -> None:
        """Record the fields of an object; `at` is the position of the text in the file, after `shift` added bytes."""
        try:
            fields = decode(FIELDS.decode, text)
        except REFUSALS as refusal:
            reason, place = reason_of(refusal)
            if place is None and at + len(text) - shift >= self._read_bytes:
                self.cut = ("the fields after its list of events do not end", self._read_bytes, "error")
            else:
                self.damages.append((reason, at + max(0, (place or 0) - shift)))
            fields = _complete_fields(text, place)
        if "traceEvents" in fields:
            self.damages.append(("a second list of events, which was not read", at))
        small = {name: raw for name, raw in fields.items() if len(raw) <= MOST_FACT_BYTES}
        self.facts |= {name: msgspec.json.decode(as_utf8(bytes(raw))) for name, raw in small.items()}

    def _events(self, stream: ByteStream, buffer: bytes) -> Iterator[list[Event]]:
        while block := self._next(stream):
            buffer = self._resumed(buffer + block)
            cut = None if len(buffer) < self._try_bytes else _last_end(buffer, len(block))
            # Where no event ends up to the limit, the list may have ended: what follows it may be larger.
            if len(buffer) + PIECE_BYTES > limit("string"):
                cut = len(buffer), len(buffer)
            if cut is None:
                continue
            stop, following = cut
            piece = buffer[:stop]
            if not piece.isascii():
                piece = self._valid_text(piece, len(buffer))
            try:
                yield self.decoder.decode(b"[" + piece + b"]")
                buffer = buffer[following:]
            except REFUSALS:
                events, rest, ended = self._salvage(piece, len(buffer))
                yield events
                buffer = rest + buffer[stop:]
                if ended:
                    return self._read_tail(stream, buffer)
                buffer = BETWEEN.sub(b"", buffer, count=1)
        yield from self._last_events(stream, self._resumed(buffer))

    def _last_events(self, stream: ByteStream, buffer: bytes) -> Iterator[list[Event]]:
        """Yield the events in what is left at the end of the file, and note whether it ends as it should."""
        events, rest, ended = self._salvage(self._valid_text(buffer, len(buffer)), len(buffer))
        yield events
        if ended:
            self._read_tail(stream, rest)
        elif (self._is_bare or (self._is_streamed and rest.endswith(b",\n"))) and not rest.strip(b" \t\r\n,"):
            # Writers of one event per line, such as megatron/core/perfetto_trace.py, never close their list.
            reason = "its list of events has no closing bracket, which the format allows"
            self.cut = (reason, self._read_bytes, "warning")
        else:
            self.cut = ("the list of events does not end", self._read_bytes, "error")

    def _salvage(self, text: bytes, from_end: int) -> tuple[list[Event], bytes, bool]:
        """Return the readable events of `text`, the rest of it, and whether the list ended.

        `from_end` is how many of the bytes read so far follow the beginning of the text.
        """
        found = salvage(text, self.decoder.decode)
        for loss in found.losses:
            self._lose(loss.reason, self._read_bytes - from_end + loss.at, loss.events)
        rest = text[found.used :]
        # An event that does not end for long is decoded again only when it is twice as long.
        self._try_bytes = 2 * len(rest) if rest and not found.events else 0
        return found.events, rest, found.ended

    def _valid_text(self, text: bytes, from_end: int) -> bytes:
        """Return the text with all bytes that are not UTF-8 replaced, and note where the first is."""
        place = first_invalid(text)
        if place is None:
            return text
        self.invalid_text.append(self._read_bytes - from_end + place)
        return as_utf8(text)

    def _lose(self, reason: str, at: int, count: int = 1) -> None:
        if not self.lost:
            self.first_lost = reason, at
        self.lost += count

    def _resumed(self, buffer: bytes) -> bytes:
        """Return the buffer, without the event at its beginning if that is larger than any event may be."""
        if len(buffer) > limit("string"):
            reason = f"one is larger than {size_text(limit('string'))} (--limit string=SIZE)"
            self._lose(reason, self._read_bytes - len(buffer))
            self._is_lost, self._try_bytes, buffer = True, 0, buffer[-TAIL_WINDOW:]
        if self._is_lost and (found := SEPARATOR.search(buffer)):
            self._is_lost, buffer = False, buffer[found.end() :]
        return buffer[-TAIL_WINDOW:] if self._is_lost else buffer

    def _read_tail(self, stream: ByteStream, rest: bytes) -> None:
        """Record the fields after the list of events, up to the end of the file."""
        parts, size, last = [rest], len(rest), rest
        while block := stream.read(MOST_FACT_BYTES):
            self._read_bytes += len(block)
            size, last = size + len(block), block
            if size <= MOST_TAIL_BYTES:
                parts.append(block)
        if size > MOST_TAIL_BYTES:
            if not last.rstrip().endswith(b"}"):
                self.cut = ("the fields after its list of events do not end", self._read_bytes, "error")
            return
        text = b"".join(parts)
        self._note_tail(text.lstrip(), self._read_bytes - len(text.lstrip()))

    def _note_tail(self, text: bytes, at: int) -> None:
        """Record the fields of the text between the list of events and the end of the file."""
        is_end = text.startswith(b"}") or (text.startswith(b",") and not text[1:].lstrip().startswith(b"}"))
        if self._is_bare:
            is_end = not text
        if not text and not self._is_bare:
            self.cut = ("it ends with its list of events", at, "error")
        elif not is_end:
            self.damages.append(("unexpected bytes after the list of events", at))
        elif text:
            self._note(b"{" + text.removeprefix(b","), at, shift=text.startswith(b"}"))


def base_time_ns(facts: Mapping[str, Any]) -> int | None:
    """Return the origin of a trace's timestamps in nanoseconds since the Unix epoch; None if it is not stated."""
    base_ns = facts.get("baseTimeNanoseconds")
    return base_ns if type(base_ns) is int and 0 <= base_ns < MOST_BASE_NS else None


def _complete_fields(text: bytes, place: int | None) -> dict[str, msgspec.Raw]:
    """Return the fields of an object with damage at `place`: all before it, as far as they are complete."""
    before = text if place is None else text[: place - 1]
    for candidate in (before, before[: before.rfind(b",")] + b"}"):
        try:
            return decode(FIELDS.decode, candidate)  # type: ignore[no-any-return]
        except REFUSALS:  # noqa: PERF203 - two candidates
            continue
    return {}


def _last_end(buffer: bytes, new_bytes: int) -> tuple[int, int] | None:
    """Return the end of the second-to-last event in the buffer, and the start of the last one."""
    last = None
    for window in (NEAR_WINDOW, TAIL_WINDOW, new_bytes + TAIL_WINDOW):
        for last in SEPARATOR.finditer(buffer, max(0, len(buffer) - window)):  # noqa: B007 - the last one is wanted
            pass
        if last is not None:
            return last.start() + 1, last.end()
    return None
