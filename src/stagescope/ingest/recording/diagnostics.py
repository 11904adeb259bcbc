"""What is wrong with recordings, in words and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.kinds import BY_CODE, COMPUTE, LANE_CODES, STEP_CODE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stagescope.ingest.recording.frames import Contents


def damage_of(contents: Contents, source: str, rank: int) -> Iterator[Diagnostic]:
    """Yield everything that one process's recording lacks: damage is an error, an unclean end a warning."""
    yield from gaps_of(contents, source, rank)
    yield from _missing(contents, source, rank)
    yield from _unknown(contents, source, rank)
    yield from _launch_times(contents, source, rank)


def gaps_of(contents: Contents, source: str, rank: int | None) -> Iterator[Diagnostic]:
    """Yield the stretches of one file that hold no frame, and the count of those that were there."""
    for gap in contents.gaps:
        where = f"byte {gap.offset}"
        if gap.truncated:
            text = f"the last frame is cut short: {gap.size_bytes} bytes of it are there and not used"
            yield Diagnostic("warning", text, source, rank, where)
        else:
            text = f"{gap.size_bytes} damaged bytes hold no intact frame and were passed over"
            yield Diagnostic("error", text, source, rank, where)
    if contents.lost_frames:
        text = "frames are missing, with the spans in them"
        yield Diagnostic("error", text, source, rank, count=contents.lost_frames)


def _missing(contents: Contents, source: str, rank: int) -> Iterator[Diagnostic]:
    if contents.dropped_spans:
        text = "spans were dropped by the recorder: its buffer was full or the file could not be written"
        if len(contents.device_anchors):
            text += ", or the device had not done the action or could not tell when"
        yield Diagnostic("error", text, source, rank, count=contents.dropped_spans)
    if contents.end is None:
        text = "no end frame: the process did not end by itself, its last half second may be missing"
        yield Diagnostic("warning", text, source, rank)
    elif (lost := contents.end.get("spans", 0) - len(contents.spans)) > 0:
        yield Diagnostic("error", "spans are missing that the process had stored", source, rank, count=lost)


def _unknown(contents: Contents, source: str, rank: int) -> Iterator[Diagnostic]:
    for frame_type, count in contents.unknown_frames.items():
        text = f"frames of type {frame_type}, which this stagescope does not know, were passed over"
        yield Diagnostic("error", text, source, rank, count=count)
    known = np.array([STEP_CODE, *BY_CODE], np.uint8)
    unknown = int((~np.isin(contents.spans["kind"], known)).sum())
    if unknown:
        text = "spans of a kind that this stagescope does not know are shown as other"
        yield Diagnostic("warning", text, source, rank, count=unknown)


def _launch_times(contents: Contents, source: str, rank: int) -> Iterator[Diagnostic]:
    """Yield a warning where actions of a device were timed on the host, which only launches them."""
    device = str(contents.header.get("device") or "cpu")
    actions = int((contents.spans["lane"] == LANE_CODES[COMPUTE]).sum())
    if actions and not device.startswith("cpu") and not len(contents.device_anchors):
        text = (
            f"actions on {device} were timed on the host: they show when work was launched, not when it ran"
        )
        yield Diagnostic("warning", text, source, rank, count=actions)


def device_notes(recordings: Iterable[Contents]) -> Iterator[Diagnostic]:
    """Yield how well the times of devices are known on their hosts' clocks: one line for all ranks."""
    timed = [contents for contents in recordings if len(contents.device_anchors) > 1]
    if not timed:
        return
    errors_us = np.concatenate([contents.device_anchors["error_ns"][1:] for contents in timed]) / 1e3
    models = sorted({str(contents.header.get("device_model") or "a device") for contents in timed})
    text = (
        f"actions were timed on {', '.join(models)} and brought to the host's clock with an error of at most "
        f"{errors_us.max():.1f} us, {np.median(errors_us):.1f} us in the median"
    )
    yield Diagnostic("info", text, count=len(timed))


def run_notes(run_count: int) -> Iterator[Diagnostic]:
    """Yield what is wrong between files that are each in order: several runs."""
    if run_count > 1:
        yield Diagnostic("warning", "the recordings carry different run ids: they may not belong together",
                         count=run_count)  # fmt: skip
