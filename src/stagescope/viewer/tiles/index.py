"""Where in a level file a track's blocks of some time begin and end, from every 64th block alone.

The index fits into memory where the blocks do not: 16 bytes for 64 blocks. On a track, blocks are in the order of
their start; for the ends, the index has the latest so far, so that a long block is found from wherever it reaches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from stagescope.viewer.tiles.records import Records

    Ints = npt.NDArray[np.int64]

STRIDE = 64


class TrackIndex(NamedTuple):
    """Per track its first block and its first entry; per entry the first start, and the latest end before its end."""

    first: Ints
    first_entry: Ints
    start: Ints
    reach: Ints

    def ranges(self, tracks: Ints, start: int, end: int) -> tuple[Ints, Ints]:
        """Return per track the first block, and the one after the last, that may overlap [start, end)."""
        low, high = self.first_entry[tracks], self.first_entry[tracks + 1]
        from_entry = _first_above(self.reach, low, high, start)
        to_entry = _first_above(self.start, low, high, end - 1)
        begin = self.first[tracks] + (from_entry - low) * STRIDE
        stop = np.minimum(self.first[tracks] + (to_entry - low) * STRIDE, self.first[tracks + 1])
        return begin, np.maximum(stop, begin)


def index_tracks(records: Records, track: Ints, track_count: int) -> TrackIndex:
    """Return the index of blocks that are sorted by track and start; tracks count from 0."""
    first = np.searchsorted(track, np.arange(track_count + 1))
    entries = -(-np.diff(first) // STRIDE)
    first_entry = np.concatenate([[0], np.cumsum(entries)])
    of_track = np.repeat(np.arange(track_count), entries)
    within = np.arange(len(of_track)) - first_entry[of_track]
    at = first[of_track] + within * STRIDE
    if not len(at):
        return TrackIndex(first, first_entry, np.zeros(0, np.int64), np.zeros(0, np.int64))
    # A block of zero length is visible at its start.
    latest = np.maximum.reduceat(records["start"] + np.maximum(records["duration"], 1), at)
    return TrackIndex(first, first_entry, records["start"][at], _running_most(latest, of_track))


def join_indexes(parts: list[TrackIndex]) -> TrackIndex:
    """Return the combined index of consecutively written chunks with disjoint tracks."""
    return TrackIndex(
        _joined_counts([part.first for part in parts]),
        _joined_counts([part.first_entry for part in parts]),
        np.concatenate([part.start for part in parts]),
        np.concatenate([part.reach for part in parts]),
    )


def save_index(index: TrackIndex, path: Path) -> None:
    """Write an index; `load_index` reads it."""
    with path.open("wb") as file:
        for values in index:
            np.save(file, values, allow_pickle=False)


def load_index(path: Path) -> TrackIndex:
    """Return the index that `save_index` wrote. Raises OSError or ValueError if it is incomplete."""
    with path.open("rb") as file:
        return TrackIndex(*(np.load(file, allow_pickle=False) for _ in TrackIndex._fields))


def _joined_counts(parts: list[Ints]) -> Ints:
    """Return running counts that each begin with 0 as one running count."""
    return np.concatenate([[0], np.cumsum(np.concatenate([np.diff(part) for part in parts]))])


def _running_most(values: Ints, group: Ints) -> Ints:
    """Return the largest value so far within each group; groups follow each other."""
    if not len(values):
        return values
    # Offsetting each group above all earlier ones turns many running maxima into one.
    order = np.argsort(values, kind="stable")
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(len(values))
    lifted = np.maximum.accumulate(rank + group * len(values))
    return values[order][lifted - group * len(values)]


def _first_above(values: Ints, low: Ints, high: Ints, target: int) -> Ints:
    """Return per slice [low, high) of sorted values the first place above `target`, else its end."""
    low, high = low.copy(), high.copy()
    # One bisection for all slices at a time.
    while (searching := low < high).any():
        middle = (low + high) // 2
        above = searching.copy()
        above[searching] = values[middle[searching]] > target
        high = np.where(above, middle, high)
        low = np.where(searching & ~above, middle + 1, low)
    return low
