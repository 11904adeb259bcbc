"""Sizes in bytes with units."""

from __future__ import annotations

import re

from stagescope.vocabulary.errors import UsageError

_UNITS: dict[str, int] = {"": 1} | {
    letter + between: base**power
    for power, letter in enumerate("kmgt", 1)
    for between, base in (("", 1000), ("i", 1024))
}
_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_SIZE = re.compile(r"(\d+)\s*([kmgt]?i?)b?", re.IGNORECASE | re.ASCII)


def parse_size_bytes(text: str) -> int:
    """Return the number of bytes of a text such as ``512MiB``, ``2GB``, ``64k`` or ``1000000``.

    k, M, G and T are powers of 1000, Ki, Mi, Gi and Ti powers of 1024. Raises UsageError for anything else.

    >>> parse_size_bytes("2GiB")
    2147483648
    """
    found = _SIZE.fullmatch(text.strip())
    factor = _UNITS.get(found[2].lower()) if found else None
    if found is None or factor is None:
        raise UsageError.size_malformed(text)
    return int(found[1]) * factor


def size_text(size_bytes: float) -> str:
    """Return a number of bytes with a binary unit and at most four digits.

    >>> size_text(61.25 * 2**30), size_text(512), size_text(-3 * 2**20)
    ('61.25 GiB', '512 B', '-3 MiB')
    """
    unit = min(max(int(abs(size_bytes)).bit_length() - 1, 0) // 10, len(_BINARY_UNITS) - 1)
    return f"{size_bytes / 1024**unit:.4g} {_BINARY_UNITS[unit]}"
