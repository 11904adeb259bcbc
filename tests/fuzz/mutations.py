"""What a mutator is, and the mutators that apply to the bytes and the text of any file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

Change = Callable[[Path, Random], None]


class Mutator(NamedTuple):
    """A way to damage a file in place.

    With `is_revealed`, the format always has the redundancy to notice the damage, so a different result without a
    diagnostic is a failure. Otherwise the format's own check of the damaged bytes decides (formats.py).
    """

    name: str
    apply: Change
    is_revealed: bool = False


def of_bytes(change: Callable[[bytes, Random], bytes], *, is_revealed: bool = False) -> Mutator:
    """Return a mutator of the content of a file; its name is that of the function."""

    def apply(path: Path, chance: Random) -> None:
        path.write_bytes(change(path.read_bytes(), chance))

    return Mutator(change.__name__, apply, is_revealed)


def chunk(data: bytes, chance: Random) -> tuple[int, int]:
    """Return the start and end of a random part, short ones as likely as long ones."""
    length = min(len(data), int(2 ** chance.uniform(0, 13)))
    start = chance.randrange(len(data) - length + 1) if data else 0
    return start, start + length


def flip_bit(data: bytes, chance: Random) -> bytes:
    """Flip one bit."""
    return _flipped(data, chance, 1)


def flip_bits(data: bytes, chance: Random) -> bytes:
    """Flip several bits."""
    return _flipped(data, chance, chance.randrange(2, 40))


def _flipped(data: bytes, chance: Random, count: int) -> bytes:
    changed = bytearray(data)
    for _ in range(count if data else 0):
        changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def truncate(data: bytes, chance: Random) -> bytes:
    """Cut off the end."""
    return data[: chance.randrange(len(data) + 1)]


def truncate_slightly(data: bytes, chance: Random) -> bytes:
    """Cut off the last bytes."""
    return data[: -chance.randrange(1, 40)]


def empty(data: bytes, chance: Random) -> bytes:  # noqa: ARG001 - the signature of all mutators
    """Remove everything."""
    return b""


def delete_chunk(data: bytes, chance: Random) -> bytes:
    """Delete a part."""
    start, end = chunk(data, chance)
    return data[:start] + data[end:]


def duplicate_chunk(data: bytes, chance: Random) -> bytes:
    """Repeat a part."""
    start, end = chunk(data, chance)
    return data[:end] + data[start:]


def swap_chunks(data: bytes, chance: Random) -> bytes:
    """Exchange two neighboring parts."""
    start, end = chunk(data, chance)
    middle = (start + end) // 2
    return data[:start] + data[middle:end] + data[start:middle] + data[end:]


def zero_chunk(data: bytes, chance: Random) -> bytes:
    """Overwrite a part with zeros, as a lost block of a disk does."""
    start, end = chunk(data, chance)
    return data[:start] + bytes(end - start) + data[end:]


def random_chunk(data: bytes, chance: Random) -> bytes:
    """Overwrite a part with random bytes."""
    start, end = chunk(data, chance)
    return data[:start] + chance.randbytes(end - start) + data[end:]


def insert_bytes(data: bytes, chance: Random) -> bytes:
    """Insert random bytes."""
    start, _ = chunk(data, chance)
    return data[:start] + chance.randbytes(chance.randrange(1, 64)) + data[start:]


def append_bytes(data: bytes, chance: Random) -> bytes:
    """Append random bytes, or zeros."""
    count = chance.randrange(1, 5000)
    return data + chance.choice([bytes(count), chance.randbytes(count)])


BYTES = tuple(
    map(
        of_bytes,
        (
            flip_bit, flip_bit, flip_bits, truncate, truncate_slightly, empty, delete_chunk, duplicate_chunk,
            swap_chunks, zero_chunk, random_chunk, insert_bytes, append_bytes,
        ),
    )
)  # fmt: skip
"""Mutators of the bytes of any file."""

NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
NUMBERS = (
    b"0", b"-1", b"-0.0", b"1e30", b"1e308", b"-1e308", b"1e999", b"NaN", b"Infinity", b"-Infinity", b"2147483648",
    b"-2147483648", b"4294967296", b"9223372036854775807", b"-9223372036854775808", b"9223372036854775808",
    b"18446744073709551616", b"9" * 400, b"0.1e-400", b"1.5", b"null", b'""', b"true", b"0x10", b"1_000", b"",
)  # fmt: skip
"""Numbers that do not fit, and what may be in the place of a number."""


def odd_number(data: bytes, chance: Random) -> bytes:
    """Replace a number by one that may not fit."""
    found = list(NUMBER.finditer(data))
    if not found:
        return data
    place = chance.choice(found)
    return data[: place.start()] + chance.choice(NUMBERS) + data[place.end() :]


TEXTS = (
    b"\xff", b"\xc3", b"\xed\xa0\x80", b"\x00", b"\x1b]52;c;AAAA\x07", b"\xef\xbb\xbf", b"\\ud800", b"\\u0000",
    b"\r\n", b"\xe2\x80\xae", b'"', b"\\", b",", b"}", b"]", b"{", b"[", b"\xf4\x90\x80\x80",
)  # fmt: skip
"""Bytes that text or JSON may not contain, or not in every place."""


def odd_text(data: bytes, chance: Random) -> bytes:
    """Insert something that text, or this place in it, may not contain."""
    place = chance.randrange(len(data) + 1)
    return data[:place] + chance.choice(TEXTS) + data[place:]


def deep_nesting(data: bytes, chance: Random) -> bytes:
    """Insert many opening brackets."""
    place = chance.randrange(len(data) + 1)
    opening, closing = chance.choice([(b"[", b"]"), (b'{"a":', b"}")])
    depth = int(10 ** chance.uniform(1, 5.5))
    nested = opening * depth + b"0" + closing * depth * chance.randrange(2)
    return data[:place] + nested + data[place:]


def long_text(data: bytes, chance: Random) -> bytes:
    """Insert a megabyte of letters."""
    place = chance.randrange(len(data) + 1)
    return data[:place] + b"x" * 1_000_000 + data[place:]


def duplicate_line(data: bytes, chance: Random) -> bytes:
    """Repeat a line."""
    lines = data.splitlines(keepends=True)
    place = chance.randrange(len(lines) + 1)
    return b"".join([*lines[:place], *lines[max(0, place - 1) :]])


def delete_line(data: bytes, chance: Random) -> bytes:
    """Delete a line."""
    lines = data.splitlines(keepends=True)
    place = chance.randrange(len(lines) + 1)
    return b"".join([*lines[:place], *lines[place + 1 :]])


def swap_lines(data: bytes, chance: Random) -> bytes:
    """Exchange two lines."""
    lines = data.splitlines(keepends=True)
    if lines:
        a, b = chance.randrange(len(lines)), chance.randrange(len(lines))
        lines[a], lines[b] = lines[b], lines[a]
    return b"".join(lines)


def other_encoding(data: bytes, chance: Random) -> bytes:
    """Write the text in another encoding."""
    text = data.decode("utf-8", "replace")
    return text.encode(chance.choice(["utf-16", "utf-16-le", "utf-32", "utf-8-sig", "cp037"]), "replace")


TEXT = tuple(
    map(
        of_bytes,
        (
            odd_number, odd_number, odd_number, odd_text, odd_text, deep_nesting, long_text, duplicate_line,
            delete_line, swap_lines, other_encoding,
        ),
    )
)  # fmt: skip
"""Mutators of text: JSON, CSV and logs."""
