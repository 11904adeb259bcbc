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

from stagescope.ingest.reader import Reader, ReadOptions
from stagescope.ingest.recording import errors
from stagescope.ingest.recording.chosen_steps import with_chosen_steps
from stagescope.ingest.recording.copies import without_copies
from stagescope.ingest.recording.counters import counters_of
from stagescope.ingest.recording.decisions import Decisions, decide
from stagescope.ingest.recording.diagnostics import damage_of
from stagescope.ingest.recording.facts import facts_of
from stagescope.ingest.recording.frames import Columns, Contents, read_contents
from stagescope.ingest.recording.leading_loads import without_leading_loads
from stagescope.ingest.recording.marked_messages import merge_marked
from stagescope.ingest.recording.marked_steps import divide_into_steps
from stagescope.ingest.recording.marked_transfers import place_transfers
from stagescope.ingest.recording.memory_need import require_memory
from stagescope.ingest.recording.pipelines import records_of
from stagescope.ingest.recording.process import Process
from stagescope.ingest.recording.reductions import name_reductions
from stagescope.ingest.recording.segments import Part, join_segments, without_discarded
from stagescope.ingest.recording.slews import without_slew
from stagescope.ingest.recording.time_window import within_recording
from stagescope.ingest.recording.values import nullable, texts
from stagescope.ingest.streams import open_stream
from stagescope.ingest.usable_files import read_usable
from stagescope.model import COUNTERS, SPANS, STEPS, Timeline
from stagescope.model.diagnostics import Diagnostic, diagnostics_table
from stagescope.model.tables import KindType, LaneType
from stagescope.model.validate import in_order
from stagescope.record import format as fmt
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.kinds import BY_CODE, BY_NAME, KINDS, LANES, STEP_CODE
from stagescope.vocabulary.limits import limit

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import numpy.typing as npt

    from stagescope.vocabulary.steps import StepRange

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
    or step, if the rank of no file is known, and if the machine has too little memory for all steps.
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
    return timeline_of(every, [*lost, *refused, *vanished, *unknown], options)


def timeline_of(
    every: Sequence[Process], lost: Sequence[Diagnostic], options: ReadOptions, *, last: bool = False
) -> Timeline:
    """Return the Timeline of recordings that were read, with what was lost before in its diagnostics.

    With `last`, it is that of the last attempt even if that is not complete. Raises InputError as read_recordings does.
    """
    return timeline_of_decisions(decide(every, lost, options, last=last))


def timeline_of_decisions(decisions: Decisions) -> Timeline:
    """Return the Timeline of the recordings of a run, or of some of them."""
    label = decisions.label
    offsets = dict(zip(decisions.clocks["clock"], decisions.clocks["offset_ns"], strict=True))
    markers, spans, counters = [], [], []
    notes: list[Diagnostic] = []
    for recording in decisions.processes:
        process = without_slew(recording, decisions.slews)
        records = records_of(process, label)
        is_marker = records["kind"] == STEP_CODE
        offset_ns = offsets[process.clock]
        markers.append(_steps(records.where(is_marker), process.rank, offset_ns))
        spans.append(without_leading_loads(spans_of(records.where(~is_marker), process, offset_ns)))
        counters.append(counters_of(process, label, offset_ns))
        notes += process.notes
    stepped, divided = divide_into_steps(merge_marked(pl.concat(spans)))
    placed, unplaced = place_transfers(name_reductions(stepped, decisions.ranks, decisions.group_kinds))
    return Timeline(
        spans=in_order(placed, SPANS),
        ranks=decisions.ranks,
        steps=pl.concat(markers).sort(STEPS.order),
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
        version = contents.header.get("version", fmt.FORMAT_VERSION)
        if version > fmt.FORMAT_VERSION:
            raise errors.newer_version(path, version, fmt.FORMAT_VERSION)
        rank = contents.header.get("rank", _rank_in_name(path))
        if rank is None:
            lost += notes
            spans = contents.stored_spans
            text = f"{_no_rank(contents)}: {spans} spans of an unknown rank were omitted"
            omitted = Diagnostic("error", text, str(path), count=max(1, spans), code="header.missing")
            lost.append(omitted)
        else:
            inside, outside = within_recording(contents, str(path), rank)
            found = (*notes, *outside, *damage_of(inside, str(path), rank))
            processes.append(Process(rank, str(path), inside, facts_of(inside), notes=found))
    return sorted(processes, key=lambda process: process.rank), lost


def part_of(path: Path, *, steps: StepRange | None = None) -> Part | Path:
    """Return the content of a file; the path if the file is gone: a running process deletes its oldest segments."""
    try:
        return Part(path, with_chosen_steps(read_contents(_bytes_of(path)), steps))
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


def _steps(markers: Columns, rank: int, offset_ns: int) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "step": markers["step"],
            "rank": np.full(len(markers), rank, np.int32),
            "start_ns": markers["start_ns"] + offset_ns,
            "end_ns": markers["end_ns"] + offset_ns,
        },
        schema=dict(STEPS.schema),
    )


def spans_of(records: Columns, process: Process, offset_ns: int) -> pl.DataFrame:
    """Return the spans table of records of one process: whole columns, no loop over spans."""
    columns: dict[str, pl.Series] = {}
    for name in ("step", "stage", "chunk", "microbatch", "pair", "peer", "bytes"):
        columns[name] = nullable(records[name])
    for name in ("start_ns", "end_ns"):
        columns[name] = pl.Series(records[name] + offset_ns)
    for name in ("wait_start_ns", "wait_end_ns"):
        columns[name] = nullable(records[name]) + offset_ns
    columns["rank"] = pl.repeat(process.rank, len(records), dtype=pl.Int32, eager=True)
    columns["kind"] = _enum(records["kind"], _KIND_POSITION, KindType)
    columns["lane"] = _enum(records["lane"], _LANE_POSITION, LaneType)
    columns["name"] = texts(records["name"], process.contents.names)
    return pl.DataFrame({c.name: columns[c.name].cast(c.dtype) for c in SPANS.columns})


def _positions(codes: dict[int, int], fallback: int) -> npt.NDArray[np.uint8]:
    table = np.full(256, fallback, np.uint8)
    for code, position in codes.items():
        table[code] = position
    return table


_KIND_POSITION = _positions(
    {code: KINDS.index(kind) for code, kind in BY_CODE.items()}, KINDS.index(BY_NAME["other"])
)
_LANE_POSITION = _positions({code: code for code in range(len(LANES))}, LANES.index("host"))


def _enum(codes: npt.NDArray[np.uint8], positions: npt.NDArray[np.uint8], dtype: pl.Enum) -> pl.Series:
    """Return codes of the recording as a Polars Enum; unknown codes become the table's fallback."""
    return pl.Series(dtype.categories, dtype=dtype).gather(positions[codes])


READER = Reader(
    "recording",
    (f"*{fmt.SUFFIX}", f"*{fmt.SUFFIX}.gz", f"*{fmt.SUFFIX}.zst"),
    "stagescope's own recordings, one file per process",
    recognize_recording,
    read_recordings,
    has_attempts=True,
    knows_copies=True,
)
