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
from stagescope.ingest.recording.columns import no_columns
from stagescope.ingest.recording.copies import without_copies
from stagescope.ingest.recording.decisions import Decisions, decide
from stagescope.ingest.recording.reader import (
    SPANS_IN_MEMORY,
    contents_by_source,
    known_processes,
    part_of,
    require_known,
    timeline_of_decisions,
)
from stagescope.ingest.recording.readings import WaitingReadings, with_few_readings
from stagescope.ingest.recording.segments import Part, identity_of, stem_of
from stagescope.ingest.recording.shown_spans import (
    GROUPS,
    Shown,
    different_collectives,
    evidence_of,
    groups_of,
    with_shown_spans,
)
from stagescope.ingest.recording.span_tables import spans_of
from stagescope.ingest.usable_files import outcome_of, usable
from stagescope.model import SPANS
from stagescope.model.group_kinds import find_group_kinds
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.kinds import ACTION_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from stagescope.ingest.reader import ReadOptions
    from stagescope.ingest.recording.amendments import Amendments
    from stagescope.ingest.recording.facts import Facts
    from stagescope.ingest.recording.frames import Contents
    from stagescope.ingest.recording.process import Process
    from stagescope.ingest.recording.span_tables import Records
    from stagescope.model import Timeline
    from stagescope.model.diagnostics import Diagnostic
    from stagescope.vocabulary.errors import TableError
    from stagescope.vocabulary.steps import StepRange

Outcome: TypeAlias = "Part | InputError | TableError | Path"


class Files(NamedTuple):
    """Files that are read together, those of them that are copies of others, and what of them is shown.

    `amendments` are what was found about the spans of a recording since it was surveyed, and `steps` those that are
    read, None for all. Readings of clocks wait in the file `readings` while the run is surveyed, None for memory.
    """

    paths: tuple[Path, ...]
    copies: frozenset[Path] = frozenset()
    shown: Shown = Shown()
    amendments: Amendments | None = None
    steps: StepRange | None = None
    readings: Path | None = None

    @property
    def name(self) -> str:
        """How messages name them."""
        return str(self.paths[0]) if len(self.paths) == 1 else f"{self.paths[0]} and the files after it"


class Survey(NamedTuple):
    """What is known of some files: each of them without spans, or why it is not used, and their recordings.

    The outcome of a file that was deleted meanwhile is its path. `facts` are those about the spans of each process that
    are shown.

    `groups` has group and rank of collectives, and whether they may reduce gradients; `evidence` the spans that show
    stages, on the clock of each process. Two recordings may be of one rank, as after a restart, so the rank in both is
    the place in `processes`.
    """

    outcomes: tuple[tuple[Path, Outcome], ...]
    processes: tuple[Process, ...]
    facts: tuple[Facts, ...]
    unknown: tuple[Diagnostic, ...]
    groups: pl.DataFrame
    evidence: pl.DataFrame


class Surveyed(NamedTuple):
    """What is known of all files of a run, and decided about it.

    `files` are those of each recording, by its source, `groups` has group and rank of all collectives, and `evidence`
    the spans that show stages. `reason_of_files` states why its files cannot be read one after the other; None if they
    can be.
    """

    decisions: Decisions
    groups: pl.DataFrame
    evidence: pl.DataFrame
    files: dict[str, Files]
    reason_of_files: str | None

    @property
    def whole(self) -> str | None:
        """Why the run cannot be divided into parts that are read one after the other; None if it can be."""
        return self.reason_of_files or _reason_of_spans(self)

    @property
    def is_settled(self) -> bool:
        """Whether every span states its step, and every transfer its action, as far as they can be known."""
        facts = [process.facts for process in self.decisions.processes]
        return self.has_known_steps and not any(each.has_plain_transfers for each in facts)

    @property
    def has_known_steps(self) -> bool:
        """Whether spans state their steps, or these cannot be found because no action is a backward."""
        facts = [process.facts for process in self.decisions.processes]
        return any(each.has_steps for each in facts) or not any(each.backwards for each in facts)


def batches(paths: Iterable[Path], count: int, steps: StepRange | None = None) -> Iterator[Files]:
    """Yield all files, about `count` at a time, to be read with these steps, None for all.

    Those of one bounded recording stay together.
    """
    of_recording: dict[tuple[Path, str], list[Path]] = {}
    for path in paths:
        of_recording.setdefault(stem_of(path), []).append(path)
    pending: list[Path] = []
    for files in of_recording.values():
        pending += files
        if len(pending) >= count:
            yield Files(tuple(pending), steps=steps)
            pending = []
    if pending:
        yield Files(tuple(pending), steps=steps)


def survey(files: Files) -> Survey:
    """Return what is known of some files. Raises InputError for a file of a newer format, and OSError."""
    with WaitingReadings(files.readings) as waiting:
        return _survey(files, waiting)


def _survey(files: Files, waiting: WaitingReadings) -> Survey:
    outcomes = []
    processes: list[Process] = []
    facts: list[Facts] = []
    unknown: list[Diagnostic] = []
    collectives: list[Records] = []
    evidence: list[Records] = []
    for recording in batches(files.paths, 1):  # one after the other, so that only one is in memory
        read = partial(part_of, steps=files.steps, most_spans=SPANS_IN_MEMORY)
        own = [(path, outcome_of(read, path)) for path in recording.paths]
        outcomes += [(path, _light_outcome(outcome)) for path, outcome in own]
        parts = [part for path, part in own if isinstance(part, Part) and path not in files.copies]
        found, lost = known_processes(parts)
        unknown += lost
        for process in found:
            shown = with_shown_spans(process, files.shown.label)
            place = len(processes)
            collectives += different_collectives(shown, place)
            evidence += evidence_of(shown, place, always=files.shown.all_evidence)
            processes.append(replace(process, contents=waiting.without(_light(process.contents))))
            facts.append(shown.facts)
    return Survey(
        tuple(outcomes),
        tuple(processes),
        tuple(facts),
        tuple(unknown),
        groups_of(spans_of(collectives)) if collectives else pl.DataFrame(schema=GROUPS),
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

    Raises InputError as read_recordings does, and OSError. Readings of clocks are not used afterwards.
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
    known = (replace(each, contents=with_few_readings(each.contents)) for each in decisions.processes)
    decisions = replace(decisions, processes=tuple(known))
    used = {process.source for process in decisions.processes}
    files = {
        process.source: Files(each_files, steps=options.steps)
        for each in surveys
        for process, each_files in zip(each.processes, _files_of(each, copies[0]), strict=True)
        if process.source in used
    }
    surveyed = Surveyed(decisions, pl.DataFrame(), pl.DataFrame(), files, _reason_of_files(parts, gone))
    return with_facts_of_spans(surveyed, surveys)


def needed_again(surveyed: Surveyed, before: Shown) -> Shown | None:
    """Return how the files of a run have to be surveyed once more, after they were with `before`; None if not."""
    if surveyed.reason_of_files is not None:
        return None
    if before.label != surveyed.decisions.label:
        return Shown(surveyed.decisions.label)
    facts = [process.facts for process in surveyed.decisions.processes]
    differ = len({each.has_open_stages for each in facts if each.actions}) > 1
    return Shown(before.label, all_evidence=True) if differ and not before.all_evidence else None


def with_facts_of_spans(surveyed: Surveyed, surveys: Sequence[Survey]) -> Surveyed:
    """Return what is known of a run, with what its spans show: those that are shown, of the recordings that are used.

    `surveys` may be later ones than those from which everything else was decided.
    """
    decisions = surveyed.decisions
    rank_of = {process.source: process.rank for process in decisions.processes}
    known = {
        process.source: facts
        for each in surveys
        for process, facts in zip(each.processes, each.facts, strict=True)
        if process.source in rank_of
    }
    processes = [
        replace(
            process,
            facts=replace(
                known.get(process.source, process.facts),
                spans=process.facts.spans,
                labels=process.facts.labels,
            ),
        )
        for process in decisions.processes
    ]
    groups = _of_used([(each, each.groups) for each in surveys], rank_of)
    reducing = groups.filter("may_reduce").select("group", "rank")
    offsets = decisions.ranks.join(decisions.clocks.select("clock", "offset_ns"), on="clock", how="left")
    evidence = _of_used([(each, each.evidence) for each in surveys], rank_of).join(
        offsets.select("rank", "offset_ns"), on="rank", maintain_order="left"
    )
    moved = evidence.with_columns(pl.col("start_ns", "end_ns") + pl.col("offset_ns")).drop("offset_ns")
    kinds = find_group_kinds(reducing, decisions.ranks)
    return surveyed._replace(
        decisions=replace(decisions, processes=tuple(processes), group_kinds=kinds),
        groups=groups.select("group", "rank").unique(),
        evidence=moved.sort(SPANS.order, maintain_order=True),
    )


def without_peers(surveyed: Surveyed) -> Surveyed:
    """Return what is known of a run of which no transfer that is selected names its peer."""
    no_rank = np.empty(0, np.int32)
    processes = tuple(
        replace(process, facts=replace(process.facts, peers=no_rank))
        for process in surveyed.decisions.processes
    )
    return surveyed._replace(decisions=replace(surveyed.decisions, processes=processes))


def _of_used(tables: Iterable[tuple[Survey, pl.DataFrame]], rank_of: Mapping[str, int]) -> pl.DataFrame:
    """Return the rows of the recordings that are used, with their ranks in place of their places."""
    found = []
    for survey, rows in tables:
        ranks = [rank_of.get(process.source) for process in survey.processes]
        if rows.is_empty() or ranks == list(range(len(ranks))):
            found.append(rows)
            continue
        rank = pl.Series(ranks, dtype=pl.Int32).gather(rows["rank"])
        found.append(rows.with_columns(rank=rank).drop_nulls("rank"))
    return pl.concat(found)


def contents_of(process: Process, files: Files, most_spans: int | None = None) -> Contents:
    """Return the content of a recording that was surveyed, with its spans; more than `most_spans` of a file stay there.

    Raises InputError if it has changed since.
    """
    read = (part_of(path, steps=files.steps, most_spans=most_spans) for path in files.paths)
    parts = [part for part in read if isinstance(part, Part)]
    again = contents_by_source(parts).get(process.source)
    if again is None or again.span_count != process.facts.spans:
        raise errors.changed_meanwhile(process.source)
    if files.amendments is None:
        return again
    return again.with_amendments(files.amendments.amended, again.span_count - files.amendments.dropped)


def timeline_of_part(decisions: Decisions, contents: Iterable[Contents]) -> Timeline:
    """Return the Timeline of some recordings of a run that was surveyed, with their spans and without its notes.

    What is found from the spans of several recordings is among the amendments of their contents.
    """
    read = zip(decisions.processes, contents, strict=True)
    processes = tuple(replace(process, contents=own, notes=()) for process, own in read)
    return timeline_of_decisions(replace(decisions, processes=processes), is_settled=True)


def _files_of(survey: Survey, copies: frozenset[Path]) -> Iterator[tuple[Path, ...]]:
    """Yield the files of each recording."""
    by_stem: dict[tuple[Path, str], list[Path]] = {}
    for path, outcome in survey.outcomes:
        if isinstance(outcome, Part) and path not in copies:
            by_stem.setdefault(stem_of(path), []).append(path)
    of_file = {str(path): tuple(paths) for paths in by_stem.values() for path in paths}
    return (of_file[process.source] for process in survey.processes)


def _reason_of_files(parts: Sequence[Part], gone: Sequence[Path]) -> str | None:
    """Return why the files of a run have to be read together; None if they need not."""
    bounded = [part for part in parts if "segment" in part.contents.header]
    identities, stems = {identity_of(part) for part in bounded}, {stem_of(part.path) for part in bounded}
    if gone:
        return "files of it were deleted while it was read"
    return "files of its recordings were renamed" if len(identities) != len(stems) else None


def _reason_of_spans(surveyed: Surveyed) -> str | None:
    """Return why the spans of a run have to be in memory together; None if they need not."""
    if surveyed.has_known_steps:
        return None
    if surveyed.decisions.label is not None:
        return "nothing states the steps of its pipelines"
    is_open = pl.col("stage").is_null() & pl.col("kind").is_in(ACTION_KINDS)
    depends = surveyed.evidence.filter(is_open | (pl.col("chunk") > 0))
    return None if depends.is_empty() else "nothing states its steps and stages"


def _light_outcome(outcome: Outcome) -> Outcome:
    if not isinstance(outcome, Part):
        return outcome
    return Part(outcome.path, with_few_readings(_light(outcome.contents)))


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
