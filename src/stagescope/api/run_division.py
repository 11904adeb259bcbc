"""Divides a run of recordings that was surveyed into parts of whole pipelines."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.api.part_slices import Slice, Undivided, divide_recording
from stagescope.api.run_parts import RunPart
from stagescope.clocks import PartOfRun, clocks_of_run
from stagescope.ingest.merge import conformed, run_notes, with_valid_rows
from stagescope.ingest.recording.step_slices import first_steps
from stagescope.ingest.schedule_names import with_schedule
from stagescope.ingest.stages import find_placement
from stagescope.model import empty_timeline
from stagescope.model.diagnostics import diagnostics_table
from stagescope.model.pipelines import connected_ranks
from stagescope.vocabulary.steps import EVERY_STEP_STOP, StepRange

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from stagescope.clocks import ClocksOfRun
    from stagescope.execution import Executor
    from stagescope.ingest.reader import ReadOptions
    from stagescope.ingest.recording.process import Process
    from stagescope.ingest.recording.survey import Surveyed
    from stagescope.ingest.stages import Placement
    from stagescope.model import Timeline
    from stagescope.model.diagnostics import Diagnostic


LEAST_SLICES = 6
"""A part that would have fewer is read at once."""


class DividedRun(NamedTuple):
    """What is known of a whole run before its parts are read for good.

    `tables` are those of ranks and clocks, and the diagnostics after those about the rows of parts; `before` are the
    diagnostics before those.
    """

    tables: Timeline
    before: pl.DataFrame
    placement: Placement
    clocks: ClocksOfRun
    parts: tuple[RunPart, ...]


class ToStore(NamedTuple):
    """Files that are written together: their paths with their rows, and the numbers of the parts that have these.

    `only` is the range of steps whose rows are used, None for all rows of the parts.
    """

    parts: list[int]
    files: dict[str, int]
    only: int | None = None


def divide_run(
    surveyed: Surveyed, found: Sequence[Diagnostic], options: ReadOptions, spans_of_part: int
) -> DividedRun:
    """Return the tables of ranks, clocks and diagnostics of a run, its stages, and its parts.

    `found` are diagnostics of the search for its files. Raises InputError if the layout does not fit the ranks.
    """
    decisions = surveyed.decisions
    notes = [
        *decisions.before, *(note for process in decisions.processes for note in process.notes), *decisions.after,
    ]  # fmt: skip
    bare = replace(
        empty_timeline(), ranks=decisions.ranks, clocks=decisions.clocks, diagnostics=diagnostics_table(notes)
    )
    valid = with_valid_rows(conformed(bare))
    size = pl.coalesce("world_size", pl.lit(options.layout.rank_count, pl.Int32)).alias("world_size")
    run = replace(
        valid,
        ranks=valid.ranks.with_columns(size),
        clocks=valid.clocks.unique(maintain_order=True),
        diagnostics=valid.diagnostics.clear(),
    )
    run = run.with_diagnostics([*run_notes(run.ranks, run.clocks), *found])
    named = with_schedule(run, options.schedule)
    placement = find_placement(replace(named, spans=surveyed.evidence), options.layout)
    placed = replace(named, ranks=placement.ranks).with_diagnostics(placement.notes)
    clocks = clocks_of_run(placed, placed.ranks.select("rank"))
    wide = (
        surveyed.groups.join(clocks.numbered, on="rank")
        .group_by("group")
        .agg(pl.col("clock").n_unique())
        .filter(pl.col("clock") > 1)["group"]
    )
    names_peers = any(len(process.facts.peers) for process in decisions.processes)
    part_of_run = PartOfRun(wide, names_peers, len(clocks.clocks))
    parts = [
        RunPart(
            decisions.of(processes),
            tuple(surveyed.files[process.source] for process in processes),
            placement._replace(ranks=_of(placement.ranks, processes), notes=()),
            _of(clocks.numbered, processes),
            part_of_run._replace(groups=_groups_of(surveyed.groups, wide, processes)),
        )
        for processes in _divided(decisions.processes, placement.ranks, clocks.numbered, spans_of_part)
    ]
    return DividedRun(placed, valid.diagnostics, placement, clocks, tuple(parts))


def _of(rows: pl.DataFrame, processes: Sequence[Process]) -> pl.DataFrame:
    return rows.filter(pl.col("rank").is_in([process.rank for process in processes]))


def _groups_of(groups: pl.DataFrame, wide: pl.Series, processes: Sequence[Process]) -> pl.Series:
    own: pl.Series = _of(groups, processes)["group"].unique()
    wide_ones: pl.Series = own.filter(own.is_in(wide.implode())).sort()
    return wide_ones


def _divided(
    processes: Sequence[Process], ranks: pl.DataFrame, numbered: pl.DataFrame, most_spans: int
) -> list[list[Process]]:
    """Return the recordings in parts of whole pipelines, those between the same two clocks together."""
    edges = _edges(processes, ranks, numbered)
    root = connected_ranks(edges)
    groups: dict[int, list[Process]] = {}
    for number, process in enumerate(processes):
        groups.setdefault(root[number], []).append(process)
    parts: list[list[Process]] = []
    spans = most_spans
    for group in groups.values():
        own = sum(process.facts.spans for process in group)
        if spans + own > most_spans:
            parts.append([])
            spans = 0
        parts[-1] += group
        spans += own
    return [sorted(part, key=lambda process: process.rank) for part in parts]


def _edges(
    processes: Sequence[Process], ranks: pl.DataFrame, numbered: pl.DataFrame
) -> list[tuple[int, int]]:
    """Return which recordings, by their places, have to be in one part; each is with itself."""
    clock_of = dict(numbered.iter_rows())
    place = {process.rank: number for number, process in enumerate(processes)}
    names_peers = any(len(process.facts.peers) for process in processes)
    shared = {rank: tuple(key) for rank, *key in ranks.select("rank", "dp", "tp", "cp").iter_rows()}
    has_coordinates = not ranks["pp"].null_count()
    edges = [(number, number) for number in range(len(processes))]
    first: dict[object, int] = {}
    for process in processes:
        rank = process.rank
        keys: list[object] = [] if process.facts.actions else ["without actions"]
        if not names_peers:
            keys.append(("pipeline", shared[rank]) if has_coordinates else "all")
        peers = [peer for peer in process.facts.peers.tolist() if peer in place]
        ends = {tuple(sorted((clock_of[rank], clock_of[peer]))) for peer in peers}
        keys += [("clocks", one, other) for one, other in ends if one != other]
        edges += [(place[rank], place[peer]) for peer in peers]
        edges += [(place[rank], first.setdefault(key, place[rank])) for key in keys]
    return edges


def span_count(part: RunPart) -> int:
    """Return the number of spans of a part."""
    return sum(process.facts.spans for process in part.decisions.processes)


def spans_together(parts: Sequence[RunPart], most_spans: int) -> int:
    """Return about how many spans are at most in memory together, once parts were divided by sliced_parts."""
    return max(span_count(part) // _places(part, most_spans).slices for part in parts)


class _Places(NamedTuple):
    """How many slices a part has, and the first steps of all but the first one; none if it is divided by time."""

    slices: int
    firsts: tuple[int, ...] = ()


def _places(part: RunPart, most_spans: int) -> _Places:
    count = -(-span_count(part) // most_spans)
    if count < LEAST_SLICES:
        return _Places(1)
    if not any(len(process.facts.steps) for process in part.decisions.processes):
        return _Places(count)
    firsts = first_steps(part.decisions.processes, count)
    return _Places(len(firsts) + 1, firsts)


def sliced_parts(
    parts: Sequence[RunPart],
    most_spans: int,
    executor: Executor,
    directory: Path,
    on_divided: Callable[[float], object],
) -> tuple[RunPart, ...]:
    """Return the parts of a run, with slices in place of those that have more spans than a worker may have in memory.

    The slices have about `most_spans`, and are written into files below `directory`. `on_divided` gets the share of
    each recording in all of them when it was divided. Raises OSError, and InputError if a recording has changed since
    it was surveyed.
    """
    places = [_places(part, most_spans) for part in parts]
    undivided = [
        Undivided(process, files, own.firsts, own.slices, directory)
        for part, own in zip(parts, places, strict=True)
        if own.slices > 1
        for process, files in zip(part.decisions.processes, part.files, strict=True)
    ]
    divided = []
    for found in executor.map(divide_recording, undivided):
        divided.append(found)
        on_divided(1 / len(undivided))
    of_recording = iter(divided)
    found_parts: list[RunPart] = []
    for part, own in zip(parts, places, strict=True):
        if own.slices == 1:
            found_parts.append(part)
            continue
        of_slice = zip(*islice(of_recording, len(part.files)), strict=True)
        run = part.run._replace(slices=own.slices, in_time=not own.firsts)
        bounds = pairwise((0, *own.firsts, EVERY_STEP_STOP))
        steps = [StepRange(*each) for each in bounds] if own.firsts else [None] * own.slices
        for place, (chosen, files) in enumerate(zip(steps, of_slice, strict=True)):
            found_parts.append(replace(part, run=run, slice=Slice(place, chosen, files)))
    return tuple(found_parts)


def parts_to_store(parts: Sequence[RunPart], expected: pl.DataFrame) -> list[ToStore]:
    """Return the files of all parts; those of parts that share a file are written together.

    `expected` has the rows, n, of tables, pipelines and ranges of steps, and the number of the part that has them.
    Slices begin and end within ranges of steps, so where a part has slices, the files of each range are written
    together.
    """
    path = pl.format("{}/pipeline={}/step_range={}/part.parquet", "table", "pipeline", "step_range")
    keys = ("table", "pipeline", "step_range", "part")
    placed = expected.group_by(keys).agg(pl.sum("n")).with_columns(path=path)
    files: dict[str, tuple[int, int]] = {}
    first: dict[str, int] = {}
    edges = [(number, number) for number in range(len(parts))]
    by_part = placed.select("path", "step_range", "part", "n").sort("path", "part")
    for name, step_range, part, count in by_part.iter_rows():
        files[name] = step_range, count + (files[name][1] if name in files else 0)
        edges.append((part, first.setdefault(name, part)))
    root = connected_ranks(edges)
    groups: dict[int, ToStore] = {}
    for number in range(len(parts)):
        groups.setdefault(root[number], ToStore([], {})).parts.append(number)
    for name, number in first.items():
        groups[root[number]].files[name] = files[name][1]
    in_range = set(placed.select("step_range", "part").unique().iter_rows())
    found: list[ToStore] = []
    for group in groups.values():
        if all(parts[number].slice is None for number in group.parts):
            found.append(group)
            continue
        for only in sorted({files[name][0] for name in group.files}):
            own = [number for number in group.parts if (only, number) in in_range]
            rows = {name: count for name, count in group.files.items() if files[name][0] == only}
            found.append(ToStore(own, rows, only))
    return found
