"""Moments in microseconds, as a Chrome trace has them, to whole nanoseconds.

A trace without a base counts from the Unix epoch: 1.7e15 microseconds, which a double holds whole and to a quarter of
one. A thousand times as many it holds to 256 only, so the whole microseconds are multiplied as integers.
"""

from __future__ import annotations

import polars as pl


def nanoseconds(microseconds: pl.Expr) -> pl.Expr:
    """Return the nearest nanosecond of Float64 microseconds, as Int64; they must be finite and below 9e15."""
    whole = microseconds.floor()
    return whole.cast(pl.Int64) * 1000 + ((microseconds - whole) * 1000).round().cast(pl.Int64)
