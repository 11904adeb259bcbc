"""Tiles: a part of the picture as a column blob (docs/viewer-format.md, "Spans" and "Server")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from stagescope.viewer.columns import encode_columns
from stagescope.viewer.tiles.levels import TooManyError
from stagescope.viewer.tiles.merge import block_records
from stagescope.viewer.tiles.records import FACTS, LANE_COUNT, unpack

if TYPE_CHECKING:
    from stagescope.viewer.tiles.levels import Levels, Part, Placed

TILE_BINS = 512
TILE_ROWS = 64
"""Length of a tile in bins, and height in rows. Most bins hold one or two blocks, so a tile has about 50,000."""

MOST_IN_TILE = 400_000
"""Upper limit of spans or blocks in one response; above it, the viewer requests a coarser level."""

MOST_COMPARED = 1_000_000
"""Upper limit of spans that the viewer gets at once to compare them (web/src/model/server.ts has it, too)."""


class Tiling(NamedTuple):
    """The levels as meta describes them: bin widths, level 0 (the spans) first, and the size of a tile."""

    levels: list[dict[str, int]]
    tile_bins: int
    tile_rows: int


def tiling(levels: Levels) -> Tiling:
    """Return the available levels. Level 0 has no bins; its nominal width is half that of level 1."""
    exponents = levels.exponents
    widths = [max(1, (1 << exponents[0]) // 2), *(1 << exponent for exponent in exponents)]
    return Tiling([{"bin_ns": width} for width in widths], TILE_BINS, TILE_ROWS)


def tile_blob(levels: Levels, level: int, part: Part) -> bytes:
    """Return a part of the picture on a level, 0 for the spans themselves. Raises TooManyError."""
    if level == 0:
        return spans_blob(levels, part, MOST_IN_TILE)
    return _blocks_blob(levels, levels.exponents[level - 1], part)


def spans_blob(levels: Levels, part: Part, most: int) -> bytes:
    """Return the spans that overlap a part of the picture. Raises TooManyError if there are more than `most`."""
    found = levels.spans_in(part)
    _check(len(found.place), most)
    frame = span_frame(levels, found)
    facts: dict[str, Any] = {"origin": _origin(frame)}
    if len(found.place) and int(found.place[-1]) - int(found.place[0]) == len(found.place) - 1:
        facts["first"] = int(found.place[0])
        frame = frame.drop("id")
    return encode_columns(_without_empty_facts(frame), chained={"start": "duration"}, facts=facts)


def span_frame(levels: Levels, found: Placed) -> pl.DataFrame:
    """Return spans with all facts, under the names of docs/viewer-format.md, and their ids."""
    frame = unpack(found.records).with_columns(
        id=pl.Series(found.place), row=pl.Series(found.track // LANE_COUNT)
    )
    facts = _facts(levels, found)
    if facts is None:
        return frame
    codes = facts["name"]
    texts = codes.replace_strict(range(len(levels.shape.names)), levels.shape.names, return_dtype=pl.String)
    return pl.concat([frame, facts.with_columns(name=texts)], how="horizontal")


def _facts(levels: Levels, found: Placed) -> pl.DataFrame | None:
    if levels.facts is None:
        return None
    place = found.place
    if not len(place):
        return unpack(levels.facts.read(0, 0))
    # Each track is read from its first to its last requested span; few in between were not requested.
    first = np.flatnonzero(np.diff(found.track, prepend=-1))
    begin, stop = place[first], np.append(place[first[1:] - 1], place[-1]) + 1
    read = levels.facts.at(found.track[first], begin, stop)
    return unpack(read.records[np.searchsorted(read.place, place)])


def _blocks_blob(levels: Levels, exponent: int, part: Part) -> bytes:
    blocks = levels.blocks_in(part, exponent)
    _check(len(blocks), MOST_IN_TILE)
    records = block_records(blocks)
    frame = pl.DataFrame(
        {
            "row": blocks.track // LANE_COUNT,
            "kind": records["kind"],
            "lane": records["lane"],
            "start": blocks.start,
            "duration": blocks.end - blocks.start,
            "count": blocks.span_count,
            "busy": records["busy"],
        }
    )
    return encode_columns(frame, chained={"start": "duration"}, facts={"origin": _origin(frame)})


def _origin(frame: pl.DataFrame) -> int:
    """Return the base of the starts of a blob: the lowest start."""
    lowest = frame["start"].min()
    return lowest if isinstance(lowest, int) else 0


def _without_empty_facts(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame without facts that no span has; the viewer treats absent columns as null."""
    empty = [
        name
        for name in FACTS.names or ()
        if name in frame.columns and frame[name].null_count() == frame.height
    ]
    return frame.drop(empty)


def _check(count: int, most: int) -> None:
    if count > most:
        raise TooManyError
