"""Files of a stored run while it is analyzed in ranges of steps, in a folder that the process and its workers share."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.idle.step_windows import STEP_WINDOWS, windows_with_work
from stagescope.analysis.intermediates import Intermediates
from stagescope.analysis.ranges import LongTable, StepTables
from stagescope.api.detached_tables import path_of, read_table, write_table
from stagescope.exporters.new_files import make_directory
from stagescope.ingest.stored_run import read_part, read_small_tables
from stagescope.model import empty_timeline
from stagescope.model.collectives import KINDS
from stagescope.model.large_tables import reduced
from stagescope.model.lazy import TableParts, in_parts
from stagescope.model.outlines import inner_collectives, outline
from stagescope.model.step_division import extents_of_steps
from stagescope.model.step_ranges import is_in_steps, steps_around
from stagescope.model.tables import SPANS, STEPS
from stagescope.model.validate import in_order, in_order_together

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from stagescope.analysis.ranges import PipelineSurvey
    from stagescope.analysis.windows import Windows
    from stagescope.model import Timeline
    from stagescope.model.lazy import InParts
    from stagescope.model.stored_run import Manifest
    from stagescope.model.tables import Table
    from stagescope.vocabulary.steps import StepRange, StepRanges

FOLDER = "unfinished-analysis"
"""In the directory of the run, only while it is analyzed."""
OUTLINES, INNER = "outlines", "inner"
"""In the folder of a range of large steps: the outlines of its spans, and the collectives that these leave out."""
SMALL = ("ranks", "clocks", "diagnostics")
WINDOWS = "windows"
"""Files with the windows of each range of steps."""
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


def read_all_of(table: Table, directory: Path, manifest: Manifest) -> pl.DataFrame:
    """Return a table of a run with the rows of all its files, which may be more than fit into memory."""
    parts = [read_part(directory, part) for part in manifest.parts if part.table == table.name]
    return in_order(pl.concat([table.empty(), *parts]), table)


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
    """Return the files of all units, or of some of them; a unit without any span of a range has none in it."""
    if units is None:
        return sorted(place.glob("*.arrow"))
    return [file for file in (_of_unit(place, each) for each in units) if file.exists()]


def _some(rows: pl.DataFrame, which: pl.Expr | None) -> pl.DataFrame:
    return rows if which is None else rows.filter(which)


def _of_unit(place: Path, unit: int) -> Path:
    return place / f"unit-{unit}.arrow"


def divide_survey(surveys: Sequence[PipelineSurvey], ranges: Sequence[StepRange], folder: Path) -> StepTables:
    """Write what surveys have for every step into files, one for each range of steps, and return what loads them.

    Tables of `surveys` are detached, have some pipelines each, and are never read together.
    """
    bubbles = divide_by_steps([path_of(each.bubbles) for each in surveys], ranges, folder / WINDOWS)
    counts = divide_by_steps([path_of(each.microbatch_counts) for each in surveys], ranges, folder / "counts")
    for number, tables in enumerate(zip(bubbles.parts(), counts.parts(), strict=True)):
        write_table(windows_with_work(*tables), _of_range(folder / "steps", number))
    scans = [partial(pl.scan_ipc, _of_range(folder / "steps", number)) for number in range(len(ranges))]
    return StepTables(bubbles, counts, LongTable(scans, STEP_WINDOWS.order))


def divide_by_steps(files: Sequence[Path], ranges: Sequence[StepRange], place: Path) -> InParts:
    """Write the rows of each range of steps into a file of its own, sorted, and return what loads them.

    `files` have tables of some pipelines each, sorted by their first columns, step and rank or pipeline.
    """
    found = [(each, _bounds(each, ranges)) for each in files]
    rows = sum(int(bounds[-1] - bounds[0]) for _, bounds in found)
    at_once = max(1, WINDOWS_AT_ONCE * len(ranges) // max(rows, 1))
    empty = pl.scan_ipc(files[0]).clear()
    order = empty.collect_schema().names()[:2]
    for begin in range(0, len(ranges), at_once):
        chosen = ranges[begin : begin + at_once]
        scans = [
            pl.scan_ipc(path).slice(low, high - low)
            for path, bounds in found
            if (low := int(bounds[begin])) < (high := int(bounds[begin + len(chosen)]))
        ]
        some = pl.concat([empty, *scans]).collect().sort(order)
        limits = _limits(some["step"], chosen)
        for number, (low, high) in enumerate(pairwise(limits.tolist()), begin):
            # Not compressed: the process that joins the ranges reads them a dozen times.
            some[low:high].write_ipc(_of_range(place, number), compression="uncompressed")
    return in_parts(TableParts(range(len(ranges)), lambda number: read_table(_of_range(place, number))))


def windows_around(folder: Path, number: int, steps: StepRange) -> pl.DataFrame:
    """Return the windows of a range of steps, and those of the steps before and after it."""
    return windows_of(folder, (number - 1, number, number + 1), steps_around(steps))


def windows_of(folder: Path, numbers: Sequence[int], steps: StepRanges) -> pl.DataFrame:
    """Return the windows of some steps, which are among those of some ranges."""
    files = [_of_range(folder / WINDOWS, each) for each in numbers]
    return pl.concat([read_table(file).filter(is_in_steps(steps)) for file in files if file.exists()])


def _of_range(place: Path, number: int) -> Path:
    return place.with_name(f"{place.name}-{number}.arrow")


def _bounds(file: Path, ranges: Sequence[StepRange]) -> NDArray[np.int64]:
    """Return before which row of a file each range begins, and where the last one ends."""
    return _limits(pl.scan_ipc(file).select("step").collect().to_series(), ranges)


def _limits(steps: pl.Series, ranges: Sequence[StepRange]) -> NDArray[np.int64]:
    starts = [*(each.start for each in ranges), ranges[-1].stop]
    return np.searchsorted(steps.to_numpy(), starts)
