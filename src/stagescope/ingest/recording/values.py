"""Columns of records as Polars columns: numbers with null for unknown ones, and texts for their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stagescope.record.format import NONE

if TYPE_CHECKING:
    import numpy.typing as npt


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


def texts(numbers: npt.NDArray[np.uint32], names: dict[int, str]) -> pl.Series:
    """Return the strings of the numbers; 0 is null, and a missing name is shown by its number."""
    if not numbers.any():
        return pl.repeat(None, len(numbers), dtype=pl.String, eager=True)
    used = np.unique(numbers)
    found = [names.get(int(number), f"name {number} (missing)") if number else None for number in used]
    return pl.Series(found, dtype=pl.String).gather(np.searchsorted(used, numbers))
