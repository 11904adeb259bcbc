"""Stores a run that was stored without alignment once more, with the clocks of its machines aligned.

A file of a stored run has the rows of whole pipelines in a range of steps: everything that shows the messages, actions
and reductions of these. So each file is read alone, first to find out who exchanges messages with whom, and then to
observe the clocks. The clocks are aligned with what all files show together. Last, the rows of each file are moved to
the common clock, into a file of the same name. Memory is that of the largest file in each worker.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope import __version__
from stagescope.api.code_checksums import STORING, checksum_of_code
from stagescope.api.detached_tables import detach
from stagescope.api.fetched_paths import with_source_addresses
from stagescope.api.run_clocks import ShownRows, Unsolved, solve_run
from stagescope.api.run_parts import of_clocks
from stagescope.api.storing_parts import FileProgress, source_of
from stagescope.clocks import (
    MAX_PPM,
    ClockReport,
    PartOfRun,
    clocks_of_run,
    extents_of,
    observe,
    with_corrections,
)
from stagescope.clocks import report_json as clock_json
from stagescope.execution import executor_for, for_large_items
from stagescope.execution.spawning import core_count
from stagescope.exporters.new_files import make_directory
from stagescope.exporters.stored_run import locked, storing
from stagescope.exporters.stored_run.partition_files import UNENCODED, unwritten, write_partition
from stagescope.exporters.stored_run.partitions import Partition, whole_tables
from stagescope.ingest.merge import WALL_CLOCK_CODE
from stagescope.ingest.processes import fitting_workers
from stagescope.ingest.stored_run import SOURCE_CHANGED, read_manifest, read_part, read_small_tables
from stagescope.model import SPANS, STEPS, empty_timeline
from stagescope.model.collectives import find_calls
from stagescope.model.pipelines import connected_ranks
from stagescope.model.stored_run import FORMAT, MANIFEST, NONE, TABLE_OF, VERSION, Manifest
from stagescope.model.validate import in_order_together
from stagescope.vocabulary.errors import OutputError
from stagescope.vocabulary.kinds import RECEIVES, SENDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from stagescope.clocks import ClocksOfRun, Observed, SolvedClocks
    from stagescope.clocks.correction import Correction
    from stagescope.execution import Executor
    from stagescope.exporters.stored_run import Store, Stored
    from stagescope.model import Timeline
    from stagescope.model.stored_run import Part

SHARES = (0.1, 0.3, 0.6)
"""Of the time: looking for messages between clocks, observation with alignment, and storing."""


class Unsurveyed(NamedTuple):
    """A file of spans of the stored run in a directory."""

    directory: Path
    part: Part

    @property
    def name(self) -> str:
        """How messages name it."""
        return self.part.path


class Surveyed(NamedTuple):
    """What files of spans show about their ranks: the groups of collectives, and who exchanges messages with whom.

    `placed` has rank and pipeline, `groups` rank and group, and `edges` rank and peer.
    """

    placed: pl.DataFrame
    groups: pl.DataFrame
    edges: pl.DataFrame


class Unit(NamedTuple):
    """Files of the spans and steps that are looked at together, and what is known of their ranks.

    They are of one range of steps, and of one pipeline, or of those that exchange messages. `ranks` are rows of the
    table of ranks, and `numbered` has their clocks.
    """

    directory: Path
    parts: tuple[Part, ...]
    ranks: pl.DataFrame
    numbered: pl.DataFrame
    run: PartOfRun

    @property
    def name(self) -> str:
        """How messages name it."""
        return self.parts[0].path


class Shown(NamedTuple):
    """What a unit shows about clocks; the tables of `observed` are in files."""

    observed: Observed
    extents: pl.DataFrame


class Unmoved(NamedTuple):
    """A file whose rows are to be stored in the directory `out`: moved by the corrections of the `numbered` clocks.

    Without corrections, timestamps stay.
    """

    directory: Path
    part: Part
    out: Path
    numbered: pl.DataFrame
    corrections: tuple[Correction, ...] | None

    @property
    def name(self) -> str:
        """How messages name it."""
        return self.part.path


@dataclass(frozen=True)
class _Copying:
    """A run that is being stored with aligned clocks, its tables that are not divided, and who works on it."""

    directory: Path
    manifest: Manifest
    tables: Timeline
    store: Store
    executor: Executor
    progress: FileProgress
    on_notice: Callable[[str], object]

    @property
    def out(self) -> Path:
        """Where the run is stored, also for workers."""
        return self.store.directory.absolute()


def store_aligned(
    directory: Path,
    *,
    out: Path,
    workers: int | None = None,
    on_progress: Callable[[int, int], object] | None = None,
    on_notice: Callable[[str], object] = str,
) -> Stored:
    """Store a run that was stored without alignment in the directory `out`, with aligned clocks.

    The run in `directory` is only read. The result is what `store` makes of its sources without `align=False`, except
    that a long run has other, equally many observations of its clocks. `workers` processes work on it, by default one
    for each processor. `on_progress` is called with the number of files done and of all.

    Raises InputError if a file of the run is missing or damaged; OutputError if another process is writing to `out`, or
    it cannot be written; CommandError if the libraries of the extra ``store`` are missing.
    """
    manifest = read_manifest(directory)
    tables = read_small_tables(directory, manifest)
    sources = (*manifest.sources, *with_source_addresses([source_of(directory / MANIFEST)]))
    wanted = Manifest(FORMAT, VERSION, f"stagescope {__version__}", sources, manifest.facts, aligned=True)
    wanted = replace(wanted, code=checksum_of_code(STORING))
    progress = FileProgress(len(manifest.parts), on_progress)
    progress.add(0.0)
    count = workers or min(core_count(), fitting_workers())
    try:
        make_directory(out)
    except OSError as reason:
        raise OutputError.cannot_write(out, reason) from reason
    with locked(out), executor_for(count, None, on_notice) as executor, storing(out, wanted) as store:
        copying = _Copying(directory, manifest, tables, store, executor, progress, on_notice)
        return _stored(copying, wanted)


def _stored(copying: _Copying, wanted: Manifest) -> Stored:
    """Return what was stored. Raises OSError, and InputError if a file cannot be read."""
    tables = copying.tables
    is_outdated = pl.col("code").is_in([WALL_CLOCK_CODE, SOURCE_CHANGED])
    tables = replace(tables, diagnostics=tables.diagnostics.filter(~is_outdated))
    surveyed = _surveyed(copying)
    every = pl.concat([tables.ranks.select("rank"), surveyed.placed.select("rank")]).unique()
    clocks = clocks_of_run(tables, every)
    placed = clocks.numbered.join(surveyed.placed, on="rank", how="left", maintain_order="left")
    surveyed = surveyed._replace(placed=placed.with_columns(pl.col("pipeline").fill_null(NONE)))
    solved = None
    if len(clocks.clocks) > 1:
        solved = _solved(copying, clocks, _units(copying, clocks, surveyed))
        tables = replace(tables, clocks=solved.clocks).with_diagnostics(solved.notes)
    report = ClockReport((), max_ppm=MAX_PPM) if solved is None else solved.report
    whole = [write_partition(unwritten(each, copying.out, by_file=False)) for each in whole_tables(tables)]
    for part in whole:
        copying.store.add(part)
    moved = _moved(copying, surveyed.placed, None if solved is None else solved.corrections)
    copying.progress.add(1.0)  # also if files were there, or there is one clock
    aligned = replace(wanted, alignment=clock_json(report))
    return copying.store.finish(aligned, [*whole, *moved], tables.diagnostics)


def _surveyed(copying: _Copying) -> Surveyed:
    """Return what all files of spans show."""
    parts = [part for part in copying.manifest.parts if part.table == SPANS.name]
    found = [_shown(SPANS.empty(), NONE)]
    for each in copying.executor.map(survey_file, [Unsurveyed(copying.directory, part) for part in parts]):
        found.append(each)
        copying.progress.add(SHARES[0] / len(parts))
    return Surveyed(*(pl.concat(tables).unique() for tables in zip(*found, strict=True)))


def survey_file(item: Unsurveyed) -> Surveyed:
    """Return what a file shows about its ranks. Raises InputError if it is missing or damaged."""
    pipeline = item.part.pipeline
    return _shown(read_part(item.directory, item.part), NONE if pipeline is None else pipeline)


def _shown(spans: pl.DataFrame, pipeline: int) -> Surveyed:
    is_edge = pl.col("kind").is_in([*SENDS, *RECEIVES]) & pl.col("peer").is_not_null()
    return Surveyed(
        spans.select(pl.col("rank").unique(), pipeline=pl.lit(pipeline, pl.Int32)),
        find_calls(spans).select("rank", "group").unique(),
        spans.lazy().filter(is_edge).select("rank", "peer").unique().collect(),
    )


def _units(copying: _Copying, clocks: ClocksOfRun, surveyed: Surveyed) -> list[Unit]:
    """Return the files that are looked at together, by range of steps and pipelines that exchange messages."""
    placed = surveyed.placed
    groups = surveyed.groups.join(placed, on="rank")
    wide = groups.group_by("group").agg(pl.col("clock").n_unique()).filter(pl.col("clock") > 1)["group"]
    root = _together(surveyed)
    parts: dict[tuple[int, int | None], list[Part]] = {}
    for part in copying.manifest.parts:
        if part.table in {SPANS.name, STEPS.name} and part.pipeline is not None:
            parts.setdefault((root.get(part.pipeline, part.pipeline), part.step_range), []).append(part)
    units = []
    for (together, _), own in parts.items():
        pipelines = [together, *(each for each, representative in root.items() if representative == together)]
        is_own = pl.col("pipeline").is_in(pipelines)
        own_groups: pl.Series = groups.filter(is_own & pl.col("group").is_in(wide.implode()))[
            "group"
        ].unique()
        of_run = PartOfRun(own_groups.sort(), surveyed.edges.height > 0, len(clocks.clocks))
        numbered = placed.filter(is_own).select("rank", "clock")
        ranks = clocks.timeline.ranks.join(numbered, on="rank", how="semi", maintain_order="left")
        units.append(Unit(copying.directory, tuple(own), ranks, numbered, of_run))
    # Each keeps a share of the observations that two clocks need: those of one pair are in as many units.
    sharing = Counter(_clocks_of(unit) for unit in units)
    return [unit._replace(run=unit.run._replace(slices=sharing[_clocks_of(unit)])) for unit in units]


def _clocks_of(unit: Unit) -> tuple[int, ...]:
    return tuple(unit.numbered["clock"].unique().sort())


def _together(surveyed: Surveyed) -> dict[int, int]:
    """Return for each pipeline that exchanges messages with another one the one that represents all of these.

    Usually there are none: ranks that exchange messages form a pipeline. But ranks without actions are in none.
    """
    pipelines = surveyed.placed.select("rank", "pipeline")
    ends = surveyed.edges.join(pipelines, on="rank").join(
        pipelines.select(peer="rank", other="pipeline"), on="peer"
    )
    others = ends.filter(pl.col("pipeline") != pl.col("other")).select("pipeline", "other")
    return connected_ranks(others.unique().sort("pipeline", "other").iter_rows())


def read_unit(unit: Unit) -> Timeline:
    """Return the spans and steps of a unit, with the table of its ranks. Raises InputError if a file is damaged."""
    rows = {
        table: [read_part(unit.directory, part) for part in unit.parts if part.table == table.name]
        for table in (SPANS, STEPS)
    }
    spans, steps = (
        in_order_together(pieces, table) if pieces else table.empty() for table, pieces in rows.items()
    )
    return replace(empty_timeline(), ranks=unit.ranks, spans=spans, steps=steps)


class Unobserved(NamedTuple):
    """A unit that is to be observed, and the directory for files with what it shows."""

    unit: Unit
    out: Path

    @property
    def name(self) -> str:
        """How messages name it."""
        return self.unit.name


def observe_unit(item: Unobserved) -> Shown:
    """Return what a unit shows about clocks. Raises OSError, and InputError if a file is damaged."""
    timeline, numbered = read_unit(item.unit), item.unit.numbered
    # A worker that was taken for dead may still write its own files.
    folder = item.out / UNENCODED / f"observed-{token_hex(8)}"
    return Shown(detach(observe(timeline, numbered, item.unit.run), folder), extents_of(timeline, numbered))


def _solved(copying: _Copying, clocks: ClocksOfRun, units: Sequence[Unit]) -> SolvedClocks:
    """Return the corrections of all clocks of the run."""
    make_directory(copying.out / UNENCODED)
    shown = []
    for found in copying.executor.map(observe_unit, [Unobserved(unit, copying.out) for unit in units]):
        shown.append(found)
        copying.progress.add(SHARES[1] / len(units))
    item = Unsolved(
        clocks,
        tuple(each.observed for each in shown),
        tuple(each.extents for each in shown),
        tuple(ShownRows(partial(read_unit, unit), unit.numbered) for unit in units),
    )
    with for_large_items(copying.executor, copying.on_notice) as executor:
        [solved] = executor.map(solve_run, [item])
    return solved


def _moved(copying: _Copying, placed: pl.DataFrame, corrections: tuple[Correction, ...] | None) -> list[Part]:
    """Return the files of the divided tables, in their order, after writing those that are not there yet.

    `placed` has rank, clock and pipeline.
    """
    parts = [part for part in copying.manifest.parts if part.pipeline is not None]
    done = {part.path: copying.store.journal.completed(part.path, part.rows) for part in parts}
    items = []
    for part in parts:
        if done[part.path] is None:
            numbered, own = placed.filter(pl.col("pipeline") == part.pipeline).select("rank", "clock"), None
            if corrections is not None:
                numbered, own = of_clocks(numbered, corrections)
            items.append(Unmoved(copying.directory, part, copying.out, numbered, own))
    for written in copying.executor.map(move_file, items):
        copying.store.add(written)
        done[written.path] = written
        copying.progress.add(SHARES[2] / len(items))
    return [found for found in done.values() if found is not None]


def move_file(item: Unmoved) -> Part:
    """Write the rows of a file with their timestamps on the common clock, and return its part of the manifest.

    Raises OSError, and InputError if the file is missing or damaged.
    """
    table, rows = TABLE_OF[item.part.table], read_part(item.directory, item.part)
    if item.corrections is not None:
        timeline: Timeline = replace(empty_timeline(), **{table.name: rows})  # type: ignore[arg-type]  # a table
        rows = getattr(with_corrections(timeline, item.numbered, item.corrections), table.name)
    partition = Partition(table, rows.rechunk(), item.part.pipeline, item.part.step_range)
    return write_partition(unwritten(partition, item.out, by_file=False))
