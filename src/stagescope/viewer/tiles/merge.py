"""Merging many short blocks into few: those in one bin of the time axis become one block.

A block as wide as a bin, or wider, stays as it is. Neighbors on a track that are narrower and start in the same bin
become one block from the first start to the latest end, of the kind that took most of its time. So the picture of a
level differs from that of the spans by less than a bin on either side, and no span is left out: counts and summed
times are those of the spans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stagescope.viewer.tiles.records import BLOCK, FULL, LANE_COUNT

if TYPE_CHECKING:
    import numpy.typing as npt

    from stagescope.viewer.tiles.records import Records

    Ints = npt.NDArray[np.int64]


class Blocks(NamedTuple):
    """Blocks in the order of their track and start, column by column.

    `track` is row x lanes + lane; `kind_busy` has, for each of the codes in `kinds`, the time that the spans of every
    block spent on it; `span_count` is how many spans they are.
    """

    track: Ints
    start: Ints
    end: Ints
    span_count: Ints
    kind_busy: Ints
    kinds: Ints

    def __len__(self) -> int:
        """Return how many blocks there are."""
        return len(self.track)

    def take(self, wanted: npt.NDArray[np.bool_]) -> Blocks:
        """Return a selection of the blocks."""
        track, start, end, span_count = (column[wanted] for column in self[:4])
        return Blocks(track, start, end, span_count, self.kind_busy[:, wanted], self.kinds)


def blocks_of_spans(spans: Records, track: Ints) -> Blocks:
    """Return every span as a block of its own."""
    kind, start, duration = (np.ascontiguousarray(spans[name]) for name in ("kind", "start", "duration"))
    kinds = np.flatnonzero(np.bincount(kind))
    # A span of zero length would have no weight, and a block of such spans no kind.
    kind_busy = np.where(kind == kinds[:, None].astype(np.uint8), duration, 0)
    return Blocks(track, start, start + duration, np.ones(len(spans), np.int64), kind_busy, kinds)


def merge_blocks(blocks: Blocks, width_ns: int) -> Blocks:
    """Return the blocks with those shorter than `width_ns` merged, bin by bin of that width."""
    if not len(blocks):
        return blocks
    first = np.flatnonzero(_begins(blocks, width_ns))
    return Blocks(
        blocks.track[first],
        blocks.start[first],
        np.maximum.reduceat(blocks.end, first),
        np.add.reduceat(blocks.span_count, first),
        np.stack([np.add.reduceat(busy, first) for busy in blocks.kind_busy]),
        blocks.kinds,
    )


def _begins(blocks: Blocks, width_ns: int) -> npt.NDArray[np.bool_]:
    """Return which blocks are the first of a merged one."""
    bin_number = blocks.start // width_ns
    is_wide = blocks.end - blocks.start >= width_ns
    begins = np.ones(len(blocks), np.bool_)
    begins[1:] = bin_number[1:] != bin_number[:-1]
    begins[1:] |= blocks.track[1:] != blocks.track[:-1]
    begins[1:] |= is_wide[1:] | is_wide[:-1]
    return begins


def block_records(blocks: Blocks) -> Records:
    """Return blocks as BLOCK records; `busy` is the covered part of each, in 255ths."""
    records = np.zeros(len(blocks), BLOCK)
    length = blocks.end - blocks.start
    busy = np.minimum(blocks.kind_busy.sum(axis=0), length)
    records["start"], records["duration"], records["count"] = blocks.start, length, blocks.span_count
    records["kind"] = blocks.kinds[np.argmax(blocks.kind_busy, axis=0)] if len(blocks) else 0
    records["lane"] = blocks.track % LANE_COUNT
    records["busy"] = np.where(length > 0, busy * FULL // np.maximum(length, 1), FULL)
    return records


def blocks_of_records(records: Records, track: Ints) -> Blocks:
    """Return BLOCK records as blocks, as if all their spans had the stored kind."""
    kind, start, duration, count = (
        np.ascontiguousarray(records[name]) for name in ("kind", "start", "duration", "count")
    )
    kinds = np.flatnonzero(np.bincount(kind))
    busy = duration * records["busy"] // FULL
    kind_busy = np.where(kind == kinds[:, None].astype(np.uint8), busy, 0)
    return Blocks(track, start, start + duration, count.astype(np.int64), kind_busy, kinds)
