"""Stores a run of recordings of any size: read twice, one part after the other, and never all at once.

First, every recording is surveyed, and what concerns the whole run is decided. Then each part (a few pipelines) is
read to observe clocks, its rows wait in files, and the clocks of all machines are aligned. Last, the rows of each part
are moved to the common clock and written. Parts do not depend on each other, so they can be read by worker processes
here or on a cluster; with one part, the whole run is in memory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from zlib import crc32

import polars as pl

from stagescope.api.detached_tables import attach
from stagescope.api.fetched_paths import with_addresses
from stagescope.api.run_clocks import Unsolved, solve_run
from stagescope.api.run_division import (
    DividedRun,
    divide_run,
    parts_to_store,
    sliced_parts,
    spans_together,
)
from stagescope.api.run_parts import (
    Observation,
    Unobserved,
    Unstored,
    observe_part,
    of_clocks,
    store_part,
)
from stagescope.api.settling import settled_run
from stagescope.clocks import MAX_PPM, ClockReport
from stagescope.clocks import report_json as clock_json
from stagescope.execution import for_large_items
from stagescope.exporters.stored_run.partition_files import unwritten, write_partition
from stagescope.exporters.stored_run.partitions import (
    MOST_SPANS,
    ranges_of_counts,
    whole_tables,
    with_step_range,
)
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
)
from stagescope.ingest.stages import note_ranks_without_stages
from stagescope.model import SPANS
from stagescope.model.diagnostics import Diagnostic, diagnostics_table
from stagescope.model.pipelines import find_pipelines
from stagescope.model.stored_run import NONE, PARTITIONED, Source
from stagescope.model.validate import conform
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.kinds import ACTION_KINDS
from stagescope.vocabulary.limits import require, require_if_stated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from stagescope.api.run_parts import RunPart
    from stagescope.clocks import SolvedClocks
    from stagescope.execution import Executor
    from stagescope.exporters.stored_run import Store, Stored
    from stagescope.exporters.stored_run.partitions import Partition, StepRanges
    from stagescope.exporters.stored_run.waiting_rows import WaitingRows
    from stagescope.ingest import Inputs
    from stagescope.ingest.reader import ReadOptions
    from stagescope.model import Timeline
    from stagescope.model.stored_run import Manifest, Part

FILES_AT_ONCE = 32
"""Recordings that one task surveys."""
SPANS_OF_PART = 750_000
"""A part of this many spans takes about half a gigabyte of memory while it is stored. One pipeline may have more."""
SPANS_OF_SLICE = 400_000
"""A part with many more spans is read in slices of its steps; each file is written from all that it overlaps."""
CHUNK_BYTES = 1 << 20
SHARES = (0.15, 0.35, 0.5)
"""Of the time: survey, observation and storing."""
NOTE_ORDER = ("values.impossible", "timestamps.implausible", "spans.reversed", "waits.reversed")
VALUE_ORDER = ("spans", "step", "pair", "bytes", "microbatch", "stage", "chunk", "peer", "values")


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
class _Progress:
    """Reports the three passes over the files as one."""

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
    paths: Sequence[Path], options: ReadOptions, how: StoreOptions
) -> tuple[Surveyed, list[Source]]:
    """Return what is known and decided about the recordings of a run, and the files with their checksums.

    Raises InputError as read_recordings does.
    """
    progress = _Progress(len(paths), how.on_progress)
    progress.add(0.0)
    files = list(batches(paths, FILES_AT_ONCE))
    surveys, sources = [], []
    for each, (found, own) in zip(files, how.executor.map(surveyed_files, files), strict=True):
        surveys.append(found)
        sources += own
        progress.add(SHARES[0] * len(each.paths) / len(paths))
    copies, notes = copies_in(surveys)
    if copies:
        again = [place for place, each in enumerate(files) if copies.intersection(each.paths)]
        without = [Files(files[place].paths, copies.intersection(files[place].paths)) for place in again]
        for place, found in zip(again, how.executor.map(survey, without), strict=True):
            surveys[place] = found
    surveyed = decide_surveyed(surveys, (copies, notes), options)
    shown = Shown()
    while (wanted := needed_again(surveyed, shown)) is not None:
        shown = wanted
        once_more = [Files(each.paths, copies.intersection(each.paths), shown) for each in files]
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
    with begin() as store:
        if not surveyed.is_settled:
            settled = settled_run(surveyed, how.executor, store.directory.absolute())
            run = divide_run(settled, inputs.diagnostics, options, how.spans_of_part)
            _require_memory(run.parts, how)
        return _stored(store, manifest, run, (inputs, how))


def _require_memory(parts: Sequence[RunPart], how: StoreOptions) -> None:
    """Raise InputError if the spans of one of these parts, or of a slice of it, need more memory than there is."""
    ways: dict[bool, list[RunPart]] = {True: [], False: []}
    for part in parts:
        ways[any(len(process.facts.steps) for process in part.decisions.processes)].append(part)
    for has_steps, own in ways.items():
        if own:
            refused = InputError.more_than_memory if has_steps else InputError.indivisible_without_steps
            require_memory_for(spans_together(own, how.spans_of_slice), refused)


def _stored(
    store: Store,
    manifest: Manifest,
    run: DividedRun,
    call: tuple[Inputs, StoreOptions],
) -> Stored:
    inputs, how = call
    recordings = sum(len(part.decisions.processes) for part in run.parts)
    progress = _Progress(inputs.file_count, how.on_progress, SHARES[0], int(inputs.file_count * SHARES[0]))
    place = store.directory.absolute()
    slices = sliced_parts(
        run.parts, how.spans_of_slice, how.executor, place, lambda share: progress.add(SHARES[1] * share / 2)
    )
    run = run._replace(parts=slices)
    to_observe = SHARES[0] + SHARES[1] - progress.done
    observations: list[Observation] = []
    unobserved = [Unobserved(part, place) for part in run.parts]
    for part, found in zip(run.parts, how.executor.map(observe_part, unobserved), strict=True):
        observations.append(found)
        share = len(part.decisions.processes) / recordings
        progress.add(to_observe * share / part.run.slices)
    tables = _with_observed_notes(run, observations)
    _check_limits(observations, tables)
    solved = None
    if manifest.aligned:
        wall = tables.diagnostics["code"].ne_missing(WALL_CLOCK_CODE)
        tables = replace(tables, diagnostics=tables.diagnostics.filter(wall))
        if len(run.clocks.clocks) > 1:
            solved = _solved(run._replace(tables=tables), observations, how)
            tables = replace(tables, clocks=solved.clocks).with_diagnostics(solved.notes)
        report = ClockReport((), max_ppm=MAX_PPM) if solved is None else solved.report
        manifest = replace(manifest, alignment=clock_json(report))
    pipelines = _pipelines(observations, run)
    counts = _counts_of_pipelines(observations, pipelines)
    ranges = ranges_of_counts(counts.filter(pl.col("table") == SPANS.name), how.most_spans)
    tables = with_addresses(tables)
    whole = [_stored_whole(table, store) for table in whole_tables(tables)]
    completed: dict[str, Part] = {}
    items = []
    for group in parts_to_store(run.parts, with_step_range(counts, ranges)):
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


def _stored_whole(partition: Partition, store: Store) -> Part:
    """Return the file of a table that is not divided, which is written unless it is there."""
    found = store.journal.completed(partition.path, partition.rows.height)
    if found is None:
        found = write_partition(unwritten(partition, store.directory.absolute(), by_file=False))
        store.add(found)
    return found


def _with_observed_notes(run: DividedRun, observations: Iterable[Observation]) -> Timeline:
    """Return the tables of the run with the diagnostics about its rows, where reading it at once has them."""
    found = [note for each in observations for note in each.notes]
    totals: dict[tuple[object, ...], Diagnostic] = {}
    for note in found:
        key = (note.code, note.message, note.source, note.rank, note.location)
        before = totals.get(key)
        totals[key] = note if before is None else replace(note, count=before.count + note.count)

    def place(note: Diagnostic) -> tuple[int, int, int]:
        code = NOTE_ORDER.index(note.code) if note.code in NOTE_ORDER else len(NOTE_ORDER)
        word = note.message.split(" ", 1)[0]
        return code, VALUE_ORDER.index(word) if word in VALUE_ORDER else len(VALUE_ORDER), note.rank or 0

    rows = diagnostics_table(sorted(totals.values(), key=place))
    stages = pl.concat(each.stages for each in observations).group_by("rank").agg(pl.any("has_stage"))
    last = [] if run.placement.rule is None else note_ranks_without_stages(stages)
    diagnostics = pl.concat([run.before, rows, run.tables.diagnostics])
    return replace(run.tables, diagnostics=diagnostics).with_diagnostics(last)


def _check_limits(observations: Iterable[Observation], tables: Timeline) -> None:
    """Raise InputError if the run has more than the limits allow."""
    source = next(iter(tables.ranks["source"].drop_nulls()), "the run")
    span_count, steps = 0, pl.Series("step", [], pl.Int32)
    for each in observations:
        of_spans = attach(each.counts).filter(pl.col("table") == SPANS.name)
        span_count += int(of_spans["n"].sum())
        steps = pl.concat([steps, of_spans["step"].unique()]).unique()
    names = pl.concat([each.names for each in observations]).unique()
    longest = max((len(name) for name in names.drop_nulls()), default=0)
    require_if_stated("spans", span_count, source)
    require("ranks", tables.ranks.height, source)
    require("steps", len(steps), source)
    require("names", len(names), source)
    require("name-length", longest, source)


def _solved(run: DividedRun, observations: Sequence[Observation], how: StoreOptions) -> SolvedClocks:
    """Return the corrections of all clocks of the run."""
    item = Unsolved(
        run.clocks._replace(timeline=run.tables),
        tuple(each.observed for each in observations),
        tuple(each.extents for each in observations),
        tuple(each.rows for each in observations),
        tuple(part.numbered for part in run.parts),
    )
    with for_large_items(how.executor, how.on_notice) as executor:
        [solved] = executor.map(solve_run, [item])
    return solved


def _counts_of_pipelines(observations: Sequence[Observation], pipelines: pl.DataFrame) -> pl.DataFrame:
    """Return how many rows (n) of each table the pipelines have in every step, by the number of the part.

    Those of ranks are read one part after the other.
    """
    keys = ("table", "pipeline", "step")
    found: list[pl.DataFrame] = []
    for number, each in enumerate(observations):
        counts: pl.DataFrame = attach(each.counts)
        placed = counts.join(pipelines, on="rank", how="left")
        sums = placed.with_columns(pl.col("pipeline").fill_null(NONE)).group_by(keys).agg(pl.sum("n"))
        found.append(sums.with_columns(part=pl.lit(number)))
    return pl.concat(found)


def _pipelines(observations: Sequence[Observation], run: DividedRun) -> pl.DataFrame:
    """Return rank and pipeline of the ranks with actions, as find_pipelines does for the whole run."""
    edges = pl.concat(each.edges for each in observations).sort("rank", "peer")
    acted = pl.concat([each.acted for each in observations])
    rows = pl.concat(
        [
            edges.with_columns(pl.col("kind").cast(pl.String)),
            pl.DataFrame(
                {"rank": acted, "kind": ACTION_KINDS[0]}, schema={"rank": pl.Int32, "kind": pl.String}
            ),
            *(each.first_actions.with_columns(pl.col("kind").cast(pl.String)) for each in observations),
        ],
        how="diagonal",
    )
    spans = conform(rows.with_columns(lane=pl.lit("host"), start_ns=0, end_ns=0), SPANS)
    return find_pipelines(spans, run.tables.ranks)


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
