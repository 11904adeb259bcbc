"""Counters as the viewer reads them: by name, row and time, with the highest of many values that are close together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.viewer.columns import encode_columns
from stagescope.vocabulary.counters import COUNTERS

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_VALUES = 200_000
"""Of more, the highest one of each part of the run is sent."""


def counter_section(counters: pl.DataFrame, ranks: Sequence[int], base_ns: int) -> bytes | None:
    """Return a column blob of a table COUNTERS, None if none of these ranks has any.

    Columns: row, time (from the base, ns), value, name, unit, sorted by name, row and time; the names of the recorder
    come first, in its order. Counters of a rank that differ in the device only are one.
    """
    shown = counters.filter(pl.col("rank").is_in(list(ranks)) & pl.col("value").is_finite())
    if shown.is_empty():
        return None
    kept, is_thinned = _thinned(shown)
    known = {counter.name: place for place, counter in enumerate(COUNTERS)}
    rows = (
        kept.with_columns(
            place=pl.col("name").replace_strict(known, default=len(known), return_dtype=pl.Int32),
            row=pl.col("rank").replace_strict(ranks, range(len(ranks)), return_dtype=pl.Int32),
            time=pl.col("time_ns") - base_ns,
        )
        .sort("place", "name", "row", "time")
        .select("row", "time", "value", "name", "unit")
    )
    return encode_columns(rows, facts={"thinned": is_thinned})


def _thinned(counters: pl.DataFrame) -> tuple[pl.DataFrame, bool]:
    """Return at most about MOST_VALUES rows, and whether some were left out."""
    if counters.height <= MOST_VALUES:
        return counters, False
    series = counters.select("rank", "name").n_unique()
    parts = max(MOST_VALUES // series, 1)
    first, last = counters["time_ns"].min(), counters["time_ns"].max()
    part = ((pl.col("time_ns") - first).cast(pl.Float64) * parts / (last - first + 1)).cast(pl.Int64)  # type: ignore[operator]  # whole numbers
    highest = (
        counters.sort("time_ns")
        .group_by("rank", "name", part=part, maintain_order=True)
        .agg(pl.all().sort_by("value").last())
    )
    return highest.drop("part"), True
