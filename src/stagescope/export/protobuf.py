"""The protobuf wire format, written by column: thousands of messages at a time.

A `Cells` holds one byte string per row, as matrices of bytes that stand side by side. Fields are made as
matrices, gathered into messages, and drop out as one byte string at the end, so that no Python code runs per
row. Source: protobuf.dev/programming-guides/encoding. Single messages are made with the same
functions and one row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Integers = npt.NDArray[np.int64] | npt.NDArray[np.uint64]
    Bytes = npt.NDArray[np.uint8]
    Mask = npt.NDArray[np.bool_]

_VARINT, _FIXED64, _LENGTH = 0, 1, 2
_LOW_BITS = 0x7F
"""What one byte of a varint holds; its top bit says that another byte follows."""
_ONE_BYTE = tuple(bytes([value]) for value in range(_LOW_BITS + 1))


class Cells(NamedTuple):
    """One byte string per row, as parts that stand side by side, and the length of every row.

    A part is a matrix with one row per message and one column per possible byte, and the mask of the bytes
    that count. Parts are put together once, at the end: nesting costs no copy.
    """

    parts: tuple[tuple[Bytes, Mask], ...]
    lengths: npt.NDArray[np.int64]

    def tobytes(self) -> bytes:
        """Return all rows one after the other."""
        data, used = self.merged()
        return data[used].tobytes()

    def merged(self) -> tuple[Bytes, Mask]:
        """Return all parts as a single one."""
        return np.hstack([data for data, _ in self.parts]), np.hstack([used for _, used in self.parts])


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
    """Return the contents of every row one after the other."""
    parts = tuple(part for cell in cells for part in cell.parts)
    return Cells(parts, np.sum([cell.lengths for cell in cells], axis=0))


def spread_cells(cells: Cells, rows: Mask) -> Cells:
    """Return the given rows at the places where `rows` is true, with empty rows between them."""
    merged_data, merged_used = cells.merged()
    data = np.zeros((len(rows), merged_data.shape[1]), np.uint8)
    used = np.zeros(data.shape, np.bool_)
    lengths = np.zeros(len(rows), np.int64)
    data[rows], used[rows], lengths[rows] = merged_data, merged_used, cells.lengths
    return Cells(((data, used),), lengths)


def _full_rows(data: Bytes, present: Mask | None) -> Cells:
    """Return rows that use every column of `data`, where they are present."""
    mask = np.ones(len(data), np.bool_) if present is None else present
    return Cells(((data, np.broadcast_to(mask[:, None], data.shape)),), mask * np.int64(data.shape[1]))


def _varint_cells(tag: bytes, values: Integers, present: Mask | None) -> Cells:
    """Return a tag and every number as a varint, as wide as the widest of them needs."""
    mask = np.ones(len(values), np.bool_) if present is None else present
    rest = values.astype(np.int64, copy=False).view(np.uint64)
    highest = int(rest.max(where=mask, initial=0))
    first, stop = len(tag), len(tag) + max(1, (highest.bit_length() + 6) // 7)
    data = np.empty((len(rest), stop), np.uint8)
    used = np.empty((len(rest), stop), np.bool_)
    data[:, :first] = np.frombuffer(tag, np.uint8)
    used[:, : first + 1] = mask[:, None]
    lengths = mask * np.int64(first + 1)
    for place in range(first, stop):
        data[:, place] = rest & np.uint64(_LOW_BITS)
        if place + 1 == stop:
            break
        rest = rest >> np.uint64(7)
        more = mask & (rest > 0)
        data[:, place] |= more.view(np.uint8) << np.uint8(7)
        used[:, place + 1] = more
        lengths += more
    return Cells(((data, used),), lengths)
