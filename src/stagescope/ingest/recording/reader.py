"""Reader of stagescope's own recordings (``*.sscope``, one per process; the format is in record/format.py).

Timestamps are converted from each machine's monotonic clock to the wall clock by ONE offset per machine, so that
nothing changes within a machine, except that changes of the clock's rate are removed (slews.py). Across machines this
is only as precise as their wall clocks, which the clocks table states. Actions timed on a device were already converted
to the monotonic clock by the recorder, with an error that it stored.
"""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.ingest.memory_need import require_memory_for
from stagescope.ingest.reader import Reader, ReadOptions
from stagescope.ingest.recording import errors
from stagescope.ingest.recording.chosen_steps import with_chosen_steps
from stagescope.ingest.recording.copies import without_copies
from stagescope.ingest.recording.counters import counters_of
from stagescope.ingest.recording.decisions import Decisions, decide
from stagescope.ingest.recording.diagnostics import damage_of
from stagescope.ingest.recording.facts import facts_of
from stagescope.ingest.recording.frames import Contents, read_contents, read_long_contents
from stagescope.ingest.recording.leading_loads import without_leading_loads
from stagescope.ingest.recording.marked_messages import merge_marked
from stagescope.ingest.recording.marked_steps import divide_into_steps
from stagescope.ingest.recording.marked_transfers import place_transfers
from stagescope.ingest.recording.memory_need import require_memory
from stagescope.ingest.recording.pipelines import is_of_pipeline
from stagescope.ingest.recording.process import Process
from stagescope.ingest.recording.reductions import name_reductions
from stagescope.ingest.recording.segments import Part, join_segments, without_discarded
from stagescope.ingest.recording.slews import without_slew
from stagescope.ingest.recording.span_tables import Records, spans_of, steps_of
from stagescope.ingest.recording.time_window import within_recording
from stagescope.ingest.streams import open_stream
from stagescope.ingest.usable_files import read_usable
from stagescope.model import COUNTERS, SPANS, STEPS, Timeline
from stagescope.model.diagnostics import Diagnostic, diagnostics_table
from stagescope.model.validate import in_order
from stagescope.record import format as fmt
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.kinds import STEP_CODE
from stagescope.vocabulary.limits import limit

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from stagescope.vocabulary.steps import StepRange

BYTES_OF_BLOCK = 8 << 20
SPANS_IN_MEMORY = 1_000_000
"""More spans of one file stay there where their content is needed a part at a time; a span takes 275 bytes of memory.
"""

RANK_IN_NAME = re.compile(r"rank-?(\d+)")
"""Where a header is damaged, the rank is taken from the file name: rank-00003.sscope, or formerly rank00003-7.sscope.
"""


def recognize_recording(path: Path, head: bytes) -> bool:
    """Return whether a file is a recording: it begins with a frame, or has the suffix and contains a frame."""
    if head.startswith(fmt.MAGIC):
        return True
    if fmt.SUFFIX not in path.suffixes:
        return False
    return any(isinstance(item, fmt.Frame) for item in fmt.scan_frames(_bytes_of(path)))


def read_recordings(paths: Sequence[Path], options: ReadOptions | None = None) -> Timeline:
    """Return the Timeline of all given recordings, which belong to one run.

    Damage is counted in diagnostics, and every valid frame is used. Of several attempts of the run, and of several
    pipelines that each process ran, those that `options` name are read. Raises InputError for recordings of two
    trainings with the same rank, for a file of a newer format, if there is no such attempt, pipeline
    or step, if the rank of no file is known, and if the machine has too little memory for these steps.
    """
    options = options or ReadOptions()
    require_memory(paths, options.steps)
    outcomes, refused = read_usable(partial(part_of, steps=options.steps), paths, options.done)
    parts, gone = (
        [one for one in outcomes if isinstance(one, Part)],
        [one for one in outcomes if isinstance(one, Path)],
    )
    if not parts:
        raise InputError.no_such_path(gone[0])
    parts, discarded, vanished = without_discarded(parts, gone)
    parts, lost = without_copies(parts)
    every, unknown = processes_of(parts, discarded)
    if options.steps is not None and _has_several_steps(every):
        require_memory_for(sum(process.facts.spans for process in every))
    return timeline_of(every, [*lost, *refused, *vanished, *unknown], options)


def _has_several_steps(processes: Iterable[Process]) -> bool:
    """Return whether fewer of these steps could be read."""
    return len(set().union(*(process.facts.steps for process in processes))) > 1


def timeline_of(
    every: Sequence[Process], lost: Sequence[Diagnostic], options: ReadOptions, *, last: bool = False
) -> Timeline:
    """Return the Timeline of recordings that were read, with what was lost before in its diagnostics.

    With `last`, it is that of the last attempt even if that is not complete. Raises InputError as read_recordings does.
    """
    return timeline_of_decisions(decide(every, lost, options, last=last))


def timeline_of_decisions(decisions: Decisions, *, is_settled: bool = False) -> Timeline:
    """Return the Timeline of the recordings of a run, or of some of them.

    If the spans are settled, their steps and the actions of their transfers were found before (settled_spans.py).
    """
    label = decisions.label
    offsets = dict(zip(decisions.clocks["clock"], decisions.clocks["offset_ns"], strict=True))
    markers: list[Records] = []
    others: list[Records] = []
    counters = [COUNTERS.empty()]
    notes: list[Diagnostic] = []
    for recording in decisions.processes:
        process = without_slew(recording, decisions.slews)
        columns, offset_ns = process.contents.spans, offsets[process.clock]
        is_marker = columns["kind"] == STEP_CODE
        is_chosen = is_of_pipeline(process, columns["step"], label)
        for records, chosen in ((markers, is_chosen & is_marker), (others, is_chosen & ~is_marker)):
            rows = np.flatnonzero(chosen)
            records.append(Records(columns, rows, process.rank, process.contents.names, offset_ns))
        if len(process.contents.counters):
            counters.append(counters_of(process, label, offset_ns))
        notes += process.notes
    spans = without_leading_loads(spans_of(others))
    divided: list[Diagnostic] = []
    unplaced: list[Diagnostic] = []
    if not is_settled:
        spans, divided = divide_into_steps(merge_marked(spans))
    spans = name_reductions(spans, decisions.ranks, decisions.group_kinds)
    if not is_settled:
        spans, unplaced = place_transfers(spans)
    return Timeline(
        spans=in_order(spans, SPANS),
        ranks=decisions.ranks,
        steps=steps_of(markers).sort(STEPS.order),
        clocks=decisions.clocks,
        diagnostics=diagnostics_table([*decisions.before, *notes, *divided, *unplaced, *decisions.after]),
        counters=in_order(pl.concat(counters), COUNTERS),
    )


def _bytes_of(path: Path) -> bytes:
    with open_stream(path) as stream:
        return stream.read()


def processes_of(
    parts: Sequence[Part], discarded: Collection[Path] = ()
) -> tuple[list[Process], list[Diagnostic]]:
    """Return the process of each recording, in the order of ranks, and what could not be used.

    `discarded` are files that their process deleted meanwhile.
    Raises InputError for a file of a newer format, and if the rank of no file is known.
    """
    processes, lost = known_processes(parts, discarded)
    require_known(processes, parts)
    return processes, lost


def require_known(processes: Sequence[Process], parts: Sequence[Part]) -> None:
    """Raise InputError if the rank of no file is known."""
    if not processes:
        raise InputError.damaged(parts[0].path, f"{_no_rank(parts[0].contents)}, and so is the rank")


def known_processes(
    parts: Sequence[Part], discarded: Collection[Path] = ()
) -> tuple[list[Process], list[Diagnostic]]:
    """Return the process of each recording with a rank, in the order of ranks, and what could not be used.

    Raises InputError for a file of a newer format.
    """
    processes: list[Process] = []
    lost: list[Diagnostic] = []
    for (path, contents), notes in join_segments(parts, discarded):
        rank = _rank_of(path, contents)
        if rank is None:
            lost += notes
            spans = contents.stored_spans
            text = f"{_no_rank(contents)}: {spans} spans of an unknown rank were omitted"
            omitted = Diagnostic("error", text, str(path), count=max(1, spans), code="header.missing")
            lost.append(omitted)
        else:
            inside, outside = within_recording(contents, str(path), rank)
            facts = facts_of(inside)
            found = (*notes, *outside, *damage_of(inside, facts, str(path), rank))
            processes.append(Process(rank, str(path), inside, facts, notes=found))
    return sorted(processes, key=lambda process: process.rank), lost


def contents_by_source(parts: Sequence[Part]) -> dict[str, Contents]:
    """Return the content of each recording with a rank, by its source: `known_processes` without facts and notes."""
    joined = [part for part, _ in join_segments(parts)]
    ranks = [(part, _rank_of(*part)) for part in joined]
    return {
        str(path): within_recording(contents, str(path), rank)[0]
        for (path, contents), rank in ranks
        if rank is not None
    }


def _rank_of(path: Path, contents: Contents) -> int | None:
    """Return the rank of a recording, None if it is not known. Raises InputError for a file of a newer format."""
    version = contents.header.get("version", fmt.FORMAT_VERSION)
    if version > fmt.FORMAT_VERSION:
        raise errors.newer_version(path, version, fmt.FORMAT_VERSION)
    rank: int | None = contents.header.get("rank", _rank_in_name(path))
    return rank


def part_of(path: Path, *, steps: StepRange | None = None, most_spans: int | None = None) -> Part | Path:
    """Return the content of a file; the path if the file is gone: a running process deletes its oldest segments.

    With `steps`, its spans are those of these steps. If it has more than `most_spans`, they stay in the file.
    """
    try:
        if steps is None and most_spans is None:
            return Part(path, read_contents(_bytes_of(path)))
        with open_stream(path) as stream:
            blocks = iter(partial(stream.read, BYTES_OF_BLOCK), b"")
            contents = read_long_contents(path, blocks, SPANS_IN_MEMORY if most_spans is None else most_spans)
        return Part(path, with_chosen_steps(contents, steps, most_spans))
    except InputError:
        if os.path.lexists(path):
            raise
        return path


def _no_rank(contents: Contents) -> str:
    """Return why a recording has no rank."""
    wrong = [text for text in contents.wrong_facts if text.startswith("rank ")]
    return f"the header is unusable, {wrong[0]}" if wrong else "the header is missing"


def _rank_in_name(path: Path) -> int | None:
    found = RANK_IN_NAME.match(path.name)
    rank = int(found[1]) if found else None
    return rank if rank is not None and rank < limit("ranks") else None


READER = Reader(
    "recording",
    (f"*{fmt.SUFFIX}", f"*{fmt.SUFFIX}.gz", f"*{fmt.SUFFIX}.zst"),
    "stagescope's own recordings, one file per process",
    recognize_recording,
    read_recordings,
    has_attempts=True,
    knows_copies=True,
)
