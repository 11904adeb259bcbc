"""A reader of column blobs written from docs/viewer-format.md alone, to hold the encoder to the document."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any


def read_blob(blob: bytes) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Return the columns of a blob, whole numbers exact, and its facts."""
    data = zlib.decompress(blob)
    size = int.from_bytes(data[:4], "little")
    head = json.loads(data[4 : 4 + size])
    assert head["format"] == 1
    body = data[4 + size :]
    heads = {column["name"]: column for column in head["columns"]}
    columns: dict[str, list[Any]] = {}
    # A column that is chained to another needs that one first.
    for name in sorted(heads, key=lambda name: "follows" in heads[name]):
        columns[name] = _column(heads[name], body, head["rows"], columns)
    return {name: columns[name] for name in heads}, head["facts"]


def _column(head: dict[str, Any], body: bytes, rows: int, done: dict[str, list[Any]]) -> list[Any]:
    width = int(head["type"][1:]) if head["type"][0] == "u" else 8
    assert head["offset"] % 8 == 0
    planes = body[head["offset"] : head["offset"] + width * rows]
    values = [planes[row::rows] for row in range(rows)] if rows else []
    if head["type"] == "f64":
        doubles = [struct.unpack("<d", value)[0] for value in values]
        return [None if value != value else value for value in doubles]  # noqa: PLR0124 - NaN
    codes = [int.from_bytes(value, "little") for value in values]
    _unescape(head, body, codes)
    base = int(head["base"])
    if head.get("chained"):
        return _unchain(codes, base, done.get(head.get("follows", "")))
    if head.get("nullable"):
        codes = [None if code == 0 else base + code - 1 for code in codes]
    else:
        codes = [base + code for code in codes]
    words = head.get("words")
    return codes if words is None else [None if code is None else words[code] for code in codes]


def _unescape(head: dict[str, Any], body: bytes, codes: list[int]) -> None:
    count = head.get("escapes", 0)
    start = head.get("escapes_offset", 0)
    wide = start + -(-4 * count // 8) * 8
    for i in range(count):
        (place,) = struct.unpack_from("<I", body, start + 4 * i)
        assert codes[place] == 2**32 - 1
        (codes[place],) = struct.unpack_from("<Q", body, wide + 8 * i)


def _unchain(codes: list[int], base: int, follows: list[int] | None) -> list[int]:
    values, value = [], base
    for row, code in enumerate(codes):
        value += code // 2 if code % 2 == 0 else -(code + 1) // 2
        values.append(value)
        value += follows[row] if follows else 0
    return values
