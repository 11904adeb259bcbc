"""Reads recordings once for what has to be known about a whole run before any part of it can be read for good.

A recording of 100 steps has a million bytes, and what is kept of it here a few thousand: header, readings of clocks,
damage, facts about its spans (facts.py), and the few spans that show which stage its rank has.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from stagescope.ingest.recording import errors
from stagescope.ingest.recording.columns import Columns, no_columns
from stagescope.ingest.recording.copies import without_copies
from stagescope.ingest.recording.decisions import Decisions, decide
from stagescope.ingest.recording.facts import IS_ACTION, IS_COLLECTIVE, are_placed, of_kinds
from stagescope.ingest.recording.reader import (
    SPANS_IN_MEMORY,
    contents_by_source,
    known_processes,
    part_of,
    require_known,
    timeline_of_decisions,
)
from stagescope.ingest.recording.reductions import MOST_BYTES_OF_VALUES, reducing_groups
from stagescope.ingest.recording.segments import Part, identity_of, stem_of
from stagescope.ingest.recording.span_tables import Records, spans_of
from stagescope.ingest.usable_files import outcome_of, usable
from stagescope.model import SPANS
from stagescope.model.collectives import SEPARATOR
from stagescope.model.group_kinds import find_group_kinds
from stagescope.record.format import NONE
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.kinds import STEP_CODE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from stagescope.ingest.reader import ReadOptions
    from stagescope.ingest.recording.frames import Contents
    from stagescope.ingest.recording.process import Process
    from stagescope.model import Timeline
    from stagescope.model.diagnostics import Diagnostic
    from stagescope.vocabulary.errors import TableError

GROUPS = {"group": pl.String, "rank": pl.Int32, "may_reduce": pl.Boolean}
Outcome: TypeAlias = "Part | InputError | TableError | Path"
IS_FIRST_MICROBATCH = of_kinds("forward", "backward", "backward_input")


class Files(NamedTuple):
    """Files that are read together, and those of them that are copies of others."""

    paths: tuple[Path, ...]
    copies: frozenset[Path] = frozenset()

    @property
    def name(self) -> str:
        """How messages name them."""
        return str(self.paths[0]) if len(self.paths) == 1 else f"{self.paths[0]} and the files after it"


class Survey(NamedTuple):
    """What is known of some files: each of them without spans, or why it is not used, and their recordings.

    The outcome of a file that was deleted meanwhile is its path.

    `groups` has group and rank of collectives, and whether they may reduce gradients; `evidence` the spans that show
    stages, on the clock of each process.
    """

    outcomes: tuple[tuple[Path, Outcome], ...]
    processes: tuple[Process, ...]
    unknown: tuple[Diagnostic, ...]
    groups: pl.DataFrame
    evidence: pl.DataFrame


class Surveyed(NamedTuple):
    """What is known of all files of a run, and decided about it.

    `files` are those of each recording, by its source, `groups` has group and rank of all collectives, and `evidence`
    the spans that show stages. `whole` states why the run cannot be divided into parts that are read one after the
    other; None if it can be.
    """

    decisions: Decisions
    groups: pl.DataFrame
    evidence: pl.DataFrame
    files: dict[str, Files]
    whole: str | None


def batches(paths: Iterable[Path], count: int) -> Iterator[Files]:
    """Yield all files, about `count` at a time; those of one bounded recording stay together."""
    of_recording: dict[tuple[Path, str], list[Path]] = {}
    for path in paths:
        of_recording.setdefault(stem_of(path), []).append(path)
    pending: list[Path] = []
    for files in of_recording.values():
        pending += files
        if len(pending) >= count:
            yield Files(tuple(pending))
            pending = []
    if pending:
        yield Files(tuple(pending))


def survey(files: Files) -> Survey:
    """Return what is known of some files. Raises InputError for a file of a newer format."""
    outcomes = []
    processes: list[Process] = []
    unknown: list[Diagnostic] = []
    collectives: list[Records] = []
    evidence: list[Records] = []
    for recording in batches(files.paths, 1):  # one after the other, so that only one is in memory
        read = partial(part_of, most_spans=SPANS_IN_MEMORY)
        own = [(path, outcome_of(read, path)) for path in recording.paths]
        outcomes += [(path, _light_outcome(outcome)) for path, outcome in own]
        parts = [part for path, part in own if isinstance(part, Part) and path not in files.copies]
        found, lost = known_processes(parts)
        unknown += lost
        for process in found:
            collectives += _different_collectives(process)
            evidence += _evidence(process)
            processes.append(replace(process, contents=_light(process.contents)))
    return Survey(
        tuple(outcomes),
        tuple(processes),
        tuple(unknown),
        _groups_of(spans_of(collectives)) if collectives else pl.DataFrame(schema=GROUPS),
        spans_of(evidence) if evidence else SPANS.empty(),
    )


def copies_in(surveys: Iterable[Survey]) -> tuple[frozenset[Path], list[Diagnostic]]:
    """Return the files that are copies of others, and the diagnostics that name them."""
    parts = [part for each in surveys for _, part in each.outcomes if isinstance(part, Part)]
    kept, notes = without_copies(parts)
    used = {part.path for part in kept}
    return frozenset(part.path for part in parts if part.path not in used), notes


def decide_surveyed(
    surveys: Sequence[Survey], copies: tuple[frozenset[Path], Sequence[Diagnostic]], options: ReadOptions
) -> Surveyed:
    """Return what is decided about a run; `copies` are those that were left out.

    Raises InputError as read_recordings does.
    """
    outcomes: list[tuple[Path, Outcome]] = [outcome for each in surveys for outcome in each.outcomes]
    gone = [path for path, outcome in outcomes if isinstance(outcome, Path)]
    there = [(path, outcome) for path, outcome in outcomes if not isinstance(outcome, Path)]
    if not there:
        raise InputError.no_such_path(gone[0])
    parts, refused = usable(there)
    processes = [process for each in surveys for process in each.processes]
    require_known(processes, parts)
    unknown = [note for each in surveys for note in each.unknown]
    ordered = sorted(processes, key=lambda process: process.rank)
    decisions = decide(ordered, [*copies[1], *refused, *unknown], options)
    groups = pl.concat([each.groups for each in surveys])
    reducing = groups.filter("may_reduce").select("group", "rank")
    used = {process.source: process for process in decisions.processes}
    files = {
        process.source: Files(each_files)
        for each in surveys
        for process, each_files in zip(each.processes, _files_of(each, copies[0]), strict=True)
        if process.source in used
    }
    offsets = decisions.ranks.join(decisions.clocks.select("clock", "offset_ns"), on="clock", how="left")
    evidence = pl.concat([each.evidence for each in surveys]).join(
        offsets.select("rank", "offset_ns"), on="rank", maintain_order="left"
    )
    moved = evidence.with_columns(pl.col("start_ns", "end_ns") + pl.col("offset_ns")).drop("offset_ns")
    return Surveyed(
        replace(decisions, group_kinds=find_group_kinds(reducing, decisions.ranks)),
        groups.select("group", "rank").unique(),
        moved.sort(SPANS.order, maintain_order=True),
        files,
        _reason_for_whole(decisions, len(processes), parts, gone),
    )


def contents_of(process: Process, files: Files, most_spans: int | None = None) -> Contents:
    """Return the content of a recording that was surveyed, with its spans; more than `most_spans` of a file stay there.

    Raises InputError if it has changed since.
    """
    read = (part_of(path, most_spans=most_spans) for path in files.paths)
    parts = [part for part in read if isinstance(part, Part)]
    again = contents_by_source(parts).get(process.source)
    if again is None or again.span_count != process.facts.spans:
        raise errors.changed_meanwhile(process.source)
    return again


def timeline_of_part(decisions: Decisions, contents: Iterable[Contents]) -> Timeline:
    """Return the Timeline of some recordings of a run that was surveyed, with their spans and without its notes."""
    read = zip(decisions.processes, contents, strict=True)
    processes = tuple(replace(process, contents=own, notes=()) for process, own in read)
    return timeline_of_decisions(replace(decisions, processes=processes))


def _files_of(survey: Survey, copies: frozenset[Path]) -> Iterator[tuple[Path, ...]]:
    """Yield the files of each recording."""
    by_stem: dict[tuple[Path, str], list[Path]] = {}
    for path, outcome in survey.outcomes:
        if isinstance(outcome, Part) and path not in copies:
            by_stem.setdefault(stem_of(path), []).append(path)
    of_file = {str(path): tuple(paths) for paths in by_stem.values() for path in paths}
    return (of_file[process.source] for process in survey.processes)


def _reason_for_whole(
    decisions: Decisions, recordings: int, parts: Sequence[Part], gone: Sequence[Path]
) -> str | None:
    """Return why the spans of a run have to be in memory together; None if they need not."""
    facts = [process.facts for process in decisions.processes]
    bounded = [part for part in parts if "segment" in part.contents.header]
    identities, stems = {identity_of(part) for part in bounded}, {stem_of(part.path) for part in bounded}
    reasons = {
        "files of it were deleted while it was read": bool(gone),
        "files of its recordings were renamed": len(identities) != len(stems),
        "the training ran several pipelines": decisions.label is not None,
        "it has recordings beside those that are used": len(decisions.processes) < recordings,
        "it is a hand-written pipeline": any(each.has_plain_transfers for each in facts),
        "nothing states its steps": not any(each.has_steps for each in facts),
        "only some of its ranks state their stages": len({e.has_open_stages for e in facts if e.actions}) > 1,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _light_outcome(outcome: Outcome) -> Outcome:
    return Part(outcome.path, _light(outcome.contents)) if isinstance(outcome, Part) else outcome


def _light(contents: Contents) -> Contents:
    """Return the content of a recording without its spans, counters and names."""
    return replace(
        contents,
        spans=no_columns(),
        long=None,
        counters=contents.counters[:0],
        names={},
        state={},
        unchosen_spans=contents.stored_spans,
    )


def _different_collectives(process: Process) -> list[Records]:
    """Return the collectives of a recording, one of those alike: it may have millions of them."""
    found: list[Records] = []
    known = np.empty(0, np.int64)
    for spans in process.contents.blocks():
        own = np.flatnonzero(IS_COLLECTIVE[spans["kind"]] & (spans["name"] > 0))
        if not len(own):
            continue
        name, kind = spans["name"][own].astype(np.int64), spans["kind"][own].astype(np.int64)
        is_large, has_step = spans["bytes"][own] > MOST_BYTES_OF_VALUES, spans["step"][own] != NONE
        numbers, first = np.unique((((name << 8) | kind) << 2) | (2 * is_large + has_step), return_index=True)
        is_new = ~np.isin(numbers, known)
        if is_new.any():
            known = np.union1d(known, numbers)
            found.append(_records(process, spans, own[np.sort(first[is_new])]))
    return found


def _groups_of(collectives: pl.DataFrame) -> pl.DataFrame:
    """Return the groups of some collectives, and whether they may reduce gradients."""
    parts = pl.col("name").str.splitn(SEPARATOR, 2).struct.field("field_1")
    named = collectives.select("rank", group=parts).drop_nulls().unique(maintain_order=True)
    found = ((reducing_groups(collectives), True), (named, False))
    return pl.concat(
        each.select("group", "rank", may_reduce=pl.lit(value=may_reduce)) for each, may_reduce in found
    )


def _evidence(process: Process) -> list[Records]:
    """Return the spans that `find_placement` needs: nothing where every span has its stage."""
    if not process.facts.has_open_stages:
        return []
    found: list[Records] = []
    is_known = np.zeros(3, np.bool_)
    most_chunk = -np.inf
    for spans in process.contents.blocks():
        is_action = IS_ACTION[spans["kind"]]
        is_open = are_placed(spans) & (spans["stage"] == NONE)
        chosen = IS_FIRST_MICROBATCH[spans["kind"]] & (spans["microbatch"] == 0)
        for place, each in enumerate(
            (is_action, is_open, is_action & is_open & (spans["microbatch"] != NONE))
        ):
            if not is_known[place]:
                chosen[np.flatnonzero(each)[:1]] = True
                is_known[place] = each.any()
        others = np.flatnonzero(spans["kind"] != STEP_CODE)
        if len(others) and (chunk := int(spans["chunk"][others].max())) > most_chunk:
            most_chunk = chunk
            chosen[others[spans["chunk"][others].argmax()]] = True
        found.append(_records(process, spans, np.flatnonzero(chosen)))
    return found


def _records(process: Process, spans: Columns, rows: npt.NDArray[np.intp]) -> Records:
    """Return some records of a process, on its own clock."""
    own = Columns({name: column[rows] for name, column in spans.arrays.items()}, len(rows))
    return Records(own, np.arange(len(rows)), process.rank, process.contents.names, 0)
