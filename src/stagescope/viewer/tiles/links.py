"""The links of one micro-batch, for the local server: a page has all links as a table instead (viewer/links.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stagescope.viewer.links import ACTION_COLUMNS, ACTION_PHASES, TooManyPairsError, find_pairs
from stagescope.viewer.tiles.levels import Part, Placed, TooManyError
from stagescope.viewer.tiles.records import LANE_COUNT, SPAN, none_of
from stagescope.viewer.tiles.tiles import span_frame

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stagescope.viewer.tiles.levels import Levels

    Ids = np.ndarray[Any, np.dtype[np.int64]]


def find_links(levels: Levels, meta: Mapping[str, Any], span_id: int, *, whole: bool) -> dict[str, Any]:
    """Return `Links` (web/src/model/source.ts): the direct neighbors of an action, or all links of its micro-batch.

    Raises TooManyError if the step holds too many spans to be searched, or too many ranks that the recorded layout
    does not distinguish.
    """
    own = _at(levels, np.array([span_id]))
    actions = _actions_of_microbatch(levels, meta, own)
    try:
        pairs = find_pairs(actions, _coordinates(meta))
    except TooManyPairsError:
        raise TooManyError from None
    if not whole:
        pairs = pairs.filter((pl.col("from") == span_id) | (pl.col("to") == span_id))
    ids = np.array(sorted({span_id, *pairs["from"], *pairs["to"]}))
    return {"spans": span_dicts(levels, ids), "links": [list(pair) for pair in pairs.rows()]}


def span_dicts(levels: Levels, ids: Ids) -> list[dict[str, Any]]:
    """Return spans with all recorded facts, under the names of docs/viewer-format.md; `ids` are in ascending order."""
    frame = span_frame(levels, _at(levels, ids))
    known = ("pair", "peer", "bytes", "wait", "wait_duration", "name")
    absent = dict.fromkeys(name for name in known if name not in frame.columns)
    return [absent | row for row in frame.iter_rows(named=True)]


def _at(levels: Levels, ids: Ids) -> Placed:
    return levels.spans.at(levels.spans.track_of(ids), ids, ids + 1)


def _coordinates(meta: Mapping[str, Any]) -> pl.DataFrame:
    columns = {name: meta["ranks"][name] for name in ("pipeline", "tp", "cp")}
    schema = dict.fromkeys(columns, pl.Int64)
    return pl.DataFrame(columns, schema=schema).with_row_index("row")


def _actions_of_microbatch(levels: Levels, meta: Mapping[str, Any], own: Placed) -> pl.DataFrame:
    """Return the actions of the same micro-batch, step and pipeline, with the columns ACTION_COLUMNS."""
    record = own.records[0]
    nulls = [record[name] == none_of(SPAN, name) for name in ("microbatch", "stage")]
    if record["kind"] not in ACTION_PHASES or any(nulls):
        return pl.DataFrame(schema=dict.fromkeys(ACTION_COLUMNS, pl.Int64))
    pipeline = meta["ranks"]["pipeline"]
    own_row = int(own.track[0]) // LANE_COUNT
    rows = np.array([row for row, one in enumerate(pipeline) if one == pipeline[own_row]])
    step = int(record["step"])
    try:
        found = levels.spans_in(Part(0, levels.shape.end + 1, rows))
    except TooManyError:
        # Spans of one step may reach beyond its times by a little, so that all times are searched where possible.
        found = levels.spans_in(Part(*_times_of(meta["steps"], step), rows))
    records = found.records
    same = (records["microbatch"] == record["microbatch"]) & (records["step"] == step)
    same &= np.isin(records["kind"], list(ACTION_PHASES)) & (records["stage"] != none_of(SPAN, "stage"))
    found = found.take(same)
    columns = {name: found.records[name].astype(np.int64) for name in ("kind", "step", "stage", "microbatch")}
    return pl.DataFrame({"id": found.place, "row": found.track // LANE_COUNT, **columns})


def _times_of(steps: Sequence[Mapping[str, Any]], step: int) -> tuple[int, int]:
    for one in steps:
        if one["step"] == step:
            return int(one["start"]), int(one["end"]) + 1
    raise TooManyError
