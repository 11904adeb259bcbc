"""The fields of protobuf messages, read from their wire format without a schema.

    for number, wire_type, value in message_fields(data): ...
    for number, wire_type, value in stream_fields(stream): ...

`value` is an unsigned whole number for VARINT, FIXED64 and FIXED32, and a part of the data for LENGTH: text, bytes, a
packed list or a nested message, which only the schema distinguishes. Parts of a memoryview are not copied.
`as_signed`, `as_double` and `as_float` interpret numbers.

Damage raises `DamagedFieldError` with its offset; every field before it has been returned by then. All that a message
declares is checked against the bytes that are there, so nothing is allocated that a file only claims to contain.

Source: protobuf.dev/programming-guides/encoding. Groups (wire types 3 and 4), which proto3 has removed, are damage.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from stagescope.vocabulary.limits import require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.ingest.streams import ByteStream

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
COUNTED = (VARINT, LENGTH)
FIXED_SIZES = {FIXED64: 8, FIXED32: 4}
LARGEST_NUMBER = 2**29 - 1
"""The largest number of a field."""
LARGEST_VARINT_BYTES = 10
LARGEST_VALUE = 2**64 - 1
LOW_BITS = 0x7F
"""The part of a number that one byte holds; its top bit marks that another byte follows."""
BLOCK_BYTES = 1 << 20

Buffer = bytes | memoryview
Value = int | bytes | memoryview
Field = tuple[int, int, Value]


class DamagedFieldError(Exception):
    """A message that does not follow the wire format.

    `offset` counts bytes from the beginning of the message, of the file for `stream_fields`. `is_truncated` states
    that the data end within a field: the beginning of a longer message looks the same.
    """

    def __init__(self, reason: str, offset: int, *, is_truncated: bool = False) -> None:
        super().__init__(f"{reason} at byte {offset}")
        self.reason = reason
        self.offset = offset
        self.is_truncated = is_truncated

    def after(self, preceding_bytes: int) -> DamagedFieldError:
        """Return the same error in a message that begins `preceding_bytes` before these data."""
        return DamagedFieldError(self.reason, preceding_bytes + self.offset, is_truncated=self.is_truncated)


def message_fields(data: Buffer) -> Iterator[Field]:
    """Return the number, wire type and value of every field of a message, in their order.

    Parts are bytes if `data` is, else memoryviews. Raises DamagedFieldError.
    """
    at, end = 0, len(data)
    while at < end:
        begin = at
        tag = data[at]
        at += 1
        if tag > LOW_BITS:
            tag, at = _varint(data, begin, begin)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number <= LARGEST_NUMBER:
            raise DamagedFieldError(f"no field has the number {number}", begin)
        if wire_type in COUNTED:
            size, at = (data[at], at + 1) if at < end and data[at] <= LOW_BITS else _varint(data, at, begin)
            if wire_type == VARINT:
                yield number, wire_type, size
                continue
        elif (size := FIXED_SIZES.get(wire_type, 0)) == 0:
            raise DamagedFieldError(f"no field has the wire type {wire_type}", begin)
        if size > end - at:
            raise _truncated(begin)
        part = data[at : at + size]
        at += size
        yield number, wire_type, part if wire_type == LENGTH else int.from_bytes(part, "little")


def stream_fields(stream: ByteStream) -> Iterator[Field]:
    """Return the fields of a message that is a whole file, which is read in parts.

    Parts are bytes. Raises InputError if a field is larger than the limit `string`, and DamagedFieldError.
    """
    rest, offset = b"", 0
    while block := stream.read(BLOCK_BYTES):
        data = rest + block
        rest = b""
        try:
            yield from message_fields(data)
        except DamagedFieldError as damage:
            if not damage.is_truncated:
                raise damage.after(offset) from None
            rest = data[damage.offset :]
            require("string", _declared_bytes(rest), stream.path)
        offset += len(data) - len(rest)
    if rest:
        raise _truncated(offset)


def _declared_bytes(data: bytes) -> int:
    """Return the size that the first field of `data` declares, which is not complete; 0 if that is not known yet."""
    try:
        tag, at = _varint(data, 0, 0)
        return _varint(data, at, 0)[0] if tag & 7 == LENGTH else 0
    except DamagedFieldError:
        return 0


def _varint(data: Buffer, at: int, begin: int) -> tuple[int, int]:
    """Return the number at `at` and the offset after it; `begin` is the offset of its field."""
    value = shift = 0
    for byte in data[at : at + LARGEST_VARINT_BYTES]:
        value |= (byte & LOW_BITS) << shift
        shift += 7
        if byte <= LOW_BITS:
            return value & LARGEST_VALUE, at + shift // 7
    if shift < 7 * LARGEST_VARINT_BYTES:
        raise _truncated(begin)
    raise DamagedFieldError("a number has more than 64 bits", begin)


def _truncated(offset: int) -> DamagedFieldError:
    return DamagedFieldError("the data end within a field", offset, is_truncated=True)


def as_signed(value: int) -> int:
    """Return a VARINT or FIXED64 of the types int32, int64 and sfixed64, whose negative numbers are complements.

    >>> as_signed(2**64 - 1)
    -1
    """
    return value - 2**64 if value >= 2**63 else value


def as_double(value: int) -> float:
    """Return a FIXED64 of the type double."""
    return float(struct.unpack("<d", struct.pack("<Q", value))[0])


def as_float(value: int) -> float:
    """Return a FIXED32 of the type float."""
    return float(struct.unpack("<f", struct.pack("<I", value))[0])
