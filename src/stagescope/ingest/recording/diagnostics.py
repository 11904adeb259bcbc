"""Diagnostics of recordings: damage, missing spans, and how the times were taken."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from stagescope.ingest.recording.coverage import MAX_NAMED, coverage_of
from stagescope.ingest.recording.facts import count_nameless, numbers_of
from stagescope.ingest.recording.readings import count_of_readings, readings_of
from stagescope.model.diagnostics import Diagnostic
from stagescope.record import format as fmt
from stagescope.vocabulary.durations import duration_text

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from stagescope.ingest.recording.facts import Facts
    from stagescope.ingest.recording.frames import Contents

    Ints = npt.NDArray[np.int64]

OTHER_RECORDS = {
    "counters": "values of counters",
    "clock": "readings of the wall clock",
    "raw_clock": "readings of the raw clock",
    "device_clock": "readings of the device's clock",
}
STORED_MISSING = "spans that the process had stored are missing"


def damage_of(contents: Contents, facts: Facts, source: str, rank: int) -> Iterator[Diagnostic]:
    """Yield all faults of one process's recording: damage is an error, an unclean end a warning."""
    yield from gaps_of(contents, source, rank)
    yield from _missing(contents, facts, source, rank)
    yield from _wrong_facts(contents, source, rank)
    yield from _unknown(contents, facts, source, rank)
    yield from _launch_times(contents, facts, source, rank)
    yield from coverage_of(contents.header, source, rank)


def gaps_of(contents: Contents, source: str, rank: int | None) -> Iterator[Diagnostic]:
    """Yield the byte ranges of one file without a valid frame, and the count of missing frames."""
    for gap in contents.gaps:
        where = f"byte {gap.offset}"
        if gap.truncated:
            text = f"the last frame is truncated: its {gap.size_bytes} bytes are not used"
            yield Diagnostic("warning", text, source, rank, where, code="frames.truncated")
        else:
            text = f"{gap.size_bytes} damaged bytes contain no valid frame and were skipped"
            yield Diagnostic("error", text, source, rank, where, code="frames.damaged")
    if contents.lost_frames:
        text = "frames are missing, with their spans"
        yield Diagnostic("error", text, source, rank, count=contents.lost_frames, code="frames.missing")
    if contents.repeated_frames:
        text = "frames are in the file several times, and were used once"
        yield Diagnostic(
            "warning", text, source, rank, count=contents.repeated_frames, code="frames.repeated"
        )
    if contents.contradictory_frames:
        text = "frames have the number of another frame with other content, and were skipped"
        count = contents.contradictory_frames
        yield Diagnostic("error", text, source, rank, count=count, code="frames.contradictory")
    yield from records_of(contents.missing_records, source, rank)


def records_of(missing: Counter[str], source: str, rank: int | None) -> Iterator[Diagnostic]:
    """Yield the records of counters and clocks that are missing from one file, or that it has too many of."""
    for name, text in OTHER_RECORDS.items():
        count = missing[name]
        if count > 0:
            yield Diagnostic(
                "error",
                f"{text} that the process had stored are missing",
                source,
                rank,
                count=count,
                code="records.missing",
            )
        elif count < 0:
            surplus = f"there are more {text} than the process had stored: some may belong elsewhere"
            yield Diagnostic("error", surplus, source, rank, count=-count, code="records.surplus")


def _missing(contents: Contents, facts: Facts, source: str, rank: int) -> Iterator[Diagnostic]:
    if contents.dropped_spans:
        text = "spans were dropped by the recorder: its buffer was full or the file could not be written"
        if len(contents.device_anchors):
            text += ", or the device had not finished the action or did not return its times"
        yield Diagnostic("error", text, source, rank, count=contents.dropped_spans, code="spans.dropped")
    if contents.dropped_counters:
        text = "values of counters were dropped by the recorder: its queue was full or the file could not be written"
        yield Diagnostic(
            "warning", text, source, rank, count=contents.dropped_counters, code="counters.dropped"
        )
    if contents.end is None:
        if (count := contents.missing_records["spans"]) > 0:
            yield Diagnostic("error", STORED_MISSING, source, rank, count=count, code="spans.missing")
        text = "no end frame: the process was killed or is still running; its last half second may be missing"
        yield Diagnostic(
            "warning", text, source, rank, _last_record(contents, facts), code="recording.no_end"
        )
    elif (lost := contents.end.get("spans", 0) - contents.stored_spans) > 0:
        yield Diagnostic("error", STORED_MISSING, source, rank, count=lost, code="spans.missing")
    elif lost < 0:
        text = (
            "there are more spans than the process had stored: some may be there twice, or belong elsewhere"
        )
        yield Diagnostic("error", text, source, rank, count=-lost, code="spans.surplus")


def _last_record(contents: Contents, facts: Facts) -> str | None:
    """Return up to where a process recorded: its last span, with the step and the time since the start."""
    if facts.extent_ns is None or contents.unchosen_spans:
        return None
    first_ns, last_ns = facts.extent_ns
    since_start = duration_text(max(0, last_ns - int(contents.header.get("process_start_ns", first_ns))))
    step = facts.last_step
    return f"last span{f' in step {step}' if step >= 0 else ''}, {since_start} after the start"


def _wrong_facts(contents: Contents, source: str, rank: int) -> Iterator[Diagnostic]:
    if contents.wrong_facts:
        shown = ", ".join(contents.wrong_facts[:MAX_NAMED]) + (
            " and more" * (len(contents.wrong_facts) > MAX_NAMED)
        )
        text = f"the header has impossible values, which were ignored: {shown}"
        yield Diagnostic("error", text, source, rank, count=len(contents.wrong_facts), code="header.invalid")


def _unknown(contents: Contents, facts: Facts, source: str, rank: int) -> Iterator[Diagnostic]:
    for frame_type, count in contents.unknown_frames.items():
        text = (
            f"{fmt.FRAME_NAMES[frame_type - 1]} frames have invalid content and were skipped"
            if 1 <= frame_type <= len(fmt.FRAME_NAMES)
            else f"frames of type {frame_type} are unknown to this version of stagescope and were skipped"
        )
        yield Diagnostic("error", text, source, rank, count=count, code="frames.unknown")
    nameless = facts.nameless + count_nameless(contents.counters["name"], numbers_of(contents.names))
    if nameless:
        text = "spans or counters have names that are missing in the recording; they are shown by number"
        yield Diagnostic("error", text, source, rank, count=nameless, code="names.missing")
    if facts.unknown_kinds:
        text = "spans of a kind unknown to this version of stagescope are shown as other"
        yield Diagnostic("warning", text, source, rank, count=facts.unknown_kinds, code="spans.unknown_kind")


def _launch_times(contents: Contents, facts: Facts, source: str, rank: int) -> Iterator[Diagnostic]:
    """Yield a warning where device actions have host times, which are only the times of their launch."""
    device = str(contents.header.get("device") or "cpu")
    if facts.on_compute and not device.startswith("cpu") and not len(contents.device_anchors):
        text = f"actions on {device} were timed on the host: the times are those of the launch, not of the execution"
        yield Diagnostic("warning", text, source, rank, count=facts.on_compute, code="device.host_times")


VALUES_TOGETHER = 1_000_000
"""So many values are collected before the distinct ones are counted."""


def device_notes(recordings: Iterable[Contents]) -> Iterator[Diagnostic]:
    """Yield the precision of device times on the clocks of their hosts: one line for all ranks."""
    timed = [contents for contents in recordings if count_of_readings(contents, "device_anchors") > 1]
    if not timed:
        return
    errors_ns, counts = _distinct(readings_of(each, "device_anchors")["error_ns"][1:] for each in timed)
    largest_us, median_us = errors_ns[-1] / 1e3, _median(errors_ns / 1e3, counts)
    models = sorted({str(contents.header.get("device_model") or "a device") for contents in timed})
    text = (
        f"actions were timed on {', '.join(models)} and converted to the host's clock with an error of at most "
        f"{largest_us:.1f} us (median {median_us:.1f} us)"
    )
    yield Diagnostic("info", text, count=len(timed), code="device.clock_error")


def _distinct(arrays: Iterable[Ints]) -> tuple[Ints, Ints]:
    """Return the distinct values of some arrays, sorted, and how often each occurs; few are in memory at once."""
    values, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    waiting: list[Ints] = []
    for own in chain(arrays, [None]):
        if own is not None:
            waiting.append(own)
        if waiting and (own is None or sum(map(len, waiting)) > VALUES_TOGETHER):
            every = np.concatenate([values, *waiting])
            weights = np.concatenate([counts, np.ones(len(every) - len(values), np.int64)])
            values, place = np.unique(every, return_inverse=True)
            counts = np.bincount(place, weights).astype(np.int64)
            waiting = []
    return values, counts


def _median(values: npt.NDArray[np.float64], counts: Ints) -> float:
    """Return the median of sorted values that occur so often."""
    last = counts.cumsum()
    middle = [(int(last[-1]) - 1) // 2, int(last[-1]) // 2]
    return float(values[np.searchsorted(last, middle, side="right")].mean())


def run_notes(run_count: int) -> Iterator[Diagnostic]:
    """Yield a warning if the files belong to several runs."""
    if run_count > 1:
        text = "the recordings have different run ids: they may not belong together"
        yield Diagnostic("warning", text, count=run_count, code="runs.several")
