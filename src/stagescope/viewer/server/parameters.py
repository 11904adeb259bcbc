"""Validation of request parameters: numbers within bounds, row lists and text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from stagescope.viewer.tiles.levels import Part

if TYPE_CHECKING:
    from collections.abc import Mapping

    Rows = np.ndarray[tuple[int], np.dtype[np.int64]]

WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)
ROWS = re.compile(r"\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*", re.ASCII)
MOST_TEXT = 1_000
MOST_FOUND = 100_000


class ParameterError(Exception):
    """An invalid parameter; the message is for the sender of the request."""


def whole_number(given: Mapping[str, str], name: str, low: int, high: int) -> int:
    """Return a parameter that is an integer from `low` to `high`. Raises ParameterError."""
    text = given.get(name, "")
    if not WHOLE.fullmatch(text) or not low <= int(text) <= high:
        raise ParameterError(f"{name}: expected an integer from {low} to {high}")
    return int(text)


def part_of(given: Mapping[str, str], row_count: int) -> Part:
    """Return the part of the picture given by `start`, `end` and `rows`. Raises ParameterError.

    `rows` is a list of numbers and of half-open ranges C-D: rows C to D - 1.
    """
    part = time_of(given, np.arange(row_count))
    return part._replace(rows=_rows(given.get("rows", ""), row_count))


def time_of(given: Mapping[str, str], rows: Rows) -> Part:
    """Return the part of the picture on some rows that `start` and `end` give. Raises ParameterError."""
    furthest = 1 << 59
    start, end = (whole_number(given, name, -furthest, furthest) for name in ("start", "end"))
    if end <= start:
        raise ParameterError("end: expected a time after start")
    return Part(start, end, rows)


def text_of(given: Mapping[str, str], name: str, most: int = MOST_TEXT) -> str:
    """Return a parameter that is text. Raises ParameterError where it is too long."""
    text = given.get(name, "")
    if len(text) > most:
        raise ParameterError(f"{name}: expected at most {most} characters")
    return text


def _rows(text: str, row_count: int) -> Rows:
    if not ROWS.fullmatch(text):
        raise ParameterError("rows: expected comma-separated numbers and ranges such as 0-64 (0 to 63)")
    wanted = np.zeros(row_count, np.bool_)
    for piece in text.split(","):
        low, _, high = piece.partition("-")
        stop = int(high) if high else int(low) + 1
        if not int(low) < stop <= row_count:
            raise ParameterError(f"rows: expected numbers below {row_count}, and ascending ranges")
        wanted[int(low) : stop] = True
    return np.flatnonzero(wanted)
