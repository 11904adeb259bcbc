"""Read the packets of a Perfetto trace one after the other, in bounded memory, and count what is damaged."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stagescope.ingest.protobuf_fields import LENGTH, DamagedFieldError, message_fields, stream_fields
from stagescope.ingest.streams import open_stream
from stagescope.ingest.trace_proto.schema import TRACE_PACKET, Packet
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.limits import beyond, limit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stagescope.ingest.protobuf_fields import Field

PacketFields = list["Field"]

ANY_RATIO_BYTES = 4 << 20
"""Unpacked bytes of compressed packets from which the limit `ratio` applies; reading tiny packets takes long."""


@dataclass
class PacketStream:
    """The packets of one file. After `packets()` is exhausted, `diagnostics()` reports what could not be read."""

    path: Path
    dropped: int = 0
    first_dropped: str = ""
    ending: tuple[str, str, str] | None = None
    """The code of what ended the reading before the end of the file, its message and location."""
    _packed: int = field(default=0)
    _unpacked: int = field(default=0)

    def packets(self) -> Iterator[PacketFields]:
        """Yield the fields of every packet. Raises InputError for a file that exceeds a limit."""
        with open_stream(self.path) as stream:
            try:
                yield from self._all(stream_fields(stream), is_outer=True)
            except DamagedFieldError as damage:
                reason = "the last packet is incomplete" if damage.is_truncated else damage.reason
                code = "input.truncated" if damage.is_truncated else "file.damaged"
                self.ending = code, reason, f"byte {damage.offset}"
            if stream.damage:
                self.ending = "input.truncated", stream.damage, "compressed data"

    def _all(self, trace: Iterator[Field], *, is_outer: bool) -> Iterator[PacketFields]:
        """Yield the packets among the fields of a trace."""
        for number, kind, value in trace:
            if number == TRACE_PACKET and kind == LENGTH and not isinstance(value, int):
                yield from self._fields_of(value, is_outer=is_outer)

    def _fields_of(self, data: bytes | memoryview, *, is_outer: bool) -> Iterator[PacketFields]:
        """Yield the fields of a packet, or of the packets that it contains compressed."""
        try:
            fields = list(message_fields(data))
        except DamagedFieldError as damage:
            return self._drop(damage.reason)
        for number, kind, value in fields:
            if number == Packet.COMPRESSED and kind == LENGTH and not isinstance(value, int):
                # Packets in packets that are compressed again would allow any ratio; no writer nests them.
                if is_outer:
                    yield from self._compressed(value)
                else:
                    self._drop("a compressed packet in a compressed packet")
                return None
        yield fields
        return None

    def _compressed(self, data: bytes | memoryview) -> Iterator[PacketFields]:
        """Yield the packets of a compressed list."""
        unpacker = zlib.decompressobj()
        try:
            unpacked = unpacker.decompress(data, limit("string") + 1)
        except zlib.error as error:
            return self._drop(f"compressed packets are damaged ({error})")
        if len(unpacked) > limit("string"):
            raise beyond("string", self.path)
        self._packed += len(data)
        self._unpacked += len(unpacked)
        if self._unpacked > limit("unpacked"):
            raise beyond("unpacked", self.path)
        if self._unpacked > max(ANY_RATIO_BYTES, limit("ratio") * self._packed):
            raise beyond("ratio", self.path)
        if not unpacker.eof:
            self._drop("compressed packets are truncated")
        try:
            yield from self._all(message_fields(unpacked), is_outer=False)
        except DamagedFieldError as damage:
            self._drop(damage.reason)
        return None

    def _drop(self, reason: str) -> None:
        self.first_dropped = self.first_dropped or reason
        self.dropped += 1

    def drop(self, reason: str) -> None:
        """Count a packet whose content is damaged."""
        self._drop(reason)

    def diagnostics(self) -> list[Diagnostic]:
        """Return what of the file is damaged: dropped packets, and a missing end."""
        found = []
        if self.dropped:
            text = f"packets cannot be read and were dropped: {self.first_dropped}"
            found.append(Diagnostic("error", text, str(self.path), count=self.dropped, code="events.dropped"))
        if self.ending:
            code, reason, where = self.ending
            what = "the trace is truncated" if code == "input.truncated" else "the trace is damaged"
            text = f"{what}; everything before was read: {reason}"
            found.append(Diagnostic("error", text, str(self.path), location=where, code=code))
        return found
