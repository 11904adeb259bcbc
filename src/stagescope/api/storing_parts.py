"""Stores a run of recordings of any size: read twice, one part after the other, and never all at once.

First, every recording is surveyed, and what concerns the whole run is decided. Then each part (a few pipelines) is
read to observe clocks, its rows wait in files, and the clocks of all machines are aligned. Last, the rows of each part
are moved to the common clock and written. Parts do not depend on each other, so they can be read by worker processes
here or on a cluster; with one part, the whole run is in memory.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING
from zlib import crc32

import polars as pl

from stagescope.api.fetched_paths import with_addresses
from stagescope.api.observed_parts import (
    counts_of_pipelines,
    counts_of_ranges,
    observe_run,
    pipelines_of,
)
from stagescope.api.run_clocks import ShownRows, Unsolved, solve_run
from stagescope.api.run_division import (
    DividedRun,
    divide_run,
    parts_to_store,
    sliced_parts,
    spans_together,
)
from stagescope.api.run_parts import Unstored, of_clocks, store_part
from stagescope.api.settling import settled_run
from stagescope.clocks import MAX_PPM, ClockReport
from stagescope.clocks import report_json as clock_json
from stagescope.execution import for_large_items
from stagescope.exporters.new_files import make_directory
from stagescope.exporters.stored_run.partition_files import UNENCODED, unwritten, write_partition
from stagescope.exporters.stored_run.partitions import (
    MOST_SPANS,
    ranges_of_counts,
    whole_tables,
)
from stagescope.exporters.stored_run.waiting_rows import waiting
from stagescope.ingest.memory_need import require_memory_for
from stagescope.ingest.merge import WALL_CLOCK_CODE
from stagescope.ingest.recording.shown_spans import Shown
from stagescope.ingest.recording.survey import (
    Files,
    Survey,
    Surveyed,
    batches,
    copies_in,
    decide_surveyed,
    needed_again,
    survey,
    with_facts_of_spans,
    without_peers,
)
from stagescope.model import SPANS
from stagescope.model.lazy import TableParts
from stagescope.model.stored_run import PARTITIONED, Source
from stagescope.vocabulary.errors import InputError, OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from stagescope.api.observed_parts import ObservedRun
    from stagescope.api.run_parts import Observation, RunPart
    from stagescope.clocks import SolvedClocks
    from stagescope.execution import Executor
    from stagescope.exporters.stored_run import Store, Stored
    from stagescope.exporters.stored_run.partitions import Partition, StepRanges
    from stagescope.exporters.stored_run.waiting_rows import WaitingRows
    from stagescope.ingest import Inputs
    from stagescope.ingest.reader import ReadOptions
    from stagescope.model.stored_run import Manifest, Part
    from stagescope.vocabulary.steps import StepRange

FILES_AT_ONCE = 32
"""Recordings that one task surveys."""
SPANS_OF_PART = 750_000
"""A part of this many spans takes about half a gigabyte of memory while it is stored. One pipeline may have more."""
SPANS_OF_SLICE = 400_000
"""A part with many more spans is read in slices of its steps; each file is written from all that it overlaps."""
CHUNK_BYTES = 1 << 20
SHARES = (0.15, 0.35, 0.5)
"""Of the time: survey, observation and storing."""


@dataclass(frozen=True)
class StoreOptions:
    """How a run is stored by parts: the executor, the sizes of parts and partitions, and callbacks as of `store`."""

    executor: Executor
    on_progress: Callable[[int, int], object] | None = None
    spans_of_part: int = field(default_factory=lambda: SPANS_OF_PART)
    spans_of_slice: int = field(default_factory=lambda: SPANS_OF_SLICE)
    most_spans: int = field(default_factory=lambda: MOST_SPANS)
    on_notice: Callable[[str], object] = str


@dataclass
class FileProgress:
    """Reports several passes over the files as one."""

    files: int
    report: Callable[[int, int], object] | None
    done: float = 0.0
    reported: int = -1

    def add(self, share: float) -> None:
        """Report that a part of the work is done, if that is another number of files."""
        self.done = min(1.0, self.done + share)
        files = int(round(self.files * self.done, 6))
        if self.report is not None and files > self.reported:
            self.reported = files
            self.report(files, self.files)


def source_of(file: Path) -> Source:
    """Return what a manifest states about a file that a run is stored from. Raises InputError."""
    try:
        facts = file.stat()
        return Source(str(file.resolve()), facts.st_size, facts.st_mtime_ns, _checksum(file))
    except OSError as reason:
        raise InputError.cannot_read(file, reason) from reason


def _checksum(file: Path) -> str:
    """Return the CRC-32 of a file, which is enough to notice that it has changed and takes a quarter of BLAKE2b's time.

    Raises OSError.
    """
    found = 0
    with file.open("rb", buffering=0) as content:
        while chunk := content.read(CHUNK_BYTES):
            found = crc32(chunk, found)
    return f"crc32:{found:08x}"


def surveyed_files(files: Files) -> tuple[Survey, list[Source]]:
    """Return what is known of some files, one after the other, so that each is fetched from its disk once for both."""
    return survey(files), [source_of(path) for path in files.paths if os.path.lexists(path)]


def survey_run(
    paths: Sequence[Path], options: ReadOptions, how: StoreOptions, directory: Path
) -> tuple[Surveyed, list[Source]]:
    """Return what is known and decided about the recordings of a run, and the files with their checksums.

    Readings of clocks wait in `directory` meanwhile. Raises InputError as read_recordings does, and OutputError.
    """
    progress = FileProgress(len(paths), how.on_progress)
    progress.add(0.0)
    folder = directory / UNENCODED / f"readings-{token_hex(8)}"
    try:
        make_directory(folder)
        return _surveyed(paths, options, (progress, how), folder)
    except OSError as reason:
        raise OutputError.not_stored(directory, reason) from reason
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # not empty, if an earlier call was interrupted
            folder.parent.rmdir()


def _surveyed(
    paths: Sequence[Path], options: ReadOptions, call: tuple[FileProgress, StoreOptions], folder: Path
) -> tuple[Surveyed, list[Source]]:
    progress, how = call
    every = batches(paths, FILES_AT_ONCE, options.steps)
    files = [each._replace(readings=folder / str(number)) for number, each in enumerate(every)]
    surveys, sources = [], []
    for each, (found, own) in zip(files, how.executor.map(surveyed_files, files), strict=True):
        surveys.append(found)
        sources += own
        progress.add(SHARES[0] * len(each.paths) / len(paths))
    copies, notes = copies_in(surveys)
    if copies:
        again = [place for place, each in enumerate(files) if copies.intersection(each.paths)]
        without = [files[place]._replace(copies=copies.intersection(files[place].paths)) for place in again]
        for place, found in zip(again, how.executor.map(survey, without), strict=True):
            surveys[place] = found
    surveyed = decide_surveyed(surveys, (copies, notes), options)
    shown = Shown()
    while (wanted := needed_again(surveyed, shown)) is not None:
        shown = wanted
        once_more = [each._replace(copies=copies.intersection(each.paths), shown=shown) for each in files]
        surveyed = with_facts_of_spans(surveyed, list(how.executor.map(survey, once_more)))
    return surveyed, sources


def store_parts(
    surveyed: Surveyed,
    inputs: Inputs,
    options: ReadOptions,
    how: StoreOptions,
    to: tuple[Callable[[], AbstractContextManager[Store]], Manifest],
) -> Stored:
    """Store a run that was surveyed part by part, and return what was stored.

    `to` has what begins the store, and its manifest. Raises InputError as reading does, and OutputError.
    """
    begin, manifest = to
    run = divide_run(surveyed, inputs.diagnostics, options, how.spans_of_part)
    if surveyed.has_known_steps:
        _require_memory(run.parts, how)
    progress = FileProgress(inputs.file_count, how.on_progress, SHARES[0], int(inputs.file_count * SHARES[0]))
    with begin() as store:
        place = store.directory.absolute()
        settled = surveyed
        if not surveyed.is_settled:
            settled = settled_run(surveyed, how.executor, place)
            run = divide_run(settled, inputs.diagnostics, options, how.spans_of_part)
            _require_memory(run.parts, how)
        observed = _observed(run, place, options.steps, (progress, how))
        if options.steps is not None and observed.lacks_stated_peers:
            run = divide_run(without_peers(settled), inputs.diagnostics, options, how.spans_of_part)
            _require_memory(run.parts, how)
            observed = _observed(run, place, options.steps, (progress, how))
        return _stored(store, manifest, observed, (progress, how))


def _require_memory(parts: Sequence[RunPart], how: StoreOptions) -> None:
    """Raise InputError if the spans of one of these parts, or of a slice of it, need more memory than there is."""
    ways: dict[bool, list[RunPart]] = {True: [], False: []}
    for part in parts:
        ways[any(len(process.facts.steps) for process in part.decisions.processes)].append(part)
    for has_steps, own in ways.items():
        if own:
            refused = InputError.more_than_memory if has_steps else InputError.indivisible_without_steps
            require_memory_for(spans_together(own, how.spans_of_slice), refused)


def _observed(
    run: DividedRun, place: Path, steps: StepRange | None, call: tuple[FileProgress, StoreOptions]
) -> ObservedRun:
    """Return what the parts of a run show, or slices of these, with their rows in files below `place`."""
    progress, how = call
    slices = sliced_parts(
        run.parts, how.spans_of_slice, how.executor, place, lambda share: progress.add(SHARES[1] * share / 2)
    )
    to_observe = SHARES[0] + SHARES[1] - progress.done
    sliced = run._replace(parts=slices)
    return observe_run(sliced, how.executor, place, steps, lambda share: progress.add(to_observe * share))


def _stored(
    store: Store, manifest: Manifest, observed: ObservedRun, call: tuple[FileProgress, StoreOptions]
) -> Stored:
    progress, how = call
    run, tables, observations = observed
    solved = None
    if manifest.aligned:
        wall = tables.diagnostics["code"].ne_missing(WALL_CLOCK_CODE)
        tables = replace(tables, diagnostics=tables.diagnostics.filter(wall))
        if len(run.clocks.clocks) > 1:
            solved = _solved(run._replace(tables=tables), observations, how)
            tables = replace(tables, clocks=solved.clocks).with_diagnostics(solved.notes)
        report = ClockReport((), max_ppm=MAX_PPM) if solved is None else solved.report
        manifest = replace(manifest, alignment=clock_json(report))
    pipelines = pipelines_of(observations, run)
    counts = counts_of_pipelines(observations, pipelines)
    of_spans = TableParts(counts, lambda each: each.filter(table=SPANS.name))
    ranges = ranges_of_counts(of_spans, how.most_spans)
    expected = counts_of_ranges(counts, ranges)
    tables = with_addresses(tables)
    whole = [_stored_whole(table, store) for table in whole_tables(tables)]
    completed: dict[str, Part] = {}
    items = []
    for group in parts_to_store(run.parts, expected):
        known = {path: store.journal.completed(path, rows) for path, rows in group.files.items()}
        completed |= {path: each for path, each in known.items() if each is not None}
        missing = frozenset(known.keys() - completed.keys())
        if missing:
            parts = [(run.parts[number], observations[number].rows) for number in group.parts]
            items.append(_unstored(parts, store, (pipelines, ranges), (missing, group.only), solved))
    share = SHARES[2] / max(1, len(items))
    for written in how.executor.map(store_part, items):
        for each in written:
            store.add(each)
            completed[each.path] = each
        progress.add(share)
    order = {table.name: place for place, table in enumerate(PARTITIONED)}
    divided = sorted(completed.values(), key=lambda each: (order[each.table], each.pipeline, each.step_range))
    return store.finish(manifest, [*whole, *divided], tables.diagnostics)


def _solved(run: DividedRun, observations: Sequence[Observation], how: StoreOptions) -> SolvedClocks:
    """Return the corrections of all clocks of the run."""
    item = Unsolved(
        run.clocks._replace(timeline=run.tables),
        tuple(each.observed for each in observations),
        tuple(each.extents for each in observations),
        tuple(
            ShownRows(partial(waiting, [each.rows]), part.numbered)
            for each, part in zip(observations, run.parts, strict=True)
        ),
    )
    with for_large_items(how.executor, how.on_notice) as executor:
        [solved] = executor.map(solve_run, [item])
    return solved


def _stored_whole(partition: Partition, store: Store) -> Part:
    """Return the file of a table that is not divided, which is written unless it is there."""
    found = store.journal.completed(partition.path, partition.rows.height)
    if found is None:
        found = write_partition(unwritten(partition, store.directory.absolute(), by_file=False))
        store.add(found)
    return found


def _unstored(
    parts: Sequence[tuple[RunPart, WaitingRows]],
    store: Store,
    places: tuple[pl.DataFrame, StepRanges],
    files: tuple[frozenset[str], int | None],
    solved: SolvedClocks | None,
) -> Unstored:
    pipelines, ranges = places
    missing, only = files
    numbered = pl.concat(part.numbered for part, _ in parts).unique("rank", maintain_order=True)
    own = pipelines.join(numbered.select("rank"), on="rank", how="semi", maintain_order="left")
    corrections = None
    if solved is not None:
        numbered, corrections = of_clocks(numbered, solved.corrections)
    rows = tuple(each for _, each in parts)
    where = store.directory.absolute()
    return Unstored(parts[0][0].name, rows, numbered, where, own, ranges, missing, corrections, only)
