"""Counters as the viewer reads them: by name, row and time, with the highest of many values that are close together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.large_tables import reduced
from stagescope.model.lazy import TableParts
from stagescope.viewer.columns import encode_columns
from stagescope.vocabulary.counters import COUNTERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_VALUES = 200_000
"""Of more, the highest one of each part of the run is sent."""


def counter_section(parts: Iterable[pl.DataFrame], ranks: Sequence[int], base_ns: int) -> bytes | None:
    """Return a column blob of a table COUNTERS, None if none of these ranks has any.

    The table is there in parts, which are read twice: those of a large run are larger than memory. Columns: row, time
    (from the base, ns), value, name, unit, sorted by name, row and time; the names of the recorder come first, in its
    order. Counters of a rank that differ in the device only are one.
    """
    is_shown = pl.col("rank").is_in(list(ranks)) & pl.col("value").is_finite()
    kept, is_thinned = _thinned(TableParts(parts, lambda rows: rows.filter(is_shown)))
    if kept.is_empty():
        return None
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


def _thinned(parts: Iterable[pl.DataFrame]) -> tuple[pl.DataFrame, bool]:
    """Return at most about MOST_VALUES rows, and whether some were left out."""
    series = reduced(parts, _measure_series)
    if int(series["count"].sum()) <= MOST_VALUES:
        return pl.concat(parts), False
    in_each = max(MOST_VALUES // series.height, 1)
    first, last = series["first_ns"].min(), series["last_ns"].max()
    share = (pl.col("time_ns") - first).cast(pl.Float64) * in_each / (last - first + 1)  # type: ignore[operator]  # whole numbers
    divided = TableParts(parts, lambda rows: rows.with_columns(part=share.cast(pl.Int64)))
    return reduced(divided, _find_highest).drop("part"), True


def _measure_series(rows: pl.DataFrame) -> pl.DataFrame:
    """Return how many values each series has, and from when to when; `rows` may be what was returned for some rows."""
    if "count" not in rows.columns:
        rows = rows.select("rank", "name", count=pl.lit(1, pl.Int64), first_ns="time_ns", last_ns="time_ns")
    return rows.group_by("rank", "name").agg(pl.sum("count"), pl.min("first_ns"), pl.max("last_ns"))


def _find_highest(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the highest value of each series in each part of the run, the last one of several."""
    groups = rows.sort("time_ns", maintain_order=True).group_by("rank", "name", "part", maintain_order=True)
    return groups.agg(pl.all().sort_by("value", maintain_order=True).last()).select(rows.columns)
