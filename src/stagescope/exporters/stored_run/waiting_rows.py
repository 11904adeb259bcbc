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
from stagescope.model import Timeline, empty_timeline
from stagescope.model.stored_run import PARTITIONED, TABLE_OF
from stagescope.model.validate import in_order

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

WaitingRows: TypeAlias = dict[str, str]
"""The path of the file of each table that has rows."""


def wait(timeline: Timeline, directory: Path, name: str) -> WaitingRows:
    """Write the rows of a part whose name no other part has, and return where they are. Raises OSError."""
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
            rows.write_ipc(unfinished, compression="zstd")
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


def _rows(path: str, only: pl.Expr | None) -> pl.DataFrame:
    rows = pl.read_ipc(path)
    return rows if only is None else rows.filter(only)


def _together(pieces: list[pl.DataFrame], name: str) -> pl.DataFrame:
    """Return the rows of some parts, each of which is in order, in the order of their table."""
    return pieces[0] if len(pieces) == 1 else in_order(pl.concat(pieces), TABLE_OF[name])
