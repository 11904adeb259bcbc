"""What is wrong with recordings, in words and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stagescope.timeline.diagnostics import Diagnostic
from stagescope.vocabulary.kinds import BY_CODE, STEP_CODE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.ingest.recording_frames import Contents


def damage_of(contents: Contents, source: str, rank: int) -> Iterator[Diagnostic]:
    """Yield everything that one file lacks: damage is an error, an unclean end a warning."""
    for gap in contents.gaps:
        where = f"byte {gap.offset}"
        if gap.torn:
            text = f"the last frame is cut short: {gap.size_bytes} bytes of it are there and not used"
            yield Diagnostic("warning", text, source, rank, where)
        else:
            text = f"{gap.size_bytes} damaged bytes hold no intact frame and were passed over"
            yield Diagnostic("error", text, source, rank, where)
    if contents.lost_frames:
        text = "frames are missing, with the spans in them"
        yield Diagnostic("error", text, source, rank, count=contents.lost_frames)
    if contents.dropped_spans:
        text = "spans were dropped by the recorder: its buffer was full or the file could not be written"
        yield Diagnostic("error", text, source, rank, count=contents.dropped_spans)
    if contents.end is None:
        text = "no end frame: the process did not end by itself, its last half second may be missing"
        yield Diagnostic("warning", text, source, rank)
    elif (lost := contents.end.get("spans", 0) - len(contents.spans)) > 0:
        yield Diagnostic("error", "spans are missing that the process had stored", source, rank, count=lost)
    yield from _unknown(contents, source, rank)


def _unknown(contents: Contents, source: str, rank: int) -> Iterator[Diagnostic]:
    for frame_type, count in contents.unknown_frames.items():
        text = f"frames of type {frame_type}, which this stagescope does not know, were passed over"
        yield Diagnostic("error", text, source, rank, count=count)
    known = np.array([STEP_CODE, *BY_CODE], np.uint8)
    unknown = int((~np.isin(contents.spans["kind"], known)).sum())
    if unknown:
        text = "spans of a kind that this stagescope does not know are shown as other"
        yield Diagnostic("warning", text, source, rank, count=unknown)


def run_notes(run_count: int) -> Iterator[Diagnostic]:
    """Yield what is wrong between files that are each in order: several runs."""
    if run_count > 1:
        yield Diagnostic("warning", "the recordings carry different run ids: they may not belong together",
                         count=run_count)  # fmt: skip
