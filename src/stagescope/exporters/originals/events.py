"""All events of one original trace, on the aligned clock, in tracks that every viewer can draw.

Slices of one track must nest: Perfetto drops a slice that begins inside another one and ends after it. Such slices are
in traces of torch by a few nanoseconds of rounding, which are trimmed, and where a stream or thread really runs two
things at once, which get a further lane of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from stagescope.ingest.trace_json.trace_events import EventStream, base_time_ns

if TYPE_CHECKING:
    from stagescope.exporters.originals.files import Original

ROUNDING_NS = 1_000
"""Overlaps up to here are trimmed: timestamps of torch before 2.2 have this resolution."""
MOST_US = 4e15
NO_TEXT = msgspec.Raw(b"{}")
LANES = 64
"""More lanes of one thread are not drawn; their slices are counted."""


class Event(msgspec.Struct, gc=False):
    """The fields of one event; any may be absent."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float | None = None
    dur: float | None = None
    pid: int | str = 0
    tid: int | str = 0
    id: Any = None
    bp: str = ""
    args: msgspec.Raw = NO_TEXT


class Track(NamedTuple):
    """One thread or stream of the original, or a further lane of it."""

    pid: int | str
    tid: int | str
    lane: int


class Slice(NamedTuple):
    """One interval; `track` is a number of Track."""

    track: int
    start_ns: int
    end_ns: int
    name: str
    category: str
    args: bytes


class FlowEnd(NamedTuple):
    """One end of an arrow, at a moment of a track; `flow` is its number in this file."""

    flow: int
    is_start: bool
    track: int
    at_ns: int
    name: str
    category: str


class Sample(NamedTuple):
    """The values of a counter of one process at one moment, as the JSON that the original has."""

    pid: int | str
    at_ns: int
    name: str
    args: bytes


@dataclass
class OriginalEvents:
    """The events of one file; `names` has the names of processes (pid, None) and threads (pid, tid)."""

    original: Original
    tracks: list[Track] = field(default_factory=list)
    slices: list[Slice] = field(default_factory=list)
    flows: list[FlowEnd] = field(default_factory=list)
    counters: list[Sample] = field(default_factory=list)
    names: dict[tuple[Any, Any], str] = field(default_factory=dict)
    trimmed: int = 0
    left_out: int = 0


def read_events(original: Original) -> OriginalEvents:
    """Return the events of an original trace; memory is that of one rank's slices, not of its file.

    Instant events and events without a time are left out and counted, except for metadata.
    """
    stream: EventStream[Event] = EventStream(original.path, msgspec.json.Decoder(list[Event]))
    found, kept = OriginalEvents(original), list[Event]()
    texts: dict[str, str] = {}
    for piece in stream.pieces():
        for event in piece:
            if event.ph == "M":
                _note_name(found, event)
            elif event.ph in DRAWN and event.ts is not None and abs(event.ts) + abs(event.dur or 0) < MOST_US:
                # Without a copy, the arguments of one event keep the whole piece of the file that they are in.
                event.args = event.args.copy()
                event.name = texts.setdefault(event.name, event.name)
                event.cat = texts.setdefault(event.cat, event.cat)
                kept.append(event)
            else:
                found.left_out += 1
    _place(found, kept, base_time_ns(stream.facts) or 0)
    return found


RELEASED = Event()
DRAWN = frozenset("XsftC")


class Moment(msgspec.Struct, gc=False):
    """The time of one event."""

    ph: str = ""
    ts: float | None = None


def first_event_ns(original: Original) -> int:
    """Return the time of the first event that is drawn, on the aligned clock; that of the first span without any."""
    stream: EventStream[Moment] = EventStream(original.path, msgspec.json.Decoder(list[Moment]))
    first_us = min(
        (
            event.ts
            for piece in stream.pieces()
            for event in piece
            if event.ts is not None and event.ph in DRAWN and abs(event.ts) < MOST_US
        ),
        default=None,
    )
    if first_us is None:
        return original.first_ns
    raw_ns = (base_time_ns(stream.facts) or 0) + round(first_us * 1000)
    return int(original.clock.at(np.array([raw_ns]))[0])


def _note_name(found: OriginalEvents, event: Event) -> None:
    if event.name in {"process_name", "thread_name"}:
        try:
            name = msgspec.json.decode(event.args).get("name")
        except (msgspec.DecodeError, AttributeError):
            return
        place = (event.pid, None if event.name == "process_name" else event.tid)
        found.names[place] = str(name)


def _place(found: OriginalEvents, events: list[Event], base_ns: int) -> None:
    """Put the events into `found`, at aligned times. Events are released one by one."""
    clock = found.original.clock
    start_us = np.array([event.ts for event in events], float)
    dur_us = np.array([event.dur or 0.0 for event in events], float)
    starts = base_ns + np.rint(start_us * 1000).astype(np.int64)
    ends = starts + np.rint(np.maximum(dur_us, 0) * 1000).astype(np.int64)
    start_ns, end_ns = (clock.at(moments).tolist() if len(events) else [] for moments in (starts, ends))
    order = sorted(range(len(events)), key=lambda each: (start_ns[each], -end_ns[each]))
    numbers: dict[Track, int] = {}
    lanes: dict[tuple[Any, Any], list[list[int]]] = {}
    flow_ids: dict[tuple[str, Any], int] = {}

    def track_of(event: Event, lane: int) -> int:
        return numbers.setdefault(Track(event.pid, event.tid, lane), len(numbers))

    for each in order:
        event, since_ns, until_ns = events[each], start_ns[each], end_ns[each]
        events[each] = RELEASED
        if event.ph == "X":
            fitted = _fit(lanes.setdefault((event.pid, event.tid), []), since_ns, until_ns)
            if fitted is None:
                found.left_out += 1
                continue
            lane, end = fitted
            found.trimmed += end < until_ns
            track = track_of(event, lane)
            found.slices.append(Slice(track, since_ns, end, event.name, event.cat, bytes(event.args)))
        elif event.ph == "C":
            found.counters.append(Sample(event.pid, since_ns, event.name, bytes(event.args)))
        else:
            flow = flow_ids.setdefault((event.cat, str(event.id)), len(flow_ids))
            end_of = FlowEnd(flow, event.ph == "s", track_of(event, 0), since_ns, event.name, event.cat)
            found.flows.append(end_of)
    found.tracks = list(numbers)


def _fit(lanes: list[list[int]], start_ns: int, end_ns: int) -> tuple[int, int] | None:
    """Return the first lane in which a slice nests, and its end there; each lane is a stack of ends that are open."""
    for lane, ends in enumerate(lanes):
        while ends and ends[-1] <= start_ns:
            ends.pop()
        over_ns = end_ns - ends[-1] if ends else 0
        if over_ns <= ROUNDING_NS:
            end = min(end_ns, ends[-1]) if ends else end_ns
            ends.append(end)
            return lane, end
    if len(lanes) >= LANES:
        return None
    lanes.append([end_ns])
    return len(lanes) - 1, end_ns
