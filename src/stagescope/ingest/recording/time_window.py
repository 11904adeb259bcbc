"""Records at times at which the process was not recording: damage that no checksum shows, because it came before one.

The anchors of the clock are written from the first spans to the end, about every ten seconds, so they state when the
process was recording.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from stagescope.ingest.plausible_times import LARGEST_PART, MAX_NS, Interval, Moments, plausible_interval
from stagescope.model.diagnostics import Diagnostic
from stagescope.record.format import NONE

if TYPE_CHECKING:
    import numpy.typing as npt

    from stagescope.ingest.recording.columns import Columns
    from stagescope.ingest.recording.frames import Contents

EARLY_NS = 60 * 10**9
"""Device clocks are converted with errors far below this."""

DROPPED = "are outside of the time of the recording, and were dropped"

LATE_NS = 60 * 10**9
LATE_WITHOUT_END_NS = 3600 * 10**9
"""A process that was killed may have been stuck before, and not have written an anchor for long."""


WAIT_TIMES = ("wait_start_ns", "wait_end_ns")


def within_recording(contents: Contents, source: str, rank: int) -> tuple[Contents, list[Diagnostic]]:
    """Return the content without what lies outside of the time of the recording, and errors that count it.

    A wait outside of it becomes unknown, and the span is kept.
    """
    anchors = _consistent(contents.anchors[_are_sane(contents.anchors, ("monotonic_ns", "realtime_ns"))])
    interval = _interval(contents, anchors)
    own = anchors[interval.contains(anchors["monotonic_ns"])]
    window = _window(contents, own["monotonic_ns"], interval)
    outside, unawaited = _lost(contents, window)
    if outside > max(1, LARGEST_PART * contents.span_count):  # then the anchors are wrong
        window = interval
        outside, unawaited = _lost(contents, window)
    tables = {
        "anchors": own if len(own) else anchors,  # without any, the wall clock would be unknown
        "device_anchors": _within(contents.device_anchors, window, "monotonic_ns", ("device_ns", "error_ns")),
        "raw_anchors": _within(contents.raw_anchors, window, "monotonic_ns", ("raw_ns",)),
        "counters": _within(contents.counters, window, "time_ns"),
    }
    lost = {
        "spans": outside,
        "waits": unawaited,
        "readings of clocks and counters": sum(
            len(getattr(contents, name)) - len(table) for name, table in tables.items()
        ),
    }
    if not any(lost.values()):
        return contents, []
    kept = contents.with_changed_spans(partial(_within_window, window), contents.span_count - outside)
    notes = [
        Diagnostic("error", f"{what} {DROPPED}", source, rank, count=count, code="timestamps.implausible")
        for what, count in lost.items()
        if count
    ]
    return replace(kept, **tables), notes  # type: ignore[arg-type]  # arrays of those fields


def _consistent(anchors: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Return the anchors without those at which the wall clock was on another day than at most others."""
    offsets_ns = anchors["realtime_ns"] - anchors["monotonic_ns"]
    consistent: npt.NDArray[np.void] = anchors[plausible_interval(offsets_ns).contains(offsets_ns)]
    return consistent


def _interval(contents: Contents, anchors: npt.NDArray[np.void]) -> Interval:
    """Return the interval that most of the content of a recording is in."""
    moments = Moments()
    for spans in contents.blocks():
        moments.add(spans["start_ns"])
        moments.add(spans["end_ns"])
    for others, name in (
        (anchors, "monotonic_ns"), (contents.device_anchors, "monotonic_ns"),
        (contents.raw_anchors, "monotonic_ns"), (contents.counters, "time_ns"),
    ):  # fmt: skip
        moments.add(others[name])
    return moments.plausible_interval()


def _lost(contents: Contents, window: Interval) -> tuple[int, int]:
    """Return how many spans are outside of a window, and how many of the others have such a wait."""
    outside = unawaited = 0
    for spans in contents.blocks():
        is_inside = _are_inside(window, spans)
        outside += len(spans) - int(is_inside.sum())
        unawaited += int((is_inside & ~_are_awaited(window, spans)).sum())
    return outside, unawaited


def _within_window(window: Interval, spans: Columns) -> Columns:
    """Return the spans in a window, without waits outside of it."""
    is_awaited = _are_awaited(window, spans)
    awaited = {name: np.where(is_awaited, spans[name], NONE) for name in WAIT_TIMES}
    return replace(spans, arrays={**spans.arrays, **awaited}).where(_are_inside(window, spans))


def _are_inside(window: Interval, spans: Columns) -> npt.NDArray[np.bool_]:
    return window.contains(spans["start_ns"]) & window.contains(spans["end_ns"])


def _are_awaited(window: Interval, spans: Columns) -> npt.NDArray[np.bool_]:
    """Return whether the wait of each span is plausible, or there is none."""
    # A send may be waited for after its span, and after the last span that was stored so far.
    waits = Interval(window.first_ns - EARLY_NS, window.last_ns + LATE_NS)
    is_awaited = np.ones(len(spans), np.bool_)
    for name in WAIT_TIMES:
        is_awaited &= waits.contains(spans[name]) | (spans[name] == NONE)
    return is_awaited


def _window(contents: Contents, anchors_ns: npt.NDArray[np.int64], interval: Interval) -> Interval:
    """Return when the process was recording: as its anchors state it, or else as most of its records do."""
    if not len(anchors_ns) or contents.gaps or contents.lost_frames:  # later anchors may have been lost
        return interval
    first_ns, last_ns = int(anchors_ns.min()), int(anchors_ns.max())
    began_ns = contents.header.get("process_start_ns")
    if began_ns is None or began_ns > first_ns:
        began_ns = interval.first_ns
    late_ns = LATE_NS if contents.end else LATE_WITHOUT_END_NS
    return Interval(max(began_ns - EARLY_NS, interval.first_ns), min(last_ns + late_ns, interval.last_ns))


def _within(
    table: npt.NDArray[np.void], window: Interval, time: str, others: tuple[str, ...] = ()
) -> npt.NDArray[np.void]:
    """Return the rows with a time in the window, give or take what a device's clock is off by."""
    near = Interval(window.first_ns - EARLY_NS, window.last_ns + LATE_NS)
    kept: npt.NDArray[np.void] = table[near.contains(table[time]) & _are_sane(table, others)]
    return kept


def _are_sane(table: npt.NDArray[np.void], names: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """Return whether numbers are small enough to be computed with, and the width of a reading is not negative."""
    sane = np.ones(len(table), np.bool_)
    for name in names:
        sane &= (table[name] > -MAX_NS) & (table[name] < MAX_NS)
    if "width_ns" in (table.dtype.names or ()):
        sane &= (table["width_ns"] >= 0) & (table["width_ns"] < MAX_NS)
    return sane
