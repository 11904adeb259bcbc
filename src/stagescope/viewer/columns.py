"""Tables as column blobs, the format in which the browser viewer gets them from a page or from the local server.

docs/viewer-format.md describes the bytes. In short: a JSON head, then every column as little-endian unsigned
numbers of one width, byte-shuffled (all first bytes, then all second bytes), and all of it deflated. Whole numbers
are offsets from a base, which the head holds as decimal text: a number in JSON is a double, and nanoseconds since
1970 do not fit into one.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    Codes = npt.NDArray[np.unsignedinteger[Any]]

FORMAT = 1
"""Version of the blob's layout; a reader refuses any other."""

LEVEL = 6
ALIGNMENT = 8
WIDTHS = ((1, np.uint8), (2, np.uint16), (4, np.uint32), (8, np.uint64))
ESCAPE = 0xFFFFFFFF
"""The 4-byte code that replaces a wider one; the wide ones are listed separately."""

FEW_ESCAPES_FRACTION = 1 / 64


class _Coded(NamedTuple):
    """One column: its entry in the head, its bytes, and the escaped codes (places, then codes)."""

    head: dict[str, Any]
    planes: bytes
    escapes: bytes = b""


def encode_columns(
    frame: pl.DataFrame,
    *,
    chained: Mapping[str, str | None] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the rows of `frame` as one column blob.

    `chained` names whole-number columns without nulls that are stored as the distance from the row before; its value
    is a second column that is added to the row before (a start is counted from the end before it), or None. `facts`
    is JSON that goes into the head. Columns may be whole numbers of up to 64 bits, booleans, doubles, text,
    or an enumeration; every one may hold nulls. Raises TypeError for any other type.
    """
    coded = [_encode(frame, name, dict(chained or {})) for name in frame.columns]
    columns, offset = [], 0
    for column in coded:
        head = {**column.head, "offset": offset}
        offset += _padded(len(column.planes))
        if column.escapes:
            head["escapes_offset"] = offset
            offset += _padded(len(column.escapes))
        columns.append(head)
    head = {"format": FORMAT, "rows": frame.height, "columns": columns, "facts": dict(facts or {})}
    text = json.dumps(head, separators=(",", ":"), allow_nan=False).encode()
    text = text.ljust(_padded(len(text) + 4) - 4)
    packer = zlib.compressobj(LEVEL)
    parts = [packer.compress(len(text).to_bytes(4, "little") + text)]
    bodies = (body for column in coded for body in (column.planes, column.escapes))
    parts.extend(packer.compress(body.ljust(_padded(len(body)), b"\0")) for body in bodies)
    return b"".join([*parts, packer.flush()])


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _encode(frame: pl.DataFrame, name: str, chained: dict[str, str | None]) -> _Coded:
    column = frame[name]
    if name in chained:
        return _chain(column, chained[name], frame)
    if column.dtype == pl.Boolean:
        return _plain(name, column.cast(pl.UInt8))
    if column.dtype.is_float():
        values = column.cast(pl.Float64).fill_null(float("nan")).to_numpy()
        return _Coded({"name": name, "type": "f64"}, _shuffle(values.astype("<f8")))
    if column.dtype.is_integer():
        return _plain(name, column)
    if column.dtype in (pl.String, pl.Enum, pl.Categorical, pl.Null):
        return _text(name, column.cast(pl.String))
    raise TypeError(f"column {name!r} of type {column.dtype} has no place in a column blob")


def _text(name: str, column: pl.Series) -> _Coded:
    """Return text as numbers of words, with the words in the head."""
    words = column.drop_nulls().unique(maintain_order=True)
    numbers = column.replace_strict(words, pl.int_range(len(words), eager=True), return_dtype=pl.Int64)
    coded = _plain(name, numbers)
    return coded._replace(head={**coded.head, "words": words.to_list()})


def _plain(name: str, column: pl.Series) -> _Coded:
    """Return value = base + code, or with nulls: code 0 is null, else value = base + code - 1."""
    lowest = column.min()
    base = lowest if isinstance(lowest, int) else 0
    nullable = column.null_count() > 0
    # Two's complement: the difference of any two signed 64-bit numbers is right as an unsigned one.
    values = column.fill_null(base).cast(pl.Int64).to_numpy().astype(np.uint64)
    codes = values - np.uint64(base % 2**64)
    if nullable:
        codes = np.where(column.is_null().to_numpy(), np.uint64(0), codes + np.uint64(1))
    return _coded({"name": name, "base": str(base)} | ({"nullable": True} if nullable else {}), codes)


def _chain(column: pl.Series, follows: str | None, frame: pl.DataFrame) -> _Coded:
    """Return distances from the row before (plus its `follows`), from the lowest value for the first row."""
    lowest = column.min()
    base = lowest if isinstance(lowest, int) else 0
    before = column.shift(1)
    if follows is not None:
        before = before + frame[follows].cast(pl.Int64).shift(1)
    steps = (column - before.fill_null(base)).cast(pl.Int64).to_numpy()
    codes = (steps.astype(np.uint64) << np.uint64(1)) ^ (steps >> 63).astype(np.uint64)  # zigzag
    head = {"name": column.name, "base": str(base), "chained": True}
    return _coded(head | ({"follows": follows} if follows is not None else {}), codes)


def _coded(head: dict[str, Any], codes: npt.NDArray[np.uint64]) -> _Coded:
    """Return codes in the narrowest width that holds them, with a few outliers as escapes."""
    highest = int(codes.max()) if len(codes) else 0
    if highest >= ESCAPE:
        places = np.flatnonzero(codes >= ESCAPE)
        if len(places) <= len(codes) * FEW_ESCAPES_FRACTION:
            narrow = codes.astype(np.uint32)
            narrow[places] = ESCAPE
            escapes = places.astype("<u4").tobytes().ljust(_padded(4 * len(places)), b"\0")
            head = {**head, "type": "u4", "escapes": len(places)}
            return _Coded(head, _shuffle(narrow), escapes + codes[places].astype("<u8").tobytes())
    width, dtype = next((width, dtype) for width, dtype in WIDTHS if highest < 256**width)
    return _Coded({**head, "type": f"u{width}"}, _shuffle(codes.astype(dtype)))


def _shuffle(values: npt.NDArray[Any]) -> bytes:
    """Return the bytes of all values, the lowest byte of every value first."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return little.view(np.uint8).reshape(-1, values.dtype.itemsize).T.tobytes() if len(values) else b""
