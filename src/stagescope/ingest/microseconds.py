"""Convert the microsecond timestamps of Chrome traces to whole nanoseconds.

A trace without a base time counts from the Unix epoch: about 1.7e15 microseconds, which a double resolves to a quarter
of a microsecond. Multiplied by 1000 as a double, the resolution would drop to 256 ns, so the whole microseconds are
multiplied as integers.
"""

from __future__ import annotations

import polars as pl


def nanoseconds(microseconds: pl.Expr) -> pl.Expr:
    """Return the nearest nanosecond of Float64 microseconds, as Int64; they must be finite and below 9e15."""
    whole = microseconds.floor()
    return whole.cast(pl.Int64) * 1000 + ((microseconds - whole) * 1000).round().cast(pl.Int64)
