"""Lanes: slices that really ran at the same time go side by side, slices that only touch share a lane.

Both trace consumers lose or mis-nest a slice that overlaps its neighbor on one track by a single nanosecond,
so after `assign_lanes` no two slices of one lane overlap at all.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
import polars as pl

ROUNDING_NS = 1_000
"""Overlaps up to this long may be rounding: traces with microsecond stamps are off by that much."""

ROUNDING_SHARE = 10
"""... unless the overlap is more than one part in this many of the shorter slice."""


class Lanes(NamedTuple):
    """Slices with a lane each, and how many ends were moved back to the start of the next slice."""

    slices: pl.DataFrame
    trimmed_count: int


def assign_lanes(slices: pl.DataFrame, group: list[str]) -> Lanes:
    """Return `slices` sorted by `group`, start and end, with a `lane` that counts from 0 in each group.

    Needs start_ns <= end_ns. An overlap within rounding (see ROUNDING_NS) is removed by ending the earlier
    slice where the later one starts; any longer one puts the later slice on the first lane that is free.
    """
    ordered = slices.sort(*group, "start_ns", "end_ns", maintain_order=True)
    duration = pl.col("end_ns") - pl.col("start_ns")
    overlap = pl.col("end_ns") - pl.col("start_ns").shift(-1).over(group)
    shorter = pl.min_horizontal(duration, duration.shift(-1).over(group))
    is_rounding = overlap.is_between(1, ROUNDING_NS) & (overlap * ROUNDING_SHARE <= shorter)
    ordered = ordered.with_columns(
        end_ns=pl.when(is_rounding).then(pl.col("end_ns") - overlap).otherwise("end_ns"),
        trimmed=is_rounding.fill_null(value=False),
    )
    latest = pl.col("end_ns").cum_max().shift(1).over(group)
    ordered = ordered.with_columns(
        crowded=(pl.col("start_ns") < latest).any().over(group).fill_null(value=False)
    )
    lane = np.zeros(ordered.height, dtype=np.int32)
    crowded = ordered["crowded"].to_numpy()
    lane[crowded] = _lanes_of_crowded(ordered.filter("crowded"), group)
    trimmed_count = int(ordered["trimmed"].sum())
    return Lanes(ordered.drop("crowded", "trimmed").with_columns(lane=pl.Series(lane)), trimmed_count)


def _lanes_of_crowded(slices: pl.DataFrame, group: list[str]) -> list[int]:
    """Return a lane per slice, each time the first one that is free; one pass in order of start."""
    lanes: list[int] = []
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    lane_count = 0
    starts_group = slices.select(pl.struct(group).rle_id().diff().fill_null(1) != 0).to_series()
    columns = (starts_group, slices["start_ns"], slices["end_ns"])
    for is_first, start_ns, end_ns in zip(*(column.to_list() for column in columns), strict=True):
        if is_first:
            busy, free, lane_count = [], [], 0
        while busy and busy[0][0] <= start_ns:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, lane_count)
            lane_count += 1
        lane = heapq.heappop(free)
        heapq.heappush(busy, (end_ns, lane))
        lanes.append(lane)
    return lanes
