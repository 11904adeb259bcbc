"""Lanes: slices that ran at the same time are put side by side, slices that only touch share a lane.

Both trace viewers drop or mis-nest a slice that overlaps its neighbor on one track by a single nanosecond, so after
`assign_lanes` no two slices of one lane overlap.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

ROUNDING_NS = 1_000
"""Overlaps up to this long may be due to rounding in traces with microsecond timestamps."""

ROUNDING_SHARE = 10
"""... unless the overlap exceeds this fraction (one in so many) of the shorter slice."""


class Lanes(NamedTuple):
    """Slices with a lane each, and how many ends were moved back to the start of the next slice."""

    slices: pl.DataFrame
    trimmed_count: int


def assign_lanes(slices: pl.DataFrame, group: str) -> Lanes:
    """Return `slices` sorted by `group`, start and end, with a `lane` numbered from 0 in each group.

    Requires start_ns <= end_ns. An overlap within rounding (see ROUNDING_NS) is removed by ending the earlier slice
    where the later one starts; with a longer overlap the later slice goes to the first free lane.
    """
    ordered = slices.sort(group, "start_ns", "end_ns", maintain_order=True)
    groups, start_ns, end_ns = (ordered[name].to_numpy() for name in (group, "start_ns", "end_ns"))
    # Sorted by start, slices of a group overlap only if neighbors do.
    neighbors = np.flatnonzero(groups[1:] == groups[:-1])
    overlap_ns = end_ns[neighbors] - start_ns[neighbors + 1]
    duration_ns = end_ns - start_ns
    shorter_ns = np.minimum(duration_ns[neighbors], duration_ns[neighbors + 1])
    is_rounding = (overlap_ns > 0) & (overlap_ns <= np.minimum(ROUNDING_NS, shorter_ns // ROUNDING_SHARE))
    end_ns = end_ns.copy()
    end_ns[neighbors[is_rounding]] -= overlap_ns[is_rounding]
    is_crowded = np.isin(groups, groups[neighbors[(overlap_ns > 0) & ~is_rounding]])
    lane = np.zeros(len(groups), np.int64)
    lane[is_crowded] = _first_free_lanes(groups[is_crowded], start_ns[is_crowded], end_ns[is_crowded])
    laned = ordered.with_columns(end_ns=pl.Series(end_ns), lane=pl.Series(lane))
    return Lanes(laned, int(is_rounding.sum()))


def _first_free_lanes(groups: Ints, start_ns: Ints, end_ns: Ints) -> list[int]:
    """Return a lane per slice, each time the first one that is free; one pass in order of start."""
    lanes: list[int] = []
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    lane_count, current = 0, None
    for group, start, end in zip(groups.tolist(), start_ns.tolist(), end_ns.tolist(), strict=True):
        if group != current:
            busy, free, lane_count, current = [], [], 0, group
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, lane_count)
            lane_count += 1
        lane = heapq.heappop(free)
        heapq.heappush(busy, (end, lane))
        lanes.append(lane)
    return lanes
