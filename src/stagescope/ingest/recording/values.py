"""Columns of records as Polars columns: numbers with null for unknown ones, and texts for their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stagescope.record.format import NONE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

SMALL_NUMBER = 2**16
"""Names below this number are found in an array, without sorting their numbers."""


def nullable(values: npt.NDArray[Any]) -> pl.Series:
    """Return numbers with null in place of NONE."""
    series = pl.Series(values)
    if not (values == NONE).any():
        return series
    return series.to_frame("v").select(pl.when(pl.col("v") != NONE).then("v")).to_series()


def storable(text: object) -> str:
    """Return a text that tables and files can hold: half of a surrogate pair, which JSON allows, is escaped."""
    found = str(text)
    return found if found.isascii() else found.encode("utf-8", "backslashreplace").decode()


def texts(numbered: Sequence[tuple[npt.NDArray[np.uint32], Mapping[int, str]]]) -> pl.Series:
    """Return the strings of numbers, of several processes with names of their own, one after the other.

    0 is null, and a missing name is shown by its number.
    """
    places: dict[str | None, int] = {None: 0}
    found = []
    for numbers, names in numbered:
        used, place = _numbered(numbers)
        own = [names.get(int(number), f"name {number} (missing)") if number else None for number in used]
        found.append(np.array([places.setdefault(name, len(places)) for name in own], np.uint32)[place])
    if len(places) == 1:
        return pl.repeat(None, sum(map(len, found)), dtype=pl.String, eager=True)
    return pl.Series(list(places), dtype=pl.String).gather(np.concatenate(found))


def _numbered(numbers: npt.NDArray[np.uint32]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.intp]]:
    """Return the distinct numbers, and the place of each number among them."""
    highest = int(numbers.max(initial=0))
    if highest >= SMALL_NUMBER:  # of a damaged recording
        return np.unique(numbers, return_inverse=True)
    is_used = np.zeros(highest + 1, np.bool_)
    is_used[numbers] = True
    places = np.cumsum(is_used) - 1
    return np.flatnonzero(is_used).astype(np.uint32), places[numbers]
