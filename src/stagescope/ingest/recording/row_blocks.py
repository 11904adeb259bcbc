"""Rows of a table that wait in files, a block of them in each, so that they are never in memory together.

They are read by ranges of one integer column, the key: in its order, or those of some keys. Each file states the least
and the greatest key in it, and the rows of a range are looked for in the files that may have some.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

ROWS_OF_BLOCK = 250_000
"""Rows are read in their order in blocks of about as many."""

SAMPLES_OF_BLOCK = 64
"""The borders of ranges are found from so many keys of each block, evenly spaced: right within a few percent."""

FIRST, FOREVER = -(2**63), 2**63 - 1


class BlockFile(NamedTuple):
    """A file with some rows, and the least and the greatest key of these."""

    path: Path
    least: int
    greatest: int


class RowBlocks(NamedTuple):
    """The files with the rows of a table, and the first key of each range of keys that has about ROWS_OF_BLOCK rows.

    There is at least one file, also if there are no rows.
    """

    key: str
    files: tuple[BlockFile, ...]
    begins: tuple[int, ...]

    def blocks(self, columns: Sequence[str] | None = None) -> Iterator[pl.DataFrame]:
        """Yield the rows of each file, in the order in which they were written. Raises OSError."""
        return (_read(file.path, columns) for file in self.files)

    def in_order(self) -> Iterator[pl.DataFrame]:
        """Yield all rows by ascending keys, in blocks; rows with equal keys are in one. Raises OSError."""
        return (self.within(first, end) for first, end in pairwise((*self.begins, FOREVER)))

    def within(self, first: int, end: int) -> pl.DataFrame:
        """Return the rows with keys from `first` on and below `end`, sorted by these. Raises OSError."""
        key = pl.col(self.key)
        found = [
            _read(file.path).filter((key >= first) & (key < end))
            for file in self.files
            if file.least < end and file.greatest >= first
        ]
        return pl.concat(found or [_read(self.files[0].path).clear()]).sort(self.key, maintain_order=True)


class RowWriter:
    """Writes rows into files, a block at a time, whose names begin with `place`."""

    def __init__(self, place: Path, key: str) -> None:
        self._place, self._key = place, key
        self._first: pl.DataFrame | None = None
        self._files: list[BlockFile] = []
        self._keys: list[npt.NDArray[np.int64]] = []

    def add(self, rows: pl.DataFrame) -> None:
        """Add a block of rows; without any, only as the first one. Raises OSError."""
        if self._first is None:
            self._first = rows
        elif rows.height:
            if not self._files:
                self._write(self._first)
                self._first = self._first.clear()
            self._write(rows)

    def written(self) -> RowBlocks:
        """Return what was added: at least one block, which may have no rows. Raises OSError."""
        if self._first is not None and not self._files:
            self._write(self._first)
        first = min(file.least for file in self._files)
        keys = np.sort(np.concatenate(self._keys))[:: max(1, ROWS_OF_BLOCK // _spacing())]
        begins = np.unique(keys[keys > first])
        return RowBlocks(self._key, tuple(self._files), (first, *begins.tolist()))

    def in_order(self) -> Iterator[pl.DataFrame]:
        """Yield what was added by ascending keys, as RowBlocks do; no file of it remains. Raises OSError."""
        if self._first is not None and not self._files:
            yield self._first.sort(self._key, maintain_order=True)
            return
        written = self.written()
        yield from written.in_order()
        for file in written.files:
            file.path.unlink()

    def _write(self, rows: pl.DataFrame) -> None:
        path = self._place.with_name(f"{self._place.name}-{len(self._files)}")
        # A stream is read in a fifth of the time of a file, which counts where there are many small ones.
        rows.write_ipc_stream(path, compression="lz4")
        keys = rows[self._key].to_numpy().astype(np.int64)
        self._keys.append(keys[:: _spacing()])
        self._files.append(BlockFile(path, int(keys.min(initial=FOREVER)), int(keys.max(initial=FIRST))))


def and_whether_last(blocks: Iterable[pl.DataFrame]) -> Iterator[tuple[pl.DataFrame, bool]]:
    """Yield each block, and whether no other one follows."""
    known: pl.DataFrame | None = None
    for block in blocks:
        if known is not None:
            yield known, False
        known = block
    if known is not None:
        yield known, True


def _spacing() -> int:
    return max(1, ROWS_OF_BLOCK // SAMPLES_OF_BLOCK)


def _read(path: Path, columns: Sequence[str] | None = None) -> pl.DataFrame:
    return pl.read_ipc_stream(path, columns=None if columns is None else list(columns))
