"""Text files that are almost a table of spans: in another encoding, with another separator or other line ends."""

from __future__ import annotations

import codecs

BYTE_ORDER_MARKS = (  # UTF-32 first: its mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars", " ": "spaces"}
COLUMNS = frozenset({"rank", "start_ns", "end_ns"})
"""Columns that every table of spans has (docs/formats.md)."""

FEWEST_CHARACTERS = 8


def text_encoding(head: bytes) -> str | None:
    """Return UTF-16 or UTF-32 for the beginning of a text in one of them, with or without a byte order mark."""
    for mark, name in BYTE_ORDER_MARKS:
        if head.startswith(mark):
            return name
    pairs = head[: len(head) // 2 * 2][:64]
    for codec, name in (("utf-16-le", "UTF-16LE"), ("utf-16-be", "UTF-16BE")):
        text = pairs.decode(codec, errors="replace")
        if len(text) >= FEWEST_CHARACTERS and text.isascii() and (text.isprintable() or "\n" in text):
            return name
    return None


def text_hint(head: bytes) -> str | None:
    """Return what to do with a text that is not read as it is, and would be after a small change; None for others."""
    encoding = text_encoding(head)
    if encoding is not None:
        return f"convert it to UTF-8, as with: iconv -f {encoding} -t UTF-8 OLD > NEW"
    line = head.decode(errors="replace").lstrip().splitlines()[:1]
    header = line[0] if line else ""
    for separator, name in SEPARATORS.items():
        if {field.strip().strip('"').lower() for field in header.split(separator)} >= COLUMNS:
            return f"its columns are separated by {name}: write the table with commas (and decimal points)"
    return None
