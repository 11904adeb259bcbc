"""The parts of a run that are read, observed and stored independently of each other, in worker processes.

A part has the recordings of a few whole pipelines. What holds for the whole run was decided before (RunOfParts), so
that the tables of a part are exactly the rows that reading the whole run at once gives for its ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from secrets import token_hex
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.api.detached_tables import attach, detach
from stagescope.api.part_slices import read_slice
from stagescope.clocks import extents_of, joined_slices, observe, transfers_between, with_corrections
from stagescope.exporters.stored_run.partition_files import (
    UNENCODED,
    unwritten,
    write_partition,
    write_stepless,
)
from stagescope.exporters.stored_run.partitions import Partition, divide_tables, of_range
from stagescope.exporters.stored_run.waiting_rows import rows_by_rank, wait, waiting
from stagescope.ingest.merge import conformed, with_valid_rows
from stagescope.ingest.recording.survey import contents_of, timeline_of_part
from stagescope.ingest.stages import stage_evidence, with_placement
from stagescope.ingest.step_selection import rows_of_steps, shown_steps
from stagescope.ingest.step_sizes import stated_sizes
from stagescope.model import SPANS, empty_timeline
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.stored_run import NONE, PARTITIONED
from stagescope.vocabulary.kinds import ACTION_KINDS, PLAIN_TRANSFERS, RECEIVES, SENDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from stagescope.api.detached_tables import Detached
    from stagescope.api.part_slices import Slice
    from stagescope.clocks import Observed, PartOfRun
    from stagescope.clocks.correction import Correction
    from stagescope.exporters.stored_run.partitions import StepRanges
    from stagescope.exporters.stored_run.waiting_rows import WaitingRows
    from stagescope.ingest.recording.decisions import Decisions
    from stagescope.ingest.recording.survey import Files
    from stagescope.ingest.stages import Placement
    from stagescope.ingest.step_selection import ShownSteps, StepWindows
    from stagescope.model import Timeline
    from stagescope.model.stored_run import Part
    from stagescope.model.tables import Table
    from stagescope.vocabulary.steps import StepRange


@dataclass(frozen=True)
class RunPart:
    """Some recordings of a run, and what was decided about the whole of it; `numbered` has the clocks of its ranks.

    `slice` states which of their spans are read, None for all.
    """

    decisions: Decisions
    files: tuple[Files, ...]
    placement: Placement
    numbered: pl.DataFrame
    run: PartOfRun
    slice: Slice | None = None

    @property
    def name(self) -> str:
        """How messages name the part."""
        ranks = [process.rank for process in self.decisions.processes]
        name = f"ranks {min(ranks)} to {max(ranks)}" if len(ranks) > 1 else f"rank {ranks[0]}"
        if self.slice is None:
            return name
        return (
            f"{name}, slice {self.slice.number} of their {'spans' if self.slice.steps is None else 'steps'}"
        )


class ReadRows(NamedTuple):
    """What was read of a part, before some steps are selected.

    These are the number of spans, their distinct steps and names, those of stated_sizes and of stage_evidence, and
    diagnostics about rows.
    """

    spans: int
    steps: pl.Series
    names: pl.Series
    sizes: pl.DataFrame
    stages: pl.DataFrame
    notes: tuple[Diagnostic, ...]


class Unselected(NamedTuple):
    """A part of which some steps are to be selected, and the directory that its rows wait in."""

    part: RunPart
    directory: Path
    steps: StepRange

    @property
    def name(self) -> str:
        """How messages name the part."""
        return self.part.name


class Kept(NamedTuple):
    """The files with the rows of a part, its ranks, what was read of it, and where the steps are."""

    rows: WaitingRows
    ranks: pl.DataFrame
    read: ReadRows
    steps: ShownSteps


class Selection(NamedTuple):
    """The steps that are selected of a part, and the files with its rows; its ranks and their windows."""

    steps: StepRange
    rows: WaitingRows
    ranks: pl.DataFrame
    windows: StepWindows


class Unobserved(NamedTuple):
    """A part that is to be observed, and the directory that its rows wait in until they are stored.

    With a `selection`, it is read from the files of that.
    """

    part: RunPart
    directory: Path
    selection: Selection | None = None

    @property
    def name(self) -> str:
        """How messages name the part."""
        return self.part.name


class Observation(NamedTuple):
    """What a part shows about the whole run.

    `rows` names the files with its rows, and `observed` has its tables in files, too (detached_tables.py). So has
    `counts`, with table, rank, step and n (rows): there is a row for every rank and step. `edges` has rank, peer
    and kind of transfers, `acted` the ranks with actions, `first_actions` those of the first step, where no
    transfer of the run names its peer (find_pipelines), and `steps` the steps of spans and markers. `transfers` are
    those of a slice of time that are between clocks, in a file.
    """

    rows: WaitingRows
    observed: Observed
    extents: pl.DataFrame
    counts: Detached
    edges: pl.DataFrame
    acted: pl.Series
    first_actions: pl.DataFrame
    steps: pl.Series
    read: ReadRows
    transfers: Detached | None


class Unstored(NamedTuple):
    """Rows of one part or of several that are to be stored, and how: see divide_tables.

    `missing` are the paths of files that are not there. `corrections` are those of the clocks that `numbered` numbers,
    None to leave timestamps as recorded. `only` is the range of steps whose rows are used, None for all rows.
    """

    name: str
    rows: tuple[WaitingRows, ...]
    numbered: pl.DataFrame
    directory: Path
    pipelines: pl.DataFrame
    ranges: StepRanges
    missing: frozenset[str]
    corrections: tuple[Correction, ...] | None
    only: int | None = None

    @property
    def by_rank(self) -> bool:
        """Whether the rows are those without a step, of slices: those of one rank are in memory at a time."""
        return self.only == NONE


def read_part(part: RunPart) -> Timeline:
    """Return the tables of a part, with diagnostics about its rows alone.

    Raises OSError, and InputError if a recording has changed since it was surveyed.
    """
    if part.slice is None:
        contents = [contents_of(*each) for each in zip(part.decisions.processes, part.files, strict=True)]
    else:
        contents = read_slice(part.decisions, part.slice.files)
    timeline = conformed(timeline_of_part(part.decisions, contents))
    return with_placement(with_valid_rows(timeline), part.placement)


def keep_part(item: Unselected) -> Kept:
    """Leave the rows of a part in files, until it is known where the steps are on all ranks. Raises OSError.

    Raises InputError if a recording has changed since it was surveyed.
    """
    timeline = read_part(item.part)
    rows = wait(timeline, item.directory, f"every step of {item.part.name}")
    return Kept(rows, timeline.ranks, _read_rows(timeline), shown_steps(timeline, item.steps))


def _read_rows(timeline: Timeline) -> ReadRows:
    spans = timeline.spans
    return ReadRows(
        spans.height,
        spans["step"].unique().cast(pl.Int32),
        spans["name"].unique(),
        stated_sizes(spans),
        stage_evidence(spans),
        tuple(Diagnostic(**row) for row in timeline.diagnostics.iter_rows(named=True)),
    )


def _selected(selection: Selection) -> Timeline:
    every = replace(waiting([selection.rows]), ranks=selection.ranks)
    return rows_of_steps(every, selection.steps, selection.windows)


def observe_part(item: Unobserved) -> Observation:
    """Return what a part shows about the whole run, and leave its rows in files. Raises OSError."""
    part = item.part
    timeline = read_part(part) if item.selection is None else _selected(item.selection)
    spans = timeline.spans
    kinds = [*SENDS, *RECEIVES, *PLAIN_TRANSFERS]
    is_edge = pl.col("kind").is_in(kinds) & pl.col("peer").is_not_null()
    counts = [
        getattr(timeline, table.name)
        .group_by("rank", "step")
        .agg(n=pl.len())
        .select(table=pl.lit(table.name), rank="rank", step=pl.col("step").cast(pl.Int32), n="n")
        for table in PARTITIONED
    ]
    waiting_rows = wait(timeline, item.directory, part.name, is_slice=part.slice is not None)
    # A worker that was taken for dead may still write its own files.
    folder = item.directory / UNENCODED / f"observed-{token_hex(8)}"
    return Observation(
        waiting_rows,
        detach(observe(timeline, part.numbered, part.run), folder),
        extents_of(timeline, part.numbered),
        detach(pl.concat(counts), folder / "counts"),
        spans.lazy().filter(is_edge).select("rank", "peer", "kind").unique().collect(),
        spans.filter(pl.col("kind").is_in(ACTION_KINDS))["rank"].unique(),
        _first_actions(spans, names_peers=part.run.names_peers),
        pl.concat([spans["step"].unique(), timeline.steps["step"].unique()]).unique(),
        _read_rows(timeline),
        detach(transfers_between(timeline, part.numbered), folder / "transfers")
        if part.run.in_time
        else None,
    )


class Unjoined(NamedTuple):
    """Slices of time of some ranks: what each shows, in order, and a directory for files."""

    part: RunPart
    observed: tuple[Observed, ...]
    transfers: tuple[Detached, ...]
    directory: Path

    @property
    def name(self) -> str:
        """How messages name them."""
        return f"{self.part.name} and those after it"


def join_slices(item: Unjoined) -> list[Observed]:
    """Return what slices of time show about clocks, of which the first one has all messages and reductions.

    Raises OSError.
    """
    messages, reductions = joined_slices(
        [attach(each.reductions) for each in item.observed],
        map(attach, item.transfers),
        item.part.numbered,
        item.part.run,
    )
    folder = item.directory / UNENCODED / f"joined-{token_hex(8)}"
    first, *others = item.observed
    found = detach(first._replace(messages=messages, reductions=reductions), folder)
    nothing = detach(reductions.clear(), folder / "nothing")
    return [found, *(each._replace(reductions=nothing) for each in others)]


def _first_actions(spans: pl.DataFrame, *, names_peers: bool) -> pl.DataFrame:
    """Return the actions of the first step of a part, each once; none if transfers of the run name their peers."""
    names = ["rank", "kind", "stage", "microbatch"]
    if names_peers:
        return spans.select("step", *names).clear()
    actions = spans.filter(pl.col("kind").is_in(ACTION_KINDS)).drop_nulls(["step", "stage", "microbatch"])
    return actions.filter(pl.col("step") == pl.col("step").min()).select("step", *names).unique()


def store_part(item: Unstored) -> list[Part]:
    """Write the files of a part that are missing, and return them for the manifest. Raises OSError."""
    if item.by_rank:
        return [*_stored_by_rank(item), *_stored(item, [each for each in PARTITIONED if each is not SPANS])]
    return _stored(item, PARTITIONED)


def _stored(item: Unstored, tables: Sequence[Table]) -> list[Part]:
    only = None if item.only is None else of_range(item.ranges, item.only)
    names = [table.name for table in tables]
    rows = [{name: path for name, path in each.items() if name in names} for each in item.rows]
    timeline = waiting(rows, only)
    if item.corrections is not None:
        timeline = with_corrections(timeline, item.numbered, item.corrections)
    stored = []
    for partition in divide_tables(timeline, item.pipelines, item.ranges):
        if partition.path in item.missing:
            whole = partition._replace(rows=partition.rows.rechunk())  # the same bytes, however put together
            stored.append(write_partition(unwritten(whole, item.directory, by_file=False)))
    return stored


def _stored_by_rank(item: Unstored) -> Iterator[Part]:
    """Write spans without a step, of which a partition may have more than fit into memory."""

    def moved(spans: pl.DataFrame) -> pl.DataFrame:
        if item.corrections is None:
            return spans
        own = replace(empty_timeline(), spans=spans)
        return with_corrections(own, item.numbered, item.corrections).spans

    placed = item.numbered.join(item.pipelines, on="rank", how="left").with_columns(
        pl.col("pipeline").fill_null(NONE)
    )
    paths = [each[SPANS.name] for each in item.rows if SPANS.name in each]
    for (pipeline,), ranks in placed.sort("rank").group_by("pipeline", maintain_order=True):
        partition = Partition(SPANS, SPANS.empty(), int(pipeline), NONE)
        if partition.path in item.missing:
            pieces = rows_by_rank(paths, ranks["rank"], pl.col("step").is_null(), moved)
            yield write_stepless(partition, pieces, item.directory)


def of_clocks(
    numbered: pl.DataFrame, corrections: tuple[Correction, ...]
) -> tuple[pl.DataFrame, tuple[Correction, ...]]:
    """Return the clocks of some ranks numbered from 0, and their corrections alone."""
    used = numbered["clock"].unique().sort()
    number = {clock: index for index, clock in enumerate(used)}
    again = numbered.with_columns(pl.col("clock").replace_strict(number, return_dtype=pl.Int32))
    return again, tuple(corrections[clock] for clock in used)
