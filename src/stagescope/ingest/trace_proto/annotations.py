"""Decode the arguments of events: debug annotations of any type, also nested."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from stagescope.ingest.protobuf_fields import as_double, as_signed, message_fields
from stagescope.ingest.trace_proto.schema import Annotation, Interned, text_of

if TYPE_CHECKING:
    from stagescope.ingest.protobuf_fields import Buffer
    from stagescope.ingest.trace_proto.sequences import Sequence

DEEPEST = 16
"""Lists and objects that are nested deeper are left out: a message of 16 MiB can nest millions of them."""


def argument(data: Buffer, sequence: Sequence, depth: int = 0) -> tuple[str, Any]:
    """Return the name and value of a DebugAnnotation; the value is None if it has none. Raises DamagedFieldError."""
    name, value = "", None
    entries: dict[str, Any] | None = None
    items: list[Any] | None = None
    for number, _, part in message_fields(data):
        if number == Annotation.NAME:
            name = text_of(part)
        elif isinstance(part, int):
            if number == Annotation.NAME_IID:
                name = sequence.texts.get((Interned.ANNOTATION_NAMES, part), "")
            else:
                value = _number(number, part, sequence, value)
        elif number == Annotation.STRING:
            value = text_of(part)
        elif number == Annotation.JSON:
            value = _json(part)
        elif number == Annotation.ENTRIES and depth < DEEPEST:
            key, inner = argument(part, sequence, depth + 1)
            entries = {} if entries is None else entries
            entries[key] = inner
        elif number == Annotation.ITEMS and depth < DEEPEST:
            items = [] if items is None else items
            items.append(argument(part, sequence, depth + 1)[1])
    return name, next((found for found in (entries, items) if found is not None), value)


def characters_of(value: Any, depth: int = 0) -> int:
    """Return the length of all texts of an argument, those of DEEPEST levels of lists and objects at most."""
    if isinstance(value, str):
        return len(value)
    if depth > DEEPEST or not isinstance(value, dict | list):
        return 0
    parts = value.values() if isinstance(value, dict) else value
    return sum(characters_of(part, depth + 1) for part in parts)


def _number(number: int, part: int, sequence: Sequence, before: Any) -> Any:
    """Return the value of a field that holds a number, or the one `before` if it is none of the known fields."""
    if number == Annotation.INT:
        return as_signed(part)
    if number in (Annotation.UINT, Annotation.POINTER):
        return part
    if number == Annotation.DOUBLE:
        return as_double(part)
    if number == Annotation.BOOL:
        return bool(part)
    if number == Annotation.STRING_IID:
        return sequence.texts.get((Interned.STRING_VALUES, part), "")
    return before


def _json(text: Buffer) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return text_of(text)
