"""Where the elements of a JSON array begin and end, found on bytes: for whatever a decoder refuses as a whole.

Quotation marks and brackets are all that is looked at, whole columns at a time, so an element with a value that is no
JSON (NaN, a number out of range, text that was never escaped) still has its bounds, and costs itself alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

QUOTE, BACKSLASH = b'"\\'
OPENING, CLOSING = b"{[", b"}]"


class Elements(NamedTuple):
    """Bounds of the whole elements of an array: first byte and the byte behind the last one, of each.

    `end` is the byte behind the bracket that closes the array, None where it is not closed; `rest` the byte behind
    the last whole element.
    """

    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]
    end: int | None
    rest: int


def find_elements(text: bytes) -> Elements:
    """Return the objects and arrays that are elements of an array, of which `text` begins behind the opening bracket.

    Numbers and strings that are elements themselves are passed over.
    """
    codes = np.frombuffer(text, np.uint8)
    brackets = np.flatnonzero(np.isin(codes, np.frombuffer(OPENING + CLOSING, np.uint8)))
    outside = np.searchsorted(_real_quotes(codes), brackets) % 2 == 0
    brackets = brackets[outside]
    opens = np.isin(codes[brackets], np.frombuffer(OPENING, np.uint8))
    depth = np.cumsum(np.where(opens, 1, -1))
    closed = np.flatnonzero(depth < 0)
    last = int(closed[0]) if len(closed) else len(brackets)
    end = int(brackets[last]) + 1 if len(closed) else None
    depth, opens, brackets = depth[:last], opens[:last], brackets[:last]
    stops = brackets[(depth == 0) & ~opens] + 1
    starts = brackets[(depth == 1) & opens][: len(stops)]
    return Elements(starts, stops, end, int(stops[-1]) if len(stops) else 0)


def _real_quotes(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return where strings begin and end: quotation marks behind an even number of backslashes."""
    quotes = np.flatnonzero(codes == QUOTE)
    escaped = (quotes > 0) & (codes[quotes - 1] == BACKSLASH)
    if not escaped.any():
        return quotes
    others = np.flatnonzero(codes != BACKSLASH)
    before = np.searchsorted(others, quotes) - 1
    last_other = np.where(before >= 0, others[before], -1)
    real: npt.NDArray[np.int64] = quotes[(quotes - last_other) % 2 == 1]
    return real
