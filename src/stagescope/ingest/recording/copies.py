"""Recognize copies of a recording: a backup folder in the same tree, or a compressed file beside the original."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.ingest.copies import copy_note
from stagescope.ingest.recording.segments import identity_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagescope.ingest.recording.segments import Part
    from stagescope.model.diagnostics import Diagnostic


def without_copies(parts: Iterable[Part]) -> tuple[list[Part], list[Diagnostic]]:
    """Return every part once and a diagnostic per copy.

    Files are copies if they are the same segment of the same recording, or equal in content where the header does not
    identify the recording. Of copies that differ, such as a backup of an unfinished recording, the most complete one
    is used.
    """
    kept: dict[object, Part] = {}
    notes: list[Diagnostic] = []
    for part in parts:
        identity = identity_of(part) or (part.contents.checksum if part.contents.header else part.path)
        key = (identity, part.number)
        other = kept.setdefault(key, part)
        if other is not part:
            kept[key], copy = (part, other) if _completeness(part) > _completeness(other) else (other, part)
            notes.append(_note(copy, kept[key]))
    return list(kept.values()), notes


def _completeness(part: Part) -> tuple[bool, int, int]:
    contents = part.contents
    return contents.end is not None, contents.frames, -len(contents.gaps)


def _note(copy: Part, original: Part) -> Diagnostic:
    rank = copy.contents.header.get("rank")
    is_equal = copy.contents.checksum == original.contents.checksum
    return copy_note(copy.path, original.path, rank if isinstance(rank, int) else None, is_equal=is_equal)
