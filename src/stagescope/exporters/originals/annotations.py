"""The arguments of slices as debug annotations of a Perfetto trace.

Source: protos/perfetto/trace/track_event/debug_annotation.proto in github.com/google/perfetto.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import msgspec

from stagescope.exporters.protobuf import bytes_field, number_field, varint

if TYPE_CHECKING:
    from collections.abc import Callable

ANNOTATION = 4
"""TrackEvent.debug_annotations."""
NAME_IID, BOOL, UINT, INT, DOUBLE, STRING, NAME, ENTRIES, ITEMS = 1, 2, 3, 4, 5, 6, 10, 11, 12
FIXED64 = 1
LEAST_INT, MOST_INT, MOST_UINT = -(2**63), 2**63 - 1, 2**64 - 1
DEEPEST = 16
"""Lists and objects that are nested deeper are written as JSON."""


def annotation_fields(args: bytes, name_iid: Callable[[str], int]) -> bytes:
    """Return the fields of a TrackEvent for arguments in JSON; `name_iid` gives the number of an interned name.

    None for arguments that are no JSON object: then there are no fields.
    """
    try:
        found = msgspec.json.decode(args)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return b""
    if not isinstance(found, dict):
        return b""
    return b"".join(
        bytes_field(ANNOTATION, number_field(NAME_IID, name_iid(key)) + _value(value))
        for key, value in found.items()
    )


def _value(value: Any, depth: int = 0) -> bytes:
    """Return the field with a value; nothing for null, for which the format has no field."""
    if isinstance(value, bool):
        return number_field(BOOL, int(value))
    if isinstance(value, int) and LEAST_INT <= value <= MOST_INT:
        return number_field(INT, value)
    if isinstance(value, int) and 0 <= value <= MOST_UINT:
        return number_field(UINT, value)
    if isinstance(value, float):
        return varint(DOUBLE << 3 | FIXED64) + struct.pack("<d", value)
    if isinstance(value, dict | list):
        return _nested(value, depth)
    return b"" if value is None else bytes_field(STRING, str(value).encode("utf-8", "replace"))


def _nested(value: dict[str, Any] | list[Any], depth: int) -> bytes:
    if depth >= DEEPEST:
        return bytes_field(STRING, msgspec.json.encode(value))
    if isinstance(value, list):
        return b"".join(bytes_field(ITEMS, _value(each, depth + 1)) for each in value)
    return b"".join(
        bytes_field(ENTRIES, bytes_field(NAME, key.encode("utf-8", "replace")) + _value(each, depth + 1))
        for key, each in value.items()
    )
