"""The protobuf wire format, written by column: thousands of messages at a time.

`Cells` holds one byte string per row, as adjacent matrices of bytes. Fields are built as matrices, gathered into
messages, and joined to one byte string at the end, so that no Python code runs per row. Source:
protobuf.dev/programming-guides/encoding. Single messages use the same functions with one row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Integers = npt.NDArray[np.int64] | npt.NDArray[np.uint64]
    Matrix = npt.NDArray[np.int16]
    Mask = npt.NDArray[np.bool_]

_VARINT, _FIXED64, _LENGTH = 0, 1, 2
_LOW_BITS = 0x7F
"""The payload of one byte of a varint; its top bit marks that another byte follows."""
_NO_BYTE = np.int16(-1)
_ONE_BYTE = tuple(bytes([value]) for value in range(_LOW_BITS + 1))


class Cells(NamedTuple):
    """One byte string per row, as adjacent parts, and the length of every row.

    A part is a matrix with one row per message and one column per possible byte; a negative cell holds no byte. Parts
    are joined once, at the end, so nesting needs no copies.
    """

    parts: tuple[Matrix, ...]
    lengths: npt.NDArray[np.int64]

    def tobytes(self) -> bytes:
        """Return the concatenation of all rows."""
        merged = self.merged()
        return merged[merged >= 0].astype(np.uint8).tobytes()

    def merged(self) -> Matrix:
        """Return all parts as a single one."""
        return np.hstack(self.parts)


def varint(value: int) -> bytes:
    """Return one whole number as a varint; a negative one as its 64-bit two's complement."""
    if 0 <= value <= _LOW_BITS:  # most tags and lengths
        return _ONE_BYTE[value]
    value &= 2**64 - 1
    out = bytearray()
    while value > _LOW_BITS:
        out.append(value & _LOW_BITS | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number_field(field: int, value: int) -> bytes:
    """Return one field that holds a whole number, an enum or a flag."""
    return varint(field << 3 | _VARINT) + varint(value)


def bytes_field(field: int, value: bytes | str) -> bytes:
    """Return one field that holds a string, bytes or a nested message."""
    value = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | _LENGTH) + varint(len(value)) + value


def constant_cells(value: bytes, row_count: int, present: Mask | None = None) -> Cells:
    """Return the same bytes in every row, or in the rows that are present."""
    row = np.frombuffer(value, np.uint8)
    return _full_rows(np.broadcast_to(row, (row_count, len(row))), present)


def number_cells(field: int, values: Integers, present: Mask | None = None) -> Cells:
    """Return one number field per row; rows that are not `present` stay empty."""
    return _varint_cells(varint(field << 3 | _VARINT), values, present)


def fixed64_cells(field: int, values: Integers, present: Mask | None = None) -> Cells:
    """Return one 64-bit fixed field per row; rows that are not `present` stay empty."""
    tag = constant_cells(varint(field << 3 | _FIXED64), len(values), present)
    return join_cells([tag, _full_rows(values.astype("<u8").view(np.uint8).reshape(-1, 8), present)])


def message_cells(field: int, content: Cells, present: Mask | None = None) -> Cells:
    """Return the content of every row as a nested message; rows that are not `present` must be empty."""
    head = _varint_cells(varint(field << 3 | _LENGTH), content.lengths, present)
    return join_cells([head, content])


def join_cells(cells: Sequence[Cells]) -> Cells:
    """Return the concatenated contents of every row."""
    parts = tuple(part for cell in cells for part in cell.parts)
    return Cells(parts, np.sum([cell.lengths for cell in cells], axis=0))


def spread_cells(cells: Cells, rows: Mask) -> Cells:
    """Return the given rows at the positions where `rows` is true, with empty rows in between."""
    merged = cells.merged()
    spread = np.full((len(rows), merged.shape[1]), _NO_BYTE, np.int16)
    lengths = np.zeros(len(rows), np.int64)
    spread[rows], lengths[rows] = merged, cells.lengths
    return Cells((spread,), lengths)


def _full_rows(data: npt.NDArray[np.uint8], present: Mask | None) -> Cells:
    """Return rows that use every column of `data`, where they are present."""
    part = data.astype(np.int16)
    mask = np.ones(len(data), np.bool_) if present is None else present
    part[~mask] = _NO_BYTE
    return Cells((part,), mask * np.int64(data.shape[1]))


def _varint_cells(tag: bytes, values: Integers, present: Mask | None) -> Cells:
    """Return a tag and every number as a varint, with as many columns as the widest needs."""
    rest = values.astype(np.int64, copy=False).view(np.uint64)
    mask = np.ones(len(rest), np.bool_) if present is None else present
    highest = int(rest.max(where=mask, initial=0))
    first, stop = len(tag), len(tag) + max(1, (highest.bit_length() + 6) // 7)
    part = np.empty((len(rest), stop), np.int16)
    part[:, :first] = np.frombuffer(tag, np.uint8)
    lengths = np.full(len(rest), first, np.int64)
    more = np.ones(len(rest), np.bool_)
    for place in range(first, stop):
        low = np.where(more, (rest & np.uint64(_LOW_BITS)).astype(np.int16), _NO_BYTE)
        lengths += more
        rest = rest >> np.uint64(7)
        more = rest > 0
        part[:, place] = low | (more.astype(np.int16) << 7)
    if present is not None:
        part[~mask] = _NO_BYTE
        lengths *= mask
    return Cells((part,), lengths)
