"""Statistics of a selected part of the picture.

The definition is in docs/viewer.md, "Statistics of a selection". A page computes the same in the browser
(web/src/model/statistics.ts); tests/data/viewer/cases.json holds the cases that both are tested with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stagescope.model.coverage import unite
from stagescope.viewer.tiles.records import FACTS, LANE_COUNT, none_of
from stagescope.vocabulary.kinds import COMPUTE, LANE_CODES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.viewer.tiles.levels import Levels, Part, Placed

KIND_CODES = 256
ROWS_AT_ONCE_SPANS = 1_000_000
"""Rows are read together until they hold about this many spans."""


@dataclass
class _Sums:
    """Running sums."""

    count: Any
    sum_ns: Any
    busy_ns: int = 0
    wait_ns: int = 0


def select_statistics(levels: Levels, part: Part, idle: pl.DataFrame | None = None) -> dict[str, Any]:
    """Return the `Statistics` of a part (web/src/model/source.ts).

    `idle` has row, start, duration and waiting_for. The time grows with the spans in the part, the memory does not.
    """
    sums = _Sums(np.zeros(KIND_CODES, np.int64), np.zeros(KIND_CODES, np.int64))
    for some in _row_groups(levels, part):
        _add_spans(sums, levels.spans_in(some), some)
        sums.wait_ns += _wait_ns(levels, some)
    kinds = np.flatnonzero(sums.count)
    window_ns = len(part.rows) * (part.end - part.start)
    return {
        "start": part.start,
        "end": part.end,
        "row_count": len(part.rows),
        "span_count": int(sums.count.sum()),
        "sum_ns": int(sums.sum_ns.sum()),
        "busy_ns": sums.busy_ns,
        "idle_ns": window_ns - sums.busy_ns,
        "wait_ns": sums.wait_ns,
        "kinds": [
            {"kind": int(kind), "count": int(sums.count[kind]), "sum_ns": int(sums.sum_ns[kind])}
            for kind in kinds
        ],
        "waits": [] if idle is None else _waits(idle, part),
    }


def _row_groups(levels: Levels, part: Part) -> Iterator[Part]:
    """Yield the part a few rows at a time; a single row is never cut."""
    first = levels.spans.index.first
    sizes = first[(part.rows + 1) * LANE_COUNT] - first[part.rows * LANE_COUNT]
    group = np.cumsum(sizes) // ROWS_AT_ONCE_SPANS
    for number in np.unique(group):
        yield part._replace(rows=part.rows[group == number])


def _add_spans(sums: _Sums, found: Placed, part: Part) -> None:
    records = found.records
    start = np.maximum(records["start"], part.start)
    end = np.minimum(records["start"] + records["duration"], part.end)
    # A span of zero length at the very start is outside, as in the page.
    inside = records["start"] + records["duration"] > part.start
    kind, inside_ns = records["kind"], np.where(inside, end - start, 0)
    counts = np.bincount(kind[inside], minlength=KIND_CODES)
    sums.count += counts
    for code in np.flatnonzero(counts):  # a sum of doubles, as np.bincount gives, would not be exact
        sums.sum_ns[code] += inside_ns[kind == code].sum()
    compute = inside & (records["lane"] == LANE_CODES[COMPUTE])
    sums.busy_ns += _union_ns(found.track[compute], start[compute], end[compute])


def _wait_ns(levels: Levels, part: Part) -> int:
    """Return the union of the waits of all spans of the rows: a wait may end after its transfer."""
    if levels.facts is None:
        return 0
    first = levels.spans.index.first
    begin, stop = first[part.rows * LANE_COUNT], first[(part.rows + 1) * LANE_COUNT]
    waits = levels.facts.at(part.rows, begin, stop)
    known = waits.records["wait"] != none_of(FACTS, "wait")
    waits = waits.take(known)
    spans = levels.spans.at(part.rows, begin, stop).take(known)
    start = spans.records["start"] + waits.records["wait"]
    end = np.minimum(start + waits.records["wait_duration"], part.end)
    return _union_ns(waits.track, np.maximum(start, part.start), end)


def _union_ns(group: Any, start: Any, end: Any) -> int:
    """Return the summed length of the union of each group's intervals; reversed ones count as empty."""
    there = end > start
    group, start, end = group[there], start[there], end[there]
    if not ((start[1:] < end[:-1]) & (group[1:] == group[:-1])).any():
        return int((end - start).sum())
    united = unite(pl.DataFrame({"rank": group, "start_ns": start, "end_ns": end}))
    return int((united["end_ns"] - united["start_ns"]).sum())


def _waits(idle: pl.DataFrame, part: Part) -> list[dict[str, Any]]:
    end = pl.min_horizontal(pl.col("start") + pl.col("duration"), part.end)
    inside = idle.filter(
        pl.col("row").is_in(part.rows.tolist()) & pl.col("waiting_for").is_not_null()
    ).select("waiting_for", sum_ns=end - pl.max_horizontal("start", part.start))
    sums = (
        inside.filter(pl.col("sum_ns") > 0).group_by("waiting_for", maintain_order=True).agg(pl.sum("sum_ns"))
    )
    return sums.sort("sum_ns", descending=True, maintain_order=True).to_dicts()
