"""Spans of a run of any size, a few whole rows of the picture at a time, as chunks for build.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.viewer.span_data import viewer_spans
from stagescope.viewer.tiles.build import Chunk
from stagescope.viewer.tiles.sources import coded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stagescope.viewer.tiles.build import Extent


FACT_SOURCES = ("pair", "peer", "bytes", "wait_start_ns", "name")
"""Columns of the table SPANS from which the facts of a span (records.py) are made."""


class Rows(NamedTuple):
    """What is known of a run before its chunks are made: the rank of each row, the base of all times, the extent."""

    ranks: tuple[int, ...]
    base_ns: int
    extent: Extent


def row_chunks(rows: Rows, parts: Iterable[pl.DataFrame]) -> Iterator[Chunk]:
    """Yield parts of the table SPANS as chunks; each part has all spans of the next ranks.

    Ranks without a span are the last ones.
    """
    begin = 0
    for part in parts:
        end = begin + part["rank"].n_unique()
        placed = viewer_spans(part, rows.ranks[begin:end]).with_columns(pl.col("row") + begin)
        yield Chunk(begin, end, coded(placed, rows.extent.names, rows.base_ns))
        begin, last = end, placed
    if begin < len(rows.ranks):
        yield Chunk(begin, len(rows.ranks), coded(last.clear(), rows.extent.names, rows.base_ns))
