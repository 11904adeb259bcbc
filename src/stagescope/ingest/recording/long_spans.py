"""Records of a long recording that stay in its files, and are read a block at a time as often as they are needed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stagescope.ingest.recording import errors
from stagescope.ingest.recording.columns import SPAN_DTYPE, Columns, split_columns
from stagescope.ingest.streams import open_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from stagescope.ingest.streams import ByteStream

SPANS_OF_BLOCK = 250_000
"""A block takes 40 MB of memory, half of it for the bytes that it is read from."""


@dataclass(frozen=True)
class SpansInFile:
    """Frames with spans in one file: the offset and the length of the payload of each, in order."""

    path: Path
    payloads: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        """Return the number of records."""
        return sum(length for _, length in self.payloads) // SPAN_DTYPE.itemsize

    def blocks(self) -> Iterator[Columns]:
        """Yield the records a part at a time. Raises InputError if the file has changed or cannot be read."""
        pending: list[memoryview] = []
        size_bytes = 0
        with open_stream(self.path) as stream:
            position = 0
            for offset, length in self.payloads:
                _skip(stream, offset - position)
                payload = stream.read(length)
                if len(payload) < length:
                    raise errors.changed_meanwhile(str(self.path))
                position = offset + length
                pending.append(memoryview(payload))
                size_bytes += length
                if size_bytes >= SPANS_OF_BLOCK * SPAN_DTYPE.itemsize:
                    yield split_columns(pending)
                    pending, size_bytes = [], 0
        if pending:
            yield split_columns(pending)


@dataclass(frozen=True)
class LongSpans:
    """The spans of a recording: those of its files, one after the other, with changes that are made to each block."""

    files: tuple[Columns | SpansInFile, ...]
    height: int
    changes: tuple[Callable[[Columns], Columns], ...] = ()
    amended: Callable[[Iterator[Columns]], Iterator[Columns]] = iter

    def __len__(self) -> int:
        """Return the number of records."""
        return self.height

    def blocks(self) -> Iterator[Columns]:
        """Yield the records a part at a time. Raises InputError if a file has changed or cannot be read."""
        return self.amended(self._changed())

    def _changed(self) -> Iterator[Columns]:
        for file in self.files:
            for block in file.blocks():
                changed = block
                for change in self.changes:
                    changed = change(changed)
                yield changed

    def changed(self, change: Callable[[Columns], Columns], height: int) -> LongSpans:
        """Return the spans with another change, after which there are `height` of them."""
        return replace(self, height=height, changes=(*self.changes, change))


def joined_spans(tables: Sequence[Columns | LongSpans]) -> LongSpans:
    """Return the spans of all tables, which are those of one recording, in the order of its files."""
    files: list[Columns | SpansInFile] = []
    for table in tables:
        files += table.files if isinstance(table, LongSpans) else (table,)
    return LongSpans(tuple(files), sum(map(len, tables)))


def _skip(stream: ByteStream, size_bytes: int) -> None:
    while size_bytes > 0:
        size_bytes -= len(stream.read(min(size_bytes, SPANS_OF_BLOCK))) or size_bytes
