"""Write the file of one partition: in this process, in another one, or on another machine that has the directory."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.exporters.new_files import make_directory, temporary_file
from stagescope.exporters.stored_run.parquet import checksum_of, write_parquet
from stagescope.model.stored_run import Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from stagescope.exporters.stored_run.partitions import Partition

UNENCODED = "unencoded"
"""The folder for rows on their way to a worker on a cluster, which has no other access to them."""


class Unwritten(NamedTuple):
    """The rows of a partition, or the file that has them, and where they belong."""

    directory: Path
    table: str
    name: str
    rows: pl.DataFrame | Path
    pipeline: int | None
    step_range: int | None


def unwritten(partition: Partition, directory: Path, *, by_file: bool) -> Unwritten:
    """Return a partition for `write_partition`; with `by_file`, its rows are in a file until then. Raises OSError."""
    rows: pl.DataFrame | Path = partition.rows
    if by_file:
        make_directory(directory / UNENCODED)
        rows = directory / UNENCODED / f"{partition.path.replace('/', ',')}.arrow"
        partition.rows.write_ipc(rows)
    return Unwritten(
        directory, partition.table.name, partition.path, rows, partition.pipeline, partition.step_range
    )


def write_partition(item: Unwritten) -> Part:
    """Write the file of a partition, and return its part of the manifest. Raises OSError."""
    rows = item.rows if isinstance(item.rows, pl.DataFrame) else pl.read_ipc(item.rows)
    first, last = (None, None) if item.pipeline is None else (rows["step"].min(), rows["step"].max())
    part = Part(
        item.table,
        item.name,
        rows.height,
        0,
        "",
        item.pipeline,
        item.step_range,
        first if isinstance(first, int) else None,
        last if isinstance(last, int) else None,
    )
    written = _written(part, rows, item.directory)
    if not isinstance(item.rows, pl.DataFrame):
        item.rows.unlink(missing_ok=True)
    return written


def write_stepless(partition: Partition, pieces: Iterable[pl.DataFrame], directory: Path) -> Part:
    """Write the file of a partition without steps, whose rows come in pieces, and return its part of the manifest.

    Raises OSError.
    """
    heights: list[int] = []

    def counted() -> Iterator[pl.DataFrame]:
        for piece in pieces:
            heights.append(piece.height)
            yield piece

    name, place = partition.table.name, (partition.pipeline, partition.step_range)
    written = _written(Part(name, partition.path, 0, 0, "", *place, None, None), counted(), directory)
    return replace(written, rows=sum(heights))


def _written(part: Part, rows: pl.DataFrame | Iterable[pl.DataFrame], directory: Path) -> Part:
    """Write the rows of a part, and return it with the size and the checksum of its file."""
    path = directory / part.path
    make_directory(path.parent)
    with complete_file(path) as unfinished:
        write_parquet(rows, unfinished)
        size_bytes, checksum = unfinished.stat().st_size, checksum_of(unfinished)
    return replace(part, size_bytes=size_bytes, checksum=checksum)


@contextmanager
def complete_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which becomes `path` when it is complete and on the disk. Raises OSError."""
    with temporary_file(path) as unfinished:
        yield unfinished
        with unfinished.open("rb+") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
