"""Divides a run of recordings that was surveyed into parts of whole pipelines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.api.run_parts import RunPart
from stagescope.clocks import PartOfRun, clocks_of_run
from stagescope.ingest.merge import conformed, run_notes, with_valid_rows
from stagescope.ingest.schedule_names import with_schedule
from stagescope.ingest.stages import find_placement
from stagescope.model import empty_timeline
from stagescope.model.diagnostics import diagnostics_table
from stagescope.model.pipelines import connected_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.clocks import ClocksOfRun
    from stagescope.ingest.reader import ReadOptions
    from stagescope.ingest.recording.process import Process
    from stagescope.ingest.recording.survey import Surveyed
    from stagescope.ingest.stages import Placement
    from stagescope.model import Timeline
    from stagescope.model.diagnostics import Diagnostic


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


def parts_to_store(
    parts: Sequence[RunPart], expected: pl.DataFrame
) -> list[tuple[list[int], dict[str, int]]]:
    """Return the numbers of the parts with the paths and rows of their files; those that share a file are together.

    `expected` has the rows, n, of tables, ranks, steps, pipelines and ranges of steps.
    """
    part_of = {
        process.rank: number for number, part in enumerate(parts) for process in part.decisions.processes
    }
    path = pl.format("{}/pipeline={}/step_range={}/part.parquet", "table", "pipeline", "step_range")
    files_of_ranks = expected.group_by("table", "pipeline", "step_range", "rank").agg(pl.sum("n"))
    placed = files_of_ranks.select("rank", "n", path=path).sort("path", "rank")
    rows: dict[str, int] = {}
    first: dict[str, int] = {}
    edges = [(number, number) for number in range(len(parts))]
    for rank, count, name in placed.iter_rows():
        rows[name] = rows.get(name, 0) + count
        edges.append((part_of[rank], first.setdefault(name, part_of[rank])))
    root = connected_ranks(edges)
    together: dict[int, list[int]] = {}
    for number in range(len(parts)):
        together.setdefault(root[number], []).append(number)
    files: dict[int, dict[str, int]] = {}
    for name, number in first.items():
        files.setdefault(root[number], {})[name] = rows[name]
    return [(group, files.get(number, {})) for number, group in together.items()]
