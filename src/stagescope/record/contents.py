"""How much each rank recorded, read from its recordings right after a command, without the libraries of a reader."""

from __future__ import annotations

import json
import struct
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stagescope.record.format import END, HEADER, SPAN, SPAN_FIELDS, SPANS, Frame, scan_frames
from stagescope.vocabulary.kinds import ACTION_KINDS, BY_NAME, STEP_CODE, TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MOST_BYTES = 256 << 20
"""Recordings that are larger in total are not counted: reading them would hold up the end of the command."""

HEADER_BYTES = 16 << 10
"""The first header of a recording is smaller."""

_KIND = next(place for place, (name, _) in enumerate(SPAN_FIELDS) if name == "kind")
_KIND_OFFSET = struct.calcsize("<" + SPAN.format.lstrip("<")[:_KIND])
_CODES = {
    "actions": [BY_NAME[kind].code for kind in ACTION_KINDS],
    "transfers": [BY_NAME[kind].code for kind in TRANSFERS],
    "gradient reductions": [BY_NAME["grad_reduce"].code],
    "collectives": [BY_NAME["collective"].code],
    "steps": [STEP_CODE],
}


@dataclass
class Contents:
    """What one process recorded: how often each of `actions`, `transfers` and so on, and collectives only counted.

    `has_end` is whether it ended regularly, so that nothing is missing at the end.
    """

    rank: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    counted_collectives: int = 0
    has_end: bool = False


def count_contents(recordings: Iterable[Path]) -> list[Contents]:
    """Return what each process recorded, by rank; empty if the recordings are too large to be read now."""
    files = sorted(recordings)
    if sum(map(size_of, files)) > MOST_BYTES:
        return []
    processes: dict[tuple[Path, str], Contents] = {}
    for path in files:  # the segments of a process differ in the part after the first dot
        process = processes.setdefault((path.parent, path.name.partition(".")[0]), Contents())
        with suppress(FileNotFoundError):  # deleted by a process that still runs
            _count(path.read_bytes(), process)
    return sorted(processes.values(), key=lambda process: process.rank)


def size_of(path: Path) -> int:
    """Return the size of a file in bytes, 0 if it was deleted: a process that runs deletes its oldest segments."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def count_discarded(recordings: Iterable[Path]) -> int:
    """Return how many spans the processes discarded, as the first header of each file that they kept states it."""
    oldest: dict[tuple[Path, str], int] = {}
    for path in recordings:
        with suppress(FileNotFoundError), path.open("rb") as file:
            before = _spans_before(file.read(HEADER_BYTES))
            own = path.parent, path.name.partition(".")[0]
            oldest[own] = min(before, oldest.get(own, before))
    return sum(oldest.values())


def _spans_before(data: bytes) -> int:
    first = next(scan_frames(data), None)
    try:
        facts = json.loads(bytes(first.payload)) if isinstance(first, Frame) else {}
        return int(facts.get("records_before", 0))
    except (AttributeError, TypeError, ValueError):  # damaged, or of a later version
        return 0


def _count(data: bytes, process: Contents) -> None:
    for frame in scan_frames(data):
        if not isinstance(frame, Frame):
            continue
        if frame.type == SPANS:
            kinds = bytes(frame.payload[_KIND_OFFSET :: SPAN.size])
            for name, codes in _CODES.items():
                process.counts[name] += sum(map(kinds.count, codes))
        elif frame.type == END:
            process.has_end = True
        elif frame.type == HEADER:
            _read_header(bytes(frame.payload), process)


def _read_header(payload: bytes, process: Contents) -> None:
    try:
        facts = json.loads(payload)
        process.rank = int(facts.get("rank") or 0)
        process.counted_collectives = sum(facts.get("counted_collectives", {}).values())
    except (AttributeError, TypeError, ValueError):  # damaged, or of a later version
        return
