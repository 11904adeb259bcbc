"""Queries for parts of a run: spans or blocks by row and time, read from the level files of one folder.

Files are read by position instead of being memory-mapped: a request needs only as much memory as its response.
Objects are immutable once opened and may be used by several threads.
"""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stagescope.viewer.tiles.build import FACTS_FILE, SPANS_FILE, Shape, level_file, read_shape
from stagescope.viewer.tiles.index import TrackIndex, load_index
from stagescope.viewer.tiles.merge import Blocks, blocks_of_records, merge_blocks
from stagescope.viewer.tiles.records import BLOCK, FACTS, LANE_COUNT, SPAN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

    from stagescope.viewer.tiles.records import Records

    Ints = npt.NDArray[np.int64]

MOST_RECORDS = 1_500_000
"""Upper limit of records read for one response: 50 MB of spans."""


class TooManyError(Exception):
    """A part of a run exceeds the limit of one response; a coarser level has fewer records."""


class Part(NamedTuple):
    """A part of the picture: times [start, end) from the base, and row numbers in ascending order."""

    start: int
    end: int
    rows: Ints

    @property
    def tracks(self) -> Ints:
        """The tracks of the rows, in ascending order."""
        return (self.rows[:, None] * LANE_COUNT + np.arange(LANE_COUNT)).ravel()


class Placed(NamedTuple):
    """Records with their tracks and positions in the file; the position of a span is its id."""

    records: Records
    track: Ints
    place: Ints

    def take(self, wanted: npt.NDArray[np.bool_]) -> Placed:
        """Return a selection of the records."""
        return Placed(self.records[wanted], self.track[wanted], self.place[wanted])


_SEEKING = threading.Lock()


def _read_at(descriptor: int, size_bytes: int, offset: int) -> bytes:
    """Return bytes of a file that several threads read; one after the other on Windows, which has no pread."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, size_bytes, offset)
    with _SEEKING:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, size_bytes)


class RecordFile:
    """One file of records of the same size, open for reading, and the index of its tracks."""

    def __init__(self, path: Path, dtype: np.dtype[np.void], index: TrackIndex) -> None:
        """Open the file. Raises OSError if that fails, ValueError if the file is incomplete."""
        self._dtype = dtype
        self.index = index
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        # Readers of an older version keep its files open after they are removed.
        weakref.finalize(self, os.close, self._descriptor)
        size = os.fstat(self._descriptor).st_size
        if size != int(index.first[-1]) * dtype.itemsize:
            raise ValueError(f"{path.name} has {size} bytes, which does not match its index")

    @property
    def count(self) -> int:
        """How many records there are."""
        return int(self.index.first[-1])

    def read(self, begin: int, stop: int) -> Records:
        """Return the records from one place to another."""
        size = self._dtype.itemsize
        data = _read_at(self._descriptor, (stop - begin) * size, begin * size)
        return np.frombuffer(data, self._dtype)

    def track_of(self, place: Ints) -> Ints:
        """Return the tracks of the records at some places."""
        return np.searchsorted(self.index.first, place, side="right") - 1

    def near(self, part: Part) -> Placed:
        """Return the records that may overlap a part, including some around it. Raises TooManyError."""
        tracks = part.tracks
        begin, stop = self.index.ranges(tracks, part.start, part.end)
        return self.at(tracks, begin, stop)

    def at(self, tracks: Ints, begin: Ints, stop: Ints) -> Placed:
        """Return the records of some tracks, from a place to another on each. Raises TooManyError."""
        size = stop - begin
        if int(size.sum()) > MOST_RECORDS:
            raise TooManyError
        holds = np.flatnonzero(size > 0)
        tracks, begin, stop, size = tracks[holds], begin[holds], stop[holds], size[holds]
        pieces = [self.read(*piece) for piece in _adjoining(begin, stop)]
        records = np.concatenate(pieces) if pieces else np.zeros(0, self._dtype)
        before = np.cumsum(size) - size
        place = np.arange(len(records)) + np.repeat(begin - before, size)
        return Placed(records, np.repeat(tracks, size), place)


def _adjoining(begin: Ints, stop: Ints) -> Iterator[tuple[int, int]]:
    """Yield ranges with adjacent ones joined."""
    if not len(begin):
        return
    apart = np.flatnonzero(begin[1:] != stop[:-1])
    firsts, lasts = np.concatenate([[0], apart + 1]), np.concatenate([apart, [len(begin) - 1]])
    yield from zip(begin[firsts].tolist(), stop[lasts].tolist(), strict=True)


@dataclass(frozen=True)
class Levels:
    """The levels of one run, open for reading."""

    shape: Shape
    spans: RecordFile
    facts: RecordFile | None
    blocks: dict[int, RecordFile]

    @property
    def exponents(self) -> range:
        """The exponents of all levels that can be requested, stored or not."""
        return range(self.shape.exponents[0], self.shape.exponents[-1] + 1)

    def spans_in(self, part: Part) -> Placed:
        """Return the spans that overlap a part of the picture. Raises TooManyError."""
        return _overlapping(self.spans.near(part), part)

    def blocks_in(self, part: Part, exponent: int) -> Blocks:
        """Return the blocks of one level that overlap a part of the picture. Raises TooManyError.

        Each is whole where the part begins and ends at edges of bins, so that tiles side by side agree.
        """
        stored = max(one for one in self.shape.exponents if one <= exponent)
        width_ns = 1 << exponent
        # A block that crosses the start of the part is merged from the whole bin before it.
        around = part if stored == exponent else part._replace(start=part.start - width_ns)
        found = _overlapping(self.blocks[stored].near(around), around)
        blocks = blocks_of_records(found.records, found.track)
        if stored == exponent:
            return blocks
        blocks = merge_blocks(blocks, width_ns)
        return blocks.take(np.maximum(blocks.end, blocks.start + 1) > part.start)

    def facts_at(self, begin: int, stop: int) -> Records | None:
        """Return the facts of a range of span ids, None if no span of the run has any."""
        return None if self.facts is None else self.facts.read(begin, stop)


def open_levels(folder: Path) -> Levels:
    """Return the levels in `folder`. Raises OSError or ValueError if they are incomplete."""
    shape = read_shape(folder)
    spans = _open(folder, SPANS_FILE, SPAN)
    facts = RecordFile(folder / FACTS_FILE, FACTS, spans.index) if shape.has_facts else None
    blocks = {exponent: _open(folder, level_file(exponent), BLOCK) for exponent in shape.exponents}
    return Levels(shape, spans, facts, blocks)


def _open(folder: Path, name: str, dtype: np.dtype[np.void]) -> RecordFile:
    return RecordFile(folder / name, dtype, load_index(folder / f"{name}.index"))


def _overlapping(found: Placed, part: Part) -> Placed:
    """Return the spans that overlap the part; a span of zero length overlaps at its start."""
    start = found.records["start"]
    end = start + np.maximum(found.records["duration"], 1)
    return found.take((start < part.end) & (end > part.start))
