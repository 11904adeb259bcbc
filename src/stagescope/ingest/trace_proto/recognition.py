"""Recognize a Perfetto trace, and its writer, from the beginning of the file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stagescope.ingest.protobuf_fields import LENGTH, DamagedFieldError, message_fields
from stagescope.ingest.streams import open_stream
from stagescope.ingest.trace_proto.schema import TRACE_PACKET, Packet

if TYPE_CHECKING:
    from pathlib import Path

TORCH = (b"\x52\x0bExternal id", b"\x52\x04cbid")
"""Names of arguments that only torch's profiler writes, as fields of a message."""
SEARCHED_BYTES = 1 << 22
LARGEST_PACKET_FIELD = 1100
"""Packets have fields up to 1,000; a larger number is a sign of other data."""
TEXT = b"\n\r\t"
XLA_PLANE = re.compile(rb"\x0a[\x80-\xff]{0,4}[\x00-\x7f].{0,11}\x12.(?:/host:|/device:)", re.DOTALL)
"""A profile of XLA is a list of fields 1 too; the first one is a plane with such a name."""


def is_perfetto_trace(head: bytes) -> bool:
    """Return whether a file begins with packets of a Perfetto trace.

    The format has no signature: a trace is a list of fields 1, each with a message. A text that begins with an empty
    line does so too, which is why the fields of the first packets are examined.
    """
    if XLA_PLANE.match(head):
        return False
    packets = 0
    try:
        for number, kind, value in message_fields(head):
            if number != TRACE_PACKET or kind != LENGTH or isinstance(value, int):
                return False
            if not all(field <= LARGEST_PACKET_FIELD for field, _, _ in message_fields(value)):
                return False
            packets += 1
    except DamagedFieldError as damage:
        if not damage.is_truncated:
            return False
        return packets > 0 or _is_one_long_packet(head[damage.offset :])
    return packets > 0


def is_torch_perfetto_trace(path: Path, head: bytes) -> bool:
    """Return whether a file is a Perfetto trace that torch's profiler wrote: by the names of arguments in it."""
    if not is_perfetto_trace(head):
        return False
    with open_stream(path) as stream:
        data = stream.read(SEARCHED_BYTES)
    return any(name in data for name in TORCH)


def _is_one_long_packet(data: bytes) -> bool:
    """Return whether the head of a file is the beginning of its first packet: of the fields in it, all are known."""
    if len(data) < 2 or data[0] != TRACE_PACKET << 3 | LENGTH:  # noqa: PLR2004  # a tag and a length
        return False
    content = data[1:].lstrip(bytes(range(0x80, 0x100)))[1:]
    fields = []
    try:
        for number, _, _ in message_fields(content):
            fields.append(number)
    except DamagedFieldError as damage:
        if not damage.is_truncated:
            return False
        fields.append(_field_number(content[damage.offset :]))
    return bool(fields) and all(field in FIRST_FIELDS for field in fields) and data[1] not in TEXT


def _field_number(data: bytes) -> int:
    """Return the number of the field that begins here, 0 if its tag has more than two bytes or is incomplete."""
    if not data or (data[0] >= CONTINUED and (len(data) == 1 or data[1] >= CONTINUED)):
        return 0
    tag = data[0] if data[0] < CONTINUED else data[0] - CONTINUED | data[1] << 7
    return tag >> 3


CONTINUED = 0x80
"""The bit of a byte of a number that is set in all but its last byte."""
FIRST_FIELDS = (1, 2, 3, 6, 8, 9, 10, 11, 12, 13, Packet.COMPRESSED)
"""Fields that begin long packets: processes, interned texts, clocks, sequences, and packets that were compressed."""
