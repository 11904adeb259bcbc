"""Replace what JSON does not allow but writers of traces produce: NaN, text that is not UTF-8, lone surrogates.

Python's `json` writes NaN and Infinity, and a lone surrogate for each byte of a file name that is not UTF-8
(`surrogateescape`). Every reader of JSON decodes with the same rule: valid JSON first, repaired JSON if that fails.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from stagescope.ingest.utf8 import as_utf8

if TYPE_CHECKING:
    from collections.abc import Callable

REFUSALS = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""What msgspec raises for JSON that it cannot decode; it validates UTF-8 only in the values that it returns."""

NO_NUMBERS = re.compile(rb"(?<=[:,\[])(\s*)(?:NaN|-?Infinity)(?=\s*[,\]}])")
ESCAPES = re.compile(
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\[^u])|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
"""Valid pairs of surrogates and other escapes in the group; a surrogate without its partner outside of it."""

POSITION = re.compile(r" \(byte (\d+)\)")


def decode(decode_json: Callable[[bytes], Any], text: bytes) -> Any:
    """Return `decode_json(text)`, or of the repaired text if that fails. Raises one of REFUSALS, for the text as is."""
    try:
        return decode_json(text)
    except REFUSALS:
        fixed = repaired(text)
        if fixed == text:
            raise
        try:
            return decode_json(fixed)
        except REFUSALS:
            pass  # the positions in its message would be those of the repaired text
        raise


def repaired(text: bytes) -> bytes:
    """Return JSON with null in the place of NaN and Infinity, and U+FFFD in that of invalid text."""
    fixed = NO_NUMBERS.sub(rb"\1null", as_utf8(text))
    return ESCAPES.sub(lambda found: found[1] or rb"\ufffd", fixed) if b"\\u" in fixed else fixed


def reason_of(refusal: BaseException) -> tuple[str, int | None]:
    """Return why JSON was refused, without its position, and the position in the text, if it is known."""
    text = str(refusal)
    found = POSITION.search(text)
    if isinstance(refusal, UnicodeDecodeError):
        return "text that is not UTF-8", None
    return POSITION.sub("", text), int(found[1]) if found else None
