"""Files of a stored run while it is analyzed in ranges of steps, in a folder that the process and its workers share."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.intermediates import Intermediates
from stagescope.api.detached_tables import read_table, write_table
from stagescope.exporters.new_files import make_directory
from stagescope.ingest.stored_run import read_part, read_small_tables
from stagescope.model import empty_timeline
from stagescope.model.collectives import KINDS
from stagescope.model.large_tables import reduced
from stagescope.model.lazy import InParts, TableParts
from stagescope.model.outlines import inner_collectives, outline
from stagescope.model.step_division import extents_of_steps
from stagescope.model.step_ranges import is_in_steps, steps_around
from stagescope.model.tables import SPANS, STEPS
from stagescope.model.validate import in_order_together

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from stagescope.analysis.windows import Windows
    from stagescope.model import Timeline
    from stagescope.model.stored_run import Manifest
    from stagescope.vocabulary.steps import StepRange, StepRanges

FOLDER = "unfinished-analysis"
"""In the directory of the run, only while it is analyzed."""
OUTLINES, INNER = "outlines", "inner"
"""In the folder of a range of large steps: the outlines of its spans, and the collectives that these leave out."""
SMALL = ("ranks", "clocks", "diagnostics")
WINDOWS_AT_ONCE = 1_000_000
"""Rows of step_bubbles, which has one for every rank and step, that are divided at once; each takes 68 bytes."""


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


def read_extents_of_steps(directory: Path, manifest: Manifest) -> pl.DataFrame:
    """Return the result of extents_of_steps for a run, whose table of steps is never in memory as a whole."""
    parts = (read_part(directory, part) for part in manifest.parts if part.table == STEPS.name)
    return reduced(chain([STEPS.empty()], parts), extents_of_steps).sort("step")


def write_shared_tables(directory: Path, manifest: Manifest, folder: Path) -> Timeline:
    """Return the small tables of a run, and write them for workers."""
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


def intermediates_of(
    folder: Path, spans: pl.DataFrame, windows: Windows, steps: StepRange | StepRanges
) -> Intermediates:
    """Return the intermediate results of some steps, given their spans, with those needed of the steps next to them."""
    # The windows and what was recorded of the steps next to the range are known from all their spans.
    recorded = read_table(folder / "recorded.arrow").filter(is_in_steps(steps_around(steps)))
    return Intermediates(timeline_of(spans, folder), windows, None, steps).with_results(recorded=recorded)


def write_spans_of_range(
    rows: pl.DataFrame, folder: Path, number: int, unit: int, *, is_outlined: bool
) -> None:
    """Write spans of a unit that are needed to analyze a range, and, if asked for, what others need of them."""
    place = place_of_range(folder, number)
    make_directory(place)
    write_table(rows, _of_unit(place, unit))
    if is_outlined:
        rows = in_order_together([rows], SPANS)  # with all columns
        for name, which in ((OUTLINES, outline), (INNER, inner_collectives)):
            make_directory(place / name)
            found = which(rows)
            if found.height:  # most runs have no collectives inside of actions
                write_table(found, _of_unit(place / name, unit))


def remove_spans_of_range(folder: Path, number: int) -> None:
    """Remove the spans of a range but for the outlines, with which what was measured of its pipelines is joined."""
    place = place_of_range(folder, number)
    for file in _files(place):
        file.unlink()
    shutil.rmtree(place / INNER, ignore_errors=True)


def spans_of_range(
    folder: Path, numbers: Sequence[int], units: Sequence[int] | None = None, which: pl.Expr | None = None
) -> pl.DataFrame:
    """Return the spans in the files of some ranges: of all units or of some, and all rows or some."""
    files = [file for number in numbers for file in _files(place_of_range(folder, number), units)]
    return in_order_together([_some(read_table(file), which) for file in files], SPANS)


def outlines_of_range(
    folder: Path,
    numbers: Sequence[int],
    which: pl.Expr | None = None,
    shared_with: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Return the outlines of the spans of some ranks, with the collectives inside of actions that others share."""
    places = [place_of_range(folder, number) for number in numbers]
    parts = [_some(read_table(file), which) for place in places for file in _files(place / OUTLINES)]
    if shared_with is not None:
        names = shared_with.filter(pl.col("kind").is_in(KINDS))["name"].unique().implode()
        is_shared = pl.col("name").is_in(names) if which is None else which & pl.col("name").is_in(names)
        parts += [_some(read_table(file), is_shared) for place in places for file in _files(place / INNER)]
    return in_order_together(parts, SPANS)


def _files(place: Path, units: Sequence[int] | None = None) -> list[Path]:
    return sorted(place.glob("*.arrow")) if units is None else [_of_unit(place, each) for each in units]


def _some(rows: pl.DataFrame, which: pl.Expr | None) -> pl.DataFrame:
    return rows if which is None else rows.filter(which)


def _of_unit(place: Path, unit: int) -> Path:
    return place / f"unit-{unit}.arrow"


def divide_windows(files: Sequence[Path], ranges: Sequence[StepRange], folder: Path) -> InParts:
    """Write the windows of each range of steps into a file of its own, and return what loads them.

    `files` have the rows of step_bubbles of some pipelines each, and are never read together.
    """
    found = [(each, *_reach(each)) for each in files]
    at_once = max(1, WINDOWS_AT_ONCE * len(ranges) // max(sum(rows for *_, rows in found), 1))
    empty = pl.scan_ipc(files[0]).clear()
    for begin in range(0, len(ranges), at_once):
        chosen = ranges[begin : begin + at_once]
        first, last = chosen[0].start, chosen[-1].stop - 1
        own = pl.col("step").is_between(first, last)
        scans = [
            pl.scan_ipc(path).filter(own) for path, low, high, _ in found if low <= last and high >= first
        ]
        windows = pl.concat([empty, *scans]).collect().sort("step", "rank")
        bounds = [windows["step"].search_sorted(each.start) for each in chosen]
        for number, (low, high) in enumerate(pairwise([*bounds, windows.height]), begin):
            # Not compressed: the process that joins the ranges reads them a dozen times.
            windows[low:high].write_ipc(_windows_of(folder, number), compression="uncompressed")
    parts = TableParts(range(len(ranges)), lambda number: read_table(_windows_of(folder, number)))
    return InParts(lambda: pl.concat(parts), lambda: iter(parts))


def windows_around(folder: Path, number: int, steps: StepRange) -> pl.DataFrame:
    """Return the windows of a range of steps, and those of the steps before and after it."""
    return windows_of(folder, (number - 1, number, number + 1), steps_around(steps))


def windows_of(folder: Path, numbers: Sequence[int], steps: StepRanges) -> pl.DataFrame:
    """Return the windows of some steps, which are among those of some ranges."""
    files = [_windows_of(folder, each) for each in numbers]
    return pl.concat([read_table(file).filter(is_in_steps(steps)) for file in files if file.exists()])


def _windows_of(folder: Path, number: int) -> Path:
    return folder / f"windows-{number}.arrow"


def _reach(file: Path) -> tuple[int, int, int]:
    """Return the first and the last step in a file, and the number of its rows; of an empty one, no step."""
    step = pl.col("step")
    first, last, rows = (
        pl.scan_ipc(file).select(step.min(), step.max().alias("last"), pl.len()).collect().row(0)
    )
    return (first, last, rows) if rows else (1, 0, 0)
