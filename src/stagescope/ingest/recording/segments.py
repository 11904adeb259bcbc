"""Join the files of one bounded recording (record/segments.py explains how they are written)."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stagescope.ingest.recording.columns import concatenated, no_columns
from stagescope.ingest.recording.diagnostics import STORED_MISSING, gaps_of
from stagescope.ingest.recording.frames import Contents
from stagescope.ingest.recording.long_spans import joined_spans
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.sizes import size_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

KEPT = 4
"""Files of a long recording; one less briefly during a switch, in which the process may be killed."""

_NUMBER_IN_NAME = re.compile(r"[^.]*\.(\d+)(?:-[\d-]*)?\.")


class Part(NamedTuple):
    """One file and its content."""

    path: Path
    contents: Contents

    @property
    def number(self) -> int:
        """Position in the sequence, from the header, or from the name without one, as in rank-00003.7.sscope."""
        return _whole(self.contents.header.get("segment", number_in_name(self.path)))

    @property
    def records_before(self) -> int:
        """Number of records that the process had stored before this file."""
        return _whole(self.contents.header.get("records_before"))


def without_discarded(
    parts: Sequence[Part], gone: Iterable[Path]
) -> tuple[list[Part], list[Path], list[Diagnostic]]:
    """Return the parts that a process still keeps, the discarded files, and an error for each other file that is gone.

    `gone` are files that were deleted while the others were read. A process that runs deletes its oldest segment, so
    what was read of older ones has been discarded as well: otherwise there would be a hole in its steps.
    """
    discarded: list[Path] = []
    lost: list[Diagnostic] = []
    kept = list(parts)
    for path in gone:
        number = number_in_name(path)
        own = [part for part in kept if _stem(part) == stem_of(path)]
        if any(part.number > number for part in own):
            discarded += [path, *(part.path for part in own if part.number < number)]
            kept = [part for part in kept if _stem(part) != stem_of(path) or part.number > number]
        else:
            text = "not read: the file was deleted while the recordings were read"
            lost.append(Diagnostic("error", text, str(path), code="file.unreadable"))
    return kept, discarded, lost


def join_segments(
    parts: Iterable[Part], discarded: Collection[Path] = ()
) -> Iterator[tuple[Part, list[Diagnostic]]]:
    """Yield one part per process and the diagnostics of its files; a single file is returned unchanged.

    The joined part has the path of the last file. Discarded spans are counted in a warning, missing ones in an error.
    `discarded` are files that their process has deleted since they were found.
    """
    rows: dict[object, list[Part]] = {}
    parts = list(parts)
    # A file with a damaged header is assigned by its name to the process of its neighbors.
    keys = {stem_of(part.path): _key(part) for part in parts if "segment" in part.contents.header}
    for part in parts:
        bounded = "segment" in part.contents.header
        own = _key(part) if bounded else keys.get(stem_of(part.path), part.path)
        rows.setdefault(own, []).append(part)
    for row in rows.values():
        row.sort(key=lambda part: part.number)
        deleted = sum(stem_of(path) == _stem(row[-1]) for path in discarded)
        is_whole = len(row) == 1 and not row[0].number
        yield (row[0], []) if is_whole else (_joined(row), list(_notes(row, deleted)))


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def identity_of(part: Part) -> tuple[str, ...] | None:
    """Return what all files of one recording share and no other recording has; None if the header has nothing."""
    header = part.contents.header
    if header.get("recording"):  # since version 2
        return (str(header["recording"]),)
    if header.get("pid") is None and header.get("process_start_ns") is None:
        return None
    return _key(part)


def _key(part: Part) -> tuple[str, ...]:
    header = part.contents.header
    names = ("recording", "rank", "boot", "host", "pid", "process_start_ns")
    return tuple(str(header.get(name)) for name in names)


def _stem(part: Part) -> tuple[Path, str]:
    return stem_of(part.path)


def stem_of(path: Path) -> tuple[Path, str]:
    """Return what the names of all files of one process share."""
    return path.parent, path.name.partition(".")[0]


def number_in_name(path: Path) -> int:
    """Return the position of a file in the sequence, by its name."""
    found = _NUMBER_IN_NAME.match(path.name)
    return int(found[1]) if found else 0


def _missing_records(contents: Contents, following: Contents) -> Counter[str]:
    """Return how many counters and clock readings a file lacks that the header of the following one states."""
    previous = following.header.get("previous_file")
    stated = previous.get("file_records") if isinstance(previous, dict) else None
    if not isinstance(stated, dict):  # written by an earlier version, or damaged
        return contents.missing_records
    found = {
        "counters": len(contents.counters),
        "clock": len(contents.anchors),
        "raw_clock": len(contents.raw_anchors),
        "device_clock": len(contents.device_anchors),
    }
    return Counter({name: _whole(stated.get(name, 0)) - count for name, count in found.items()})


def _joined(row: list[Part]) -> Part:
    """Return the files as one recording; `_notes` reports the gaps in the earlier files."""
    all_contents = [part.contents for part in row]
    last = all_contents[-1]
    is_long = any(contents.long for contents in all_contents)
    joined = Contents(
        end=last.end and {**last.end, "spans": last.end["spans"] - row[0].records_before},
        dropped_spans=max(contents.dropped_spans for contents in all_contents),
        dropped_counters=max(contents.dropped_counters for contents in all_contents),
        unchosen_spans=sum(contents.unchosen_spans for contents in all_contents),
        unchosen_steps=np.concatenate([contents.unchosen_steps for contents in all_contents]),
        spans=no_columns() if is_long else concatenated([contents.spans for contents in all_contents]),
        long=joined_spans([contents.long or contents.spans for contents in all_contents])
        if is_long
        else None,
        anchors=np.concatenate([contents.anchors for contents in all_contents]),
        device_anchors=np.concatenate([contents.device_anchors for contents in all_contents]),
        raw_anchors=np.concatenate([contents.raw_anchors for contents in all_contents]),
        counters=np.concatenate([contents.counters for contents in all_contents]),
        frames=sum(contents.frames for contents in all_contents),
        lost_frames=last.lost_frames,
        missing_records=last.missing_records,
        repeated_frames=last.repeated_frames,
        contradictory_frames=last.contradictory_frames,
        wrong_facts=list(dict.fromkeys(text for contents in all_contents for text in contents.wrong_facts)),
        gaps=last.gaps,
    )
    for contents in all_contents:
        joined.header |= contents.header
        joined.names |= contents.names
        joined.unknown_frames += contents.unknown_frames
    return Part(row[-1].path, joined)


def _bounds_text(header: Mapping[str, Any]) -> str:
    """Return what a recording keeps: ``the last 200 steps within 1 GiB``."""
    seconds, steps, size_bytes = (
        _whole(header.get(name)) for name in ("keep_seconds", "keep_steps", "max_bytes")
    )
    parts = [f"{seconds} s" if seconds else "", counted(steps, "step") if steps else ""]
    last = " and ".join(filter(None, parts))
    within = f"within {size_text(size_bytes)}" if size_bytes else ""
    if last:
        return f"the last {last} {within}".rstrip()
    return f"the recording {within or 'within its bounds'}"


def _notes(row: list[Part], deleted: int) -> Iterator[Diagnostic]:
    """Yield what is missing; `deleted` files were discarded since the files of the process were found."""
    first, last = row[0], row[-1]
    rank = last.contents.header.get("rank", first.contents.header.get("rank"))
    source = str(last.path)
    for part, following in pairwise(row):
        if following.number == part.number + 1:
            part.contents.missing_records = _missing_records(part.contents, following.contents)
        yield from gaps_of(part.contents, str(part.path), rank)
    if first.records_before:
        text = f"the oldest spans of this process were discarded to keep {_bounds_text(last.contents.header)}"
        yield Diagnostic("warning", text, source, rank, count=first.records_before, code="spans.discarded")
    expected = min(last.number + 1, KEPT if last.contents.end else KEPT - 1)
    if len(row) + deleted < expected:
        text = "files of this recording are missing"
        yield Diagnostic("error", text, source, rank, count=expected - len(row), code="files.missing")
    if last.contents.end is None:
        stored = sum(part.contents.stored_spans for part in row[:-1])
        missing = last.records_before - first.records_before - stored
        if missing > 0:
            yield Diagnostic("error", STORED_MISSING, source, rank, count=missing, code="spans.missing")
