"""Rows of a part of a run that wait, in files beside the stored run, until its clocks are aligned.

Zstandard at its lowest level takes 0.15 us per span to write and read, a third of what it takes to read the recordings
again, and 6 to 12 bytes of disk per span.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import polars as pl

from stagescope.exporters.new_files import make_directory, temporary_file
from stagescope.exporters.stored_run.partition_files import UNENCODED
from stagescope.model import SPANS, Timeline, empty_timeline
from stagescope.model.stored_run import PARTITIONED, TABLE_OF
from stagescope.model.validate import in_order, in_order_together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

TIMES = ("start_ns", "end_ns", "wait_start_ns", "wait_end_ns")
ROWS_OF_BATCH = 16_384
"""The rows of a rank are read in whole batches."""

WaitingRows: TypeAlias = dict[str, str]
"""The path of the file of each table that has rows."""


def wait(timeline: Timeline, directory: Path, name: str, *, is_slice: bool = False) -> WaitingRows:
    """Write the rows of a part whose name no other part has, and return where they are. Raises OSError.

    Those of a slice may be read a rank at a time (rows_by_rank).
    """
    place = directory / UNENCODED
    make_directory(place)
    found = {}
    for table in PARTITIONED:
        rows: pl.DataFrame = getattr(timeline, table.name)
        if rows.is_empty():
            continue
        path = place / f"{name},{table.name}.arrow".replace(" ", "-")
        # Renamed: a worker that was taken for dead may still write the same file.
        with temporary_file(path) as unfinished:
            rows.write_ipc(
                unfinished, compression="zstd", record_batch_size=ROWS_OF_BATCH if is_slice else None
            )
            unfinished.replace(path)
        found[table.name] = str(path)
    return found


def waiting(parts: Iterable[WaitingRows], only: pl.Expr | None = None) -> Timeline:
    """Return a timeline with the rows of some parts and nothing else, or with `only` some of them. Raises OSError."""
    files: dict[str, list[str]] = {}
    for part in parts:
        for name, path in part.items():
            files.setdefault(name, []).append(path)
    tables = {name: _together([_rows(path, only) for path in paths], name) for name, paths in files.items()}
    return replace(empty_timeline(), **tables)  # type: ignore[arg-type]  # tables alone, by their names


def rows_by_rank(
    paths: Sequence[str], ranks: Iterable[int], only: pl.Expr, moved: Callable[[pl.DataFrame], pl.DataFrame]
) -> Iterator[pl.DataFrame]:
    """Yield spans of some ranks that wait in files, in order, and of no more than one rank and two files at a time.

    `only` chooses rows, and `moved` puts their timestamps on the common clock. Raises OSError.
    """
    places = [_places_of_ranks(path) for path in paths]
    for rank in sorted(ranks):
        own = [(path, *place[rank]) for path, place in zip(paths, places, strict=True) if rank in place]
        starts_ns = [
            moved(_of_rank(*each).filter(only).select("rank", *TIMES).collect())["start_ns"].min()
            for each in own
        ]
        pending: list[pl.DataFrame] = []
        for number, each in enumerate(own):
            rows = moved(_of_rank(*each).filter(only).collect())
            together = in_order(pl.concat([*pending, rows]), SPANS)
            later_ns = [start_ns for start_ns in starts_ns[number + 1 :] if start_ns is not None]
            is_later = pl.col("start_ns") >= min(later_ns) if later_ns else pl.lit(value=False)
            yield together.filter(~is_later)
            pending = [together.filter(is_later)]


def _places_of_ranks(path: str) -> dict[int, tuple[int, int]]:
    """Return the first row and the number of rows of each rank in a file, which is in the order of ranks."""
    counts = pl.read_ipc(path, columns=["rank"]).group_by("rank", maintain_order=True).len()
    firsts = counts["len"].cum_sum() - counts["len"]
    return dict(zip(counts["rank"], zip(firsts, counts["len"], strict=True), strict=True))


def _of_rank(path: str, first: int, count: int) -> pl.LazyFrame:
    return pl.scan_ipc(path).slice(first, count)


def _rows(path: str, only: pl.Expr | None) -> pl.DataFrame:
    rows = pl.read_ipc(path)
    return rows if only is None else rows.filter(only)


def _together(pieces: list[pl.DataFrame], name: str) -> pl.DataFrame:
    """Return the rows of some parts, each of which is in order, in the order of their table."""
    return pieces[0] if len(pieces) == 1 else in_order_together(pieces, TABLE_OF[name])
