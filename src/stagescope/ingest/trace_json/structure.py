"""Find the bounds of the elements of a JSON array in bytes, for arrays that a decoder rejects as a whole.

Only quotation marks and brackets are examined, vectorized over the bytes. An element with an invalid value (NaN, a
number out of range, unescaped text) therefore still has bounds, and only that element is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

QUOTE, BACKSLASH = b'"\\'
OPENING, CLOSING = b"{[", b"}]"


class Elements(NamedTuple):
    """Bounds of the complete elements of an array: `starts` and `stops` (exclusive) of each.

    `end` is the position after the closing bracket of the array, None if it is not closed; `rest` is the position
    after the last complete element.
    """

    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]
    end: int | None
    rest: int


def find_elements(text: bytes) -> Elements:
    """Return the bounds of the objects and arrays in an array; `text` begins after its opening bracket.

    Elements that are numbers or strings are ignored.
    """
    # A bracket is inside a string if an odd number of quotation marks precedes it.
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
    """Return where strings begin and end: quotation marks after an even number of backslashes."""
    quotes = np.flatnonzero(codes == QUOTE)
    escaped = (quotes > 0) & (codes[quotes - 1] == BACKSLASH)
    if not escaped.any():
        return quotes
    others = np.flatnonzero(codes != BACKSLASH)
    before = np.searchsorted(others, quotes) - 1
    last_other = np.where(before >= 0, others[before], -1)
    real: npt.NDArray[np.int64] = quotes[(quotes - last_other) % 2 == 1]
    return real
