"""Text that is not UTF-8: find it, replace it, and report it, in every reader of text by the same rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from pathlib import Path


def as_utf8(text: bytes) -> bytes:
    """Return the text with U+FFFD in the place of bytes that are not UTF-8."""
    if text.isascii():
        return text
    return text.decode("utf-8", "replace").encode()


def first_invalid(text: bytes) -> int | None:
    """Return the position of the first byte that is not UTF-8; None if all are."""
    if text.isascii():
        return None
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start
    return None


def invalid_text(path: Path, at: int, rank: int | None = None, count: int = 1) -> Diagnostic:
    """Return the diagnostic of a file with text that is not UTF-8, `count` parts of it, the first at byte `at`."""
    text = "parts of the file are not UTF-8; U+FFFD is in their place"
    where = f"first at byte {at}"
    return Diagnostic("warning", text, str(path), rank, where, count, code="text.invalid")


def valid_text(data: bytes, path: Path, diagnostics: list[Diagnostic], rank: int | None = None) -> bytes:
    """Return the data as UTF-8; if a part had to be replaced, a warning is added to the diagnostics."""
    place = first_invalid(data)
    if place is None:
        return data
    diagnostics.append(invalid_text(path, place, rank))
    return as_utf8(data)
