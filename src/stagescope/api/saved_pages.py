"""The page of a stored run: its tiles are saved beside it on request, and used from there while they are its own."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

import polars as pl
from polars.exceptions import PanicException, PolarsError

from stagescope.api.saved_reports import saved_results
from stagescope.exporters.stored_run import locked, write_page
from stagescope.ingest.stored_run import DAMAGED, SOURCE_CHANGED, find_page, is_as_stored, read_manifest
from stagescope.model.stored_run import PAGES, manifest_checksum
from stagescope.viewer.tiles.run import open_run
from stagescope.viewer.tiles.stored import is_large
from stagescope.vocabulary.errors import InputError, OutputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stagescope.model import Timeline
    from stagescope.model.stored_run import Manifest, Page
    from stagescope.viewer.tiles.run import RunView

UNREADABLE = (
    OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, MemoryError,
    PolarsError, PanicException,
)  # fmt: skip
"""What opening a page raises that another process has just removed, or that was not written by stagescope."""


class SavedPage(NamedTuple):
    """A page beside a stored run: whether it was made now, its directory, its number of spans, and its size."""

    is_new: bool
    path: Path
    span_count: int
    size_bytes: int


def find_saved_page(directory: Path, way: str) -> RunView | None:
    """Return the page that was saved beside a stored run; `way` is everything else than the run on which it depends.

    None without one, if it is of another run or made in another way, if it is damaged, and if files of the run are
    missing or its sources have changed: only a page that is made now states that. Raises InputError if the manifest of
    the run cannot be read.
    """
    if not (directory / PAGES).is_dir():
        return None
    manifest = read_manifest(directory)
    found = _usable(directory, manifest, _key(directory, manifest, way))
    if found is None:
        return None
    try:
        return open_run(found[0])
    except UNREADABLE:
        return None


def keep_page(directory: Path, way: str, manifest: Manifest, make: Callable[[Path], None]) -> SavedPage:
    """Save the page of a stored run beside it, unless it is there already. `make` fills an empty directory.

    Raises OutputError if another process is writing the run, or has written another one than that of `manifest`, and if
    the operating system refuses to write; what `make` raises; CommandError if the libraries of the extra ``store`` are
    missing.
    """
    key = _key(directory, manifest, way)
    with locked(directory):
        if read_manifest(directory) != manifest:
            raise OutputError.being_written(directory)
        found = _usable(directory, manifest, key)
        page = write_page(directory, *key, make) if found is None else found[1]
    return SavedPage(found is None, directory / PAGES, manifest.span_count, page.size_bytes)


def require_as_stored(directory: Path, timeline: Timeline) -> None:
    """Raise InputError if a timeline states that its stored run has been damaged or its sources have changed.

    A page that states that would still do so when the run is whole again, or leave out what was missing.
    """
    notes = timeline.diagnostics.filter(pl.col("code").is_in([DAMAGED, SOURCE_CHANGED]))
    if notes.height:
        raise InputError.damaged(directory, notes["message"][0])


def _usable(directory: Path, manifest: Manifest, key: tuple[str, str]) -> tuple[Path, Page] | None:
    return find_page(directory, *key) if is_as_stored(directory, manifest) else None


def _key(directory: Path, manifest: Manifest, way: str) -> tuple[str, str]:
    """Return the checksum of the manifest, and how the page is made.

    The page of a large run shows its saved report, which is about some steps if all did not fit into memory. That of
    any other run is made from its spans alone.
    """
    report: str | None = ""
    if is_large(manifest):
        results = saved_results(directory, manifest)
        report = None if results is None else results.steps or "all"
    return manifest_checksum(asdict(manifest)), json.dumps([way, report])
