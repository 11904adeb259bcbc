"""Files of a stored run while it is analyzed in ranges of steps, in a folder that the process and its workers share."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from stagescope.api.detached_tables import read_table, write_table
from stagescope.exporters.new_files import make_directory
from stagescope.ingest.stored_run import read_part, read_small_tables
from stagescope.model import empty_timeline
from stagescope.model.tables import STEPS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stagescope.model import Timeline
    from stagescope.model.stored_run import Manifest

FOLDER = "unfinished-analysis"
"""In the directory of the run, only while it is analyzed."""
SMALL = ("ranks", "clocks", "diagnostics")


@contextmanager
def temporary_folder(directory: Path) -> Iterator[Path]:
    """Yield an empty folder for tables between the two passes, which is removed afterwards."""
    folder = directory / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    make_directory(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_shared_tables(directory: Path, manifest: Manifest, folder: Path) -> Timeline:
    """Return the small tables of a run, and write those that workers need."""
    steps = [read_part(directory, part) for part in manifest.parts if part.table == STEPS.name]
    write_table(pl.concat([STEPS.empty(), *steps]), folder / "steps.arrow")
    shared = read_small_tables(directory, manifest)
    for name in SMALL:
        write_table(getattr(shared, name), folder / f"{name}.arrow")
    return shared


def place_of_range(folder: Path, number: int) -> Path:
    """Return where the spans that are needed to analyze a range are."""
    return folder / f"range-{number}"


def timeline_of(spans: pl.DataFrame, folder: Path) -> Timeline:
    """Return the timeline of some spans."""
    small = {name: read_table(folder / f"{name}.arrow") for name in SMALL}
    return replace(empty_timeline(), spans=spans, **small)  # type: ignore[arg-type]  # names of tables
