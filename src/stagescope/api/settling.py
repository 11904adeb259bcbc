"""Finds the steps and the transfers of a hand-written pipeline that is stored in parts, one recording after the other.

A loop that calls torch.distributed itself records sends and receives without their actions, and often without steps.
Which these are depends on other ranks. So a few columns of the spans that matter are written into files for each
recording, its steps are found there, transfers are assigned for each two ranks that exchange messages, and what was
found is applied wherever the recording is read from then on. Spans are read in blocks, in the order of their starts.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.api.detached_tables import attach, detach, read_table, write_table
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
from stagescope.ingest.recording.marked_transfers import note_unmarked, placement_notes
from stagescope.ingest.recording.reader import SPANS_IN_MEMORY
from stagescope.ingest.recording.row_blocks import RowWriter
from stagescope.ingest.recording.settled_spans import (
    OF_PLACED,
    ActionsInSteps,
    RankShows,
    actions_in_steps,
    divided_at,
    has_transfers,
    moments_between,
    needed_to_place,
    on_steady_clock,
    placed_between,
    relevant_spans,
    what_rank_shows,
    with_merged_marks,
)
from stagescope.ingest.recording.survey import contents_of
from stagescope.record.format import NONE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from stagescope.execution import Executor
    from stagescope.ingest.recording.process import Process
    from stagescope.ingest.recording.row_blocks import RowBlocks
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
    """The spans of a recording that matter, what they show, and what is known to change so far.

    `steps` are those of each block of spans, None if they state them.
    """

    name: str
    spans: RowBlocks
    steps: RowBlocks | None
    shows: RankShows
    amendments: Amendments

    def blocks(self, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Yield some columns of the spans, with their steps. Raises OSError."""
        if self.steps is None:
            yield from self.spans.blocks(columns)
            return
        for spans, steps in zip(self.spans.blocks(columns), self.steps.blocks(), strict=True):
            step = steps.select("record", step=pl.when(pl.col("step") != NONE).then("step"))
            yield spans.drop("step").join(step, on="record", how="left", maintain_order="left")


class Unstepped(NamedTuple):
    """A recording whose steps are to be found in a way that is the same for all."""

    name: str
    spans: RowBlocks
    place: Path
    way: Way


class Stepped(NamedTuple):
    """The steps of the spans of a recording, and the file with their starts.

    `firsts` are those of first_microbatches.
    """

    changes: RowBlocks
    begun: Path
    steps: npt.NDArray[np.int32]
    firsts: pl.DataFrame


class Unplaced(NamedTuple):
    """Two ranks that exchange messages, what was found about them, and the file with each step's first micro-batch.

    The tables about their `actions` are in files; there are none if the spans of each recording are one block.
    """

    name: str
    ranks: tuple[int, int]
    of_ranks: tuple[Settling, Settling]
    actions: tuple[ActionsInSteps, ...]
    firsts: Path | None
    place: Path


class Placed(NamedTuple):
    """What was found about the transfers between two ranks: changes of each, the number of rows, and of inside ones."""

    changes: tuple[tuple[int, RowBlocks], ...]
    peers: frozenset[tuple[int, int]]
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
    steps: list[npt.NDArray[np.int32] | None] = [None] * len(found)
    if not any(process.facts.has_steps for process in processes):
        found, steps, notes = _with_steps(found, executor, folder)
    ranks = [process.rank for process in processes]
    found, peers, unplaced = _with_transfers(dict(zip(ranks, found, strict=True)), executor, folder)
    again = [
        replace(
            process,
            facts=replace(
                process.facts,
                peers=np.array(sorted(peers[process.rank]), np.int32),
                steps=process.facts.steps if own is None else own,
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
    """Write the spans of a recording that matter into files, after marks around transfers were merged with these."""
    place = item.directory / f"rank-{item.process.rank}"
    contents = contents_of(item.process, item.files, SPANS_IN_MEMORY)
    writer = RowWriter(place.with_suffix(".relevant"), "start_ns")
    has_plain = has_marked = False
    for block in relevant_spans(item.process, contents, item.label):
        writer.add(block)
        plain, marked = has_transfers(block)
        has_plain, has_marked = has_plain or plain, has_marked or marked
    del contents
    spans, changes, dropped = writer, None, 0
    if has_plain and has_marked:
        spans, changes, dropped = _merge_marks(writer, place)
    writer = RowWriter(place.with_suffix(".spans"), "start_ns")
    shows = []
    for block in on_steady_clock(spans.in_order(), item.slew):
        writer.add(block)
        shows.append(what_rank_shows(block))
    amendments = Amendments(() if changes is None else (changes,), slew=item.slew, dropped=dropped)
    return Settling(item.name, writer.written(), None, reduce(RankShows.with_later, shows), amendments)


def _merge_marks(spans: RowWriter, place: Path) -> tuple[RowWriter, RowBlocks | None, int]:
    """Return the spans with marks merged, what changes in which records, and how many of these are dropped."""
    merged = RowWriter(place.with_suffix(".merged"), "start_ns")
    changes = RowWriter(place.with_suffix(".changes"), "record")
    dropped = rows = 0
    for block, changed in with_merged_marks(spans.in_order()):
        merged.add(block)
        changes.add(changed)
        dropped += int(changed[DROPPED].sum())
        rows += changed.height
    return merged, changes.written() if rows else None, dropped


def _with_steps(
    found: Sequence[Settling], executor: Executor, folder: Path
) -> tuple[list[Settling], list[npt.NDArray[np.int32] | None], list[Diagnostic]]:
    """Return the recordings with the steps that their marked actions show, these steps, and a diagnostic.

    They stay without steps if no rank has a backward.
    """
    evidence = [each.shows.steps for each in found]
    if not any(each.has_backward for each in evidence):
        return list(found), [None] * len(found), []
    counts = {count for each in evidence for count in each.optimizer_steps}
    has_marked_transfers = any(each.shows.has_messages for each in found)
    way = Way(by_optimizer=len(counts) <= 1, has_marked_transfers=has_marked_transfers)
    items = [
        Unstepped(each.name, each.spans, folder / f"found-{number}", way) for number, each in enumerate(found)
    ]
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
    every = np.unique(np.concatenate([each.steps for each in stepped]))
    return again, [each.steps for each in stepped], [note_of_steps(len(every))]


def _is_out_of_order(item: Unstepped) -> bool:
    return is_out_of_order(item.spans.blocks(FOR_STEPS), item.way)


def _find_steps(item: Unstepped) -> Stepped:
    writer = RowWriter(item.place.with_suffix(".steps"), "record")
    firsts, begun = [], []
    for known, began in with_steps(item.spans.blocks(FOR_STEPS), item.way):
        writer.add(known.select("record", pl.col("step").fill_null(NONE)))
        firsts.append(first_microbatches(known))
        begun.append(began.select("step", "start_ns"))
    starts = pl.concat(begun)
    path = item.place.with_suffix(".begun")
    write_table(starts, path)
    steps = starts["step"].unique().sort().cast(pl.Int32).to_numpy()
    first = pl.concat(firsts).group_by("step").agg(pl.min("first"))
    return Stepped(writer.written(), path, steps, first)


def _with_transfers(
    found: dict[int, Settling], executor: Executor, folder: Path
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
    actions = {}
    if any(len(each.spans.files) > 1 for each in found.values()):
        actions = dict(zip(found, executor.map(_actions, list(found.values())), strict=True))
    changes: dict[int, list[RowBlocks]] = defaultdict(list)
    rows = inside = 0
    for placed in executor.map(_place, _unplaced(found, actions, folder)):
        for rank, own in placed.changes:
            changes[rank].append(own)
        for rank, peer in placed.peers:
            peers[rank].add(peer)
        rows += placed.rows
        inside += placed.inside
    again = []
    for rank, each in found.items():
        every = (*each.amendments.changes, *changes[rank])
        again.append(each._replace(amendments=replace(each.amendments, changes=every)))
    return again, peers, placement_notes(plain - rows, inside)


def _actions(item: Settling) -> ActionsInSteps:
    """Return what is known of the actions of a recording, with its table in a file."""
    folder = item.spans.files[0].path.with_suffix(".actions")
    found: ActionsInSteps = detach(actions_in_steps(item.blocks(FOR_PLACES)), folder)
    return found


def _unplaced(
    found: dict[int, Settling], actions: dict[int, ActionsInSteps], folder: Path
) -> Iterable[Unplaced]:
    """Return each two recorded ranks that exchange plain transfers, and whose actions may be known from these."""
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
            tuple(actions[rank] for rank in (one, other) if actions),
            found[one].amendments.firsts,
            folder / f"placed-{one}-{other}",
        )
        for one, other in sorted(pairs)
        if not actions or (actions[one].are_apart and actions[other].are_apart)
    ]


def _place(item: Unplaced) -> Placed:
    """Find the actions of the transfers between two ranks, and write them into files for each."""
    writers = {rank: RowWriter(item.place.with_suffix(f".of-{rank}"), "record") for rank in item.ranks}
    peers: set[tuple[int, int]] = set()
    counts = dict.fromkeys(item.ranks, 0)
    inside = 0
    for placed in placed_between(_needed(item), item.ranks):
        for rank, writer in writers.items():
            own = placed.ends.filter(pl.col("rank") == rank).select(OF_PLACED)
            writer.add(own.with_columns(pair=pl.lit(NONE, pl.Int32), name=pl.lit(0, pl.UInt32)))
            counts[rank] += own.height
        peers |= placed.peers
        inside += placed.inside
    changes = tuple((rank, writer.written()) for rank, writer in writers.items() if counts[rank])
    return Placed(changes, frozenset(peers), sum(counts.values()), inside)


def _needed(item: Unplaced) -> Iterator[pl.DataFrame]:
    """Yield the spans of two ranks that are needed to place the messages between them, some steps after the other."""
    moments: list[list[int]] = [[] for _ in item.ranks]
    if item.actions:
        moments = moments_between([attach(each) for each in item.actions])
    firsts = None if item.firsts is None else read_table(item.firsts)
    divided = [
        divided_at(_needed_of(each, peer), moments_ns)
        for each, peer, moments_ns in zip(item.of_ranks, item.ranks[::-1], moments, strict=True)
    ]
    for blocks in zip(*divided, strict=True):
        together = pl.concat(blocks)
        yield together if firsts is None else with_shifted_microbatches(together, firsts)


def _needed_of(item: Settling, peer: int) -> Iterator[pl.DataFrame]:
    return (spans.filter(needed_to_place(peer)) for spans in item.blocks(FOR_PLACES))
