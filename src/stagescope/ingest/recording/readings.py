"""Readings of clocks that wait in files while a run is surveyed: a long recording has thousands of them.

What is decided about a run needs the readings of one machine at a time. Meanwhile those of all others would take 25 to
80 bytes for each step of each rank.
"""

from __future__ import annotations

from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt
    from typing_extensions import Self

    from stagescope.ingest.recording.frames import Contents

MOST_IN_MEMORY = 128
"""If a recording has more readings, they wait in a file: so many take 3 kB, as much as everything else of it."""


class Readings(NamedTuple):
    """All readings of a recording: of the wall clock, of the raw clock, and of the clock of its device."""

    anchors: npt.NDArray[np.void]
    raw_anchors: npt.NDArray[np.void]
    device_anchors: npt.NDArray[np.void]


class ReadingsInFile(NamedTuple):
    """Where the readings of a recording begin in a file, and their types and numbers, in the order of Readings."""

    path: Path
    offset: int
    tables: tuple[tuple[np.dtype[Any], int], ...]

    def of(self, name: str) -> npt.NDArray[np.void]:
        """Return one table of the readings. Raises OSError."""
        place = Readings._fields.index(name)
        dtype, count = self.tables[place]
        offset = self.offset + sum(each.itemsize * number for each, number in self.tables[:place])
        return np.fromfile(self.path, dtype, count, offset=offset)


class WaitingReadings:
    """A file for the readings of some recordings, which is written if one of them has many; None for no file."""

    def __init__(self, path: Path | None) -> None:
        """Write nothing yet."""
        self._path = path
        self._file: IO[bytes] | None = None
        self._size_bytes = 0

    def __enter__(self) -> Self:
        """Return this object."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def without(self, contents: Contents) -> Contents:
        """Return the content of a recording without its readings, if they are many: then they are written here.

        Raises OSError.
        """
        readings = Readings(*(getattr(contents, name) for name in Readings._fields))
        if self._path is None or sum(map(len, readings)) <= MOST_IN_MEMORY:
            return contents
        if self._file is None:
            self._file = self._path.open("wb")
        tables = tuple((each.dtype, len(each)) for each in readings)
        waiting = ReadingsInFile(self._path, self._size_bytes, tables)
        for each in readings:
            self._size_bytes += self._file.write(each.tobytes())
        return replace(with_few_readings(contents), readings=waiting)


def readings_of(contents: Contents, name: str) -> npt.NDArray[np.void]:
    """Return one table of the readings of a recording, by its name in Readings. Raises OSError."""
    table: npt.NDArray[np.void] = getattr(contents, name)
    return table if contents.readings is None else contents.readings.of(name)


def count_of_readings(contents: Contents, name: str) -> int:
    """Return the number of readings of one table, by its name in Readings."""
    if contents.readings is None:
        return len(getattr(contents, name))
    return contents.readings.tables[Readings._fields.index(name)][1]


def with_few_readings(contents: Contents) -> Contents:
    """Return the content of a recording with its first, its last and its narrowest anchor alone.

    These show its extent and its offset to the wall clock (process.py).
    """
    anchors = contents.anchors
    if len(anchors):
        at_ns = anchors["monotonic_ns"]
        anchors = anchors[np.unique([at_ns.argmin(), at_ns.argmax(), anchors["width_ns"].argmin()])]
    return replace(
        contents,
        anchors=anchors,
        raw_anchors=contents.raw_anchors[:0].copy(),
        device_anchors=contents.device_anchors[:0].copy(),
        readings=None,
    )
