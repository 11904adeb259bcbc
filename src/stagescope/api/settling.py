"""Finds the steps and the transfers of a hand-written pipeline that is stored in parts, one recording after the other.

A loop that calls torch.distributed itself records sends and receives without their actions, and often without steps.
Which these are depends on other ranks. So a few columns of the spans that matter are written into a file for each
recording, its steps are found there, transfers are assigned for each two ranks that exchange messages, and what was
found is applied wherever the recording is read from then on.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.api.detached_tables import read_table, write_table
from stagescope.exporters.new_files import make_directory
from stagescope.exporters.stored_run.partition_files import UNENCODED
from stagescope.ingest.recording.amendments import DROPPED, Amendments
from stagescope.ingest.recording.marked_steps import (
    Way,
    are_numbered_through,
    first_microbatches,
    is_out_of_order,
    note_of_steps,
    with_shifted_microbatches,
    with_steps,
)
from stagescope.ingest.recording.marked_transfers import RECEIVE, SEND, note_unmarked, placement_notes
from stagescope.ingest.recording.reader import SPANS_IN_MEMORY
from stagescope.ingest.recording.settled_spans import (
    OF_PLACED,
    RankShows,
    needed_to_place,
    on_steady_clock,
    place_between,
    relevant_spans,
    what_rank_shows,
    with_merged_marks,
)
from stagescope.ingest.recording.survey import contents_of
from stagescope.record.format import NONE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from stagescope.execution import Executor
    from stagescope.ingest.recording.process import Process
    from stagescope.ingest.recording.slews import Slew
    from stagescope.ingest.recording.survey import Files, Surveyed
    from stagescope.model.diagnostics import Diagnostic


FOR_STEPS = ("record", "rank", "kind", "lane", "step", "stage", "microbatch", "start_ns", "end_ns")
FOR_PLACES = (*FOR_STEPS, "peer", "pair", "name", "wait_start_ns")


class Unsettled(NamedTuple):
    """A recording, the pipeline of it that is shown, the slew of its clock, and the directory for files about it."""

    process: Process
    files: Files
    label: str | None
    slew: Slew | None
    directory: Path

    @property
    def name(self) -> str:
        """How messages name it."""
        return f"rank {self.process.rank}"


class Settling(NamedTuple):
    """The file with the spans of a recording that matter, what they show, and what is known to change so far.

    `steps` is a file with their steps, None if they state them.
    """

    name: str
    spans: Path
    steps: Path | None
    shows: RankShows
    amendments: Amendments


class Unstepped(NamedTuple):
    """A recording whose steps are to be found in a way that is the same for all."""

    name: str
    spans: Path
    way: Way


class Stepped(NamedTuple):
    """The files with the steps of the spans of a recording, and with their starts.

    `firsts` are those of first_microbatches.
    """

    changes: Path
    begun: Path
    steps: tuple[int, ...]
    firsts: pl.DataFrame


class Unplaced(NamedTuple):
    """Two ranks that exchange messages, their files, and the file with the first micro-batch of each step."""

    name: str
    ranks: tuple[int, int]
    files: tuple[Settling, Settling]
    firsts: Path | None


class Placed(NamedTuple):
    """What was found about the transfers between two ranks: a file for each, the number of rows, and of inside ones."""

    files: tuple[tuple[int, Path], ...]
    peers: tuple[tuple[int, int], ...]
    rows: int
    inside: int


def settled_run(surveyed: Surveyed, executor: Executor, directory: Path) -> Surveyed:
    """Return what is known of a run, with steps and transfers of the recordings in files below `directory`.

    Raises OSError, and InputError if a recording has changed since it was surveyed.
    """
    decisions = surveyed.decisions
    processes = decisions.processes
    folder = directory / UNENCODED / "settled"
    make_directory(folder)
    found = list(
        executor.map(
            _keep_relevant,
            [
                Unsettled(
                    process,
                    surveyed.files[process.source],
                    decisions.label,
                    decisions.slews.get(process.clock),
                    folder,
                )
                for process in processes
            ],
        )
    )
    notes: list[Diagnostic] = []
    steps: list[tuple[int, ...] | None] = [None] * len(found)
    if not any(process.facts.has_steps for process in processes):
        found, steps, notes = _with_steps(found, executor, folder)
    ranks = [process.rank for process in processes]
    found, peers, unplaced = _with_transfers(dict(zip(ranks, found, strict=True)), executor)
    again = [
        replace(
            process,
            facts=replace(
                process.facts,
                peers=np.array(sorted(peers[process.rank]), np.int32),
                steps=process.facts.steps if own is None else np.array(own, np.int32),
            ),
        )
        for process, own in zip(processes, steps, strict=True)
    ]
    files = {
        process.source: surveyed.files[process.source]._replace(amendments=each.amendments)
        for process, each in zip(processes, found, strict=True)
    }
    after = (*notes, *unplaced, *decisions.after)
    return surveyed._replace(
        decisions=replace(decisions, processes=tuple(again), after=after), files={**surveyed.files, **files}
    )


def _keep_relevant(item: Unsettled) -> Settling:
    """Write the spans of a recording that matter into a file, after marks around transfers were merged with these."""
    place = item.directory / f"rank-{item.process.rank}"
    contents = contents_of(item.process, item.files, SPANS_IN_MEMORY)
    spans, merged = with_merged_marks(relevant_spans(item.process, contents, item.label))
    shows = what_rank_shows(spans)
    changes: tuple[Path, ...] = ()
    if merged.height:
        changes = (place.with_suffix(".merged"),)
        write_table(merged, changes[0])
    spans = on_steady_clock(spans, item.slew)
    shows = shows._replace(steps=what_rank_shows(spans).steps)
    write_table(spans, place.with_suffix(".spans"))
    dropped = int(merged[DROPPED].sum())
    amendments = Amendments(changes, slew=item.slew, dropped=dropped)
    return Settling(item.name, place.with_suffix(".spans"), None, shows, amendments)


def _with_steps(
    found: Sequence[Settling], executor: Executor, folder: Path
) -> tuple[list[Settling], list[tuple[int, ...] | None], list[Diagnostic]]:
    """Return the recordings with the steps that their marked actions show, these steps, and a diagnostic.

    They stay without steps if no rank has a backward.
    """
    evidence = [each.shows.steps for each in found]
    if not any(each.has_backward for each in evidence):
        return list(found), [None] * len(found), []
    counts = {count for each in evidence for count in each.optimizer_steps}
    way = Way(by_optimizer=len(counts) <= 1)
    items = [Unstepped(each.name, each.spans, way) for each in found]
    if any(list(executor.map(_is_out_of_order, items))):
        way = way._replace(by_occurrence=True)
    stepped = list(executor.map(_find_steps, [item._replace(way=way) for item in items]))
    firsts = pl.concat([each.firsts for each in stepped]).group_by("step").agg(pl.min("first"))
    of_microbatches = None
    if are_numbered_through(firsts):
        of_microbatches = folder / "firsts"
        write_table(firsts, of_microbatches)
    again = []
    for each, own in zip(found, stepped, strict=True):
        known = each.amendments
        changed = replace(
            known, changes=(*known.changes, own.changes), begun=own.begun, firsts=of_microbatches
        )
        again.append(each._replace(steps=own.changes, amendments=changed))
    every = {step for each in stepped for step in each.steps}
    return again, [each.steps for each in stepped], [note_of_steps(len(every))]


def _is_out_of_order(item: Unstepped) -> bool:
    return is_out_of_order(_columns(item.spans, FOR_STEPS), item.way)


def _columns(path: Path, names: Sequence[str]) -> pl.DataFrame:
    """Return some columns of a table, which take a third of the memory of all."""
    return pl.scan_ipc(path).select(names).collect()


def _find_steps(item: Unstepped) -> Stepped:
    known, begun = with_steps(_columns(item.spans, FOR_STEPS), item.way)
    changes, begins = (item.spans.with_suffix(f".{name}") for name in ("steps", "begun"))
    write_table(known.select("record", pl.col("step").fill_null(NONE)), changes)
    write_table(begun.select("step", "start_ns"), begins)
    steps = tuple(begun["step"].unique().sort().to_list())
    return Stepped(changes, begins, steps, first_microbatches(known))


def _with_transfers(
    found: dict[int, Settling], executor: Executor
) -> tuple[list[Settling], dict[int, set[int]], list[Diagnostic]]:
    """Return the recordings with the actions of their plain transfers, the peers of all ranks, and diagnostics.

    Nothing changes if a framework, or marks, recorded transfers with their actions.
    """
    shows = {rank: each.shows for rank, each in found.items()}
    peers = {rank: set(each.peers) for rank, each in shows.items()}
    plain = sum(each.plain for each in shows.values())
    if not plain or any(each.has_messages for each in shows.values()):
        return list(found.values()), peers, []
    if not any(each.has_actions for each in shows.values()):
        return list(found.values()), peers, [note_unmarked(plain)]
    files: dict[int, list[Path]] = defaultdict(list)
    rows = inside = 0
    for placed in executor.map(_place, _unplaced(found)):
        for rank, path in placed.files:
            files[rank].append(path)
        for rank, peer in placed.peers:
            peers[rank].add(peer)
        rows += placed.rows
        inside += placed.inside
    again = []
    for rank, each in found.items():
        changes = (*each.amendments.changes, *files[rank])
        again.append(each._replace(amendments=replace(each.amendments, changes=changes)))
    return again, peers, placement_notes(plain - rows, inside)


def _unplaced(found: dict[int, Settling]) -> Iterable[Unplaced]:
    """Return each two recorded ranks that exchange plain transfers."""
    pairs = {
        (min(rank, peer), max(rank, peer))
        for rank, each in found.items()
        for peer in each.shows.plain_peers
        if peer in found and peer != rank
    }
    return [
        Unplaced(
            f"the messages of ranks {one} and {other}",
            (one, other),
            (found[one], found[other]),
            found[one].amendments.firsts,
        )
        for one, other in sorted(pairs)
    ]


def _place(item: Unplaced) -> Placed:
    """Find the actions of the transfers between two ranks, and write them into a file for each."""
    directions = (item.ranks, item.ranks[::-1])
    found = [place_between(_needed(item, source, target)) for source, target in directions]
    one, other = item.ranks
    files = []
    for rank, each in zip(item.ranks, item.files, strict=True):
        own = pl.concat(placed.ends.filter(pl.col("rank") == rank) for placed in found).select(OF_PLACED)
        if own.height:
            files.append((rank, each.spans.with_suffix(f".placed-{one}-{other}")))
            changed = own.sort("record").with_columns(pair=pl.lit(NONE, pl.Int32), name=pl.lit(0, pl.UInt32))
            write_table(changed, files[-1][1])
    peers = tuple({pair for placed in found for pair in placed.peers})
    rows, inside = (
        sum(counts) for counts in zip(*((each.ends.height, each.inside) for each in found), strict=True)
    )
    return Placed(tuple(files), peers, rows, inside)


def _needed(item: Unplaced, source: int, target: int) -> pl.DataFrame:
    """Return the spans of two ranks that are needed to place the messages from one to the other."""
    found = []
    for rank, each in zip(item.ranks, item.files, strict=True):
        spans = _columns(each.spans, FOR_PLACES)
        if each.steps is not None:
            steps = _columns(each.steps, ["step"])["step"]
            spans = spans.with_columns(step=pl.when(steps != NONE).then(steps))
        needed = needed_to_place(SEND, target) if rank == source else needed_to_place(RECEIVE, source)
        found.append(spans.filter(needed))
    together = pl.concat(found)
    return together if item.firsts is None else with_shifted_microbatches(together, read_table(item.firsts))
