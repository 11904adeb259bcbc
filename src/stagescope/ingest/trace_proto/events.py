"""Collect the events of packets: slices, counters, GPU work and the tracks they are on."""

from __future__ import annotations

from collections import Counter as Counts
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.ingest.protobuf_fields import LENGTH, as_double, as_signed, message_fields
from stagescope.ingest.trace_proto.annotations import argument, characters_of
from stagescope.ingest.trace_proto.pairing import Slice, SliceEvent
from stagescope.ingest.trace_proto.schema import (
    BOOTTIME,
    CLEARED_FLAG,
    COUNTER,
    NEEDS_STATE_FLAG,
    REALTIME,
    SLICE_BEGIN,
    SLICE_END,
    Event,
    GpuStage,
    Interned,
    Legacy,
    Packet,
    Thread,
    numbers_of,
    parts_of,
    text_of,
)
from stagescope.ingest.trace_proto.sequences import ClockTable, Sequence
from stagescope.ingest.trace_proto.tracks import Track, track_of
from stagescope.vocabulary.limits import require

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stagescope.ingest.protobuf_fields import Buffer
    from stagescope.ingest.trace_proto.packets import PacketFields

BEGIN, END, COMPLETE = ord("B"), ord("E"), ord("X")
"""Phases of legacy events."""
MOST_CATEGORIES, MOST_CATEGORY_LENGTH = 16, 256
LARGEST_THREAD = 2**64
"""Tracks of legacy events get numbers above all that a file can state."""
PART = 2**80
"""Added to the numbers of tracks of each further trace in the same file: above all others."""


class GpuWork(NamedTuple):
    """One render stage of a GPU, such as a kernel: `queue` and `stage` are interned names, `args` the extra data."""

    event_id: int
    gpu: int
    queue: str
    stage: str
    name: str
    start_ns: int
    end_ns: int
    args: dict[str, str]

    def shifted(self, offset_ns: int) -> GpuWork:
        """Return the work at other times."""
        return self._replace(start_ns=self.start_ns + offset_ns, end_ns=self.end_ns + offset_ns)


class Counter(NamedTuple):
    """One value of a counter."""

    track: int
    time_ns: int
    value: float


@dataclass
class _Fields:
    """The fields of a TrackEvent, decoded as far as needed."""

    type: int = 0
    track: int | None = None
    name: str | None = None
    categories: list[str] = field(default_factory=list)
    args: dict[str, Any] = field(default_factory=dict)
    flows: list[int] = field(default_factory=list)
    ending_flows: list[int] = field(default_factory=list)
    value: float | None = None
    legacy: dict[int, int] | None = None


class EventReader:
    """Collects the events of one trace, packet by packet.

    Files of several traces may be one behind the other, with the same numbers of tracks. `begins` returns whether a
    track is the first one of such a trace.
    """

    def __init__(self, path: Path, begins: Callable[[Track], bool]) -> None:
        self.path = path
        self._begins = begins
        self._part = 0
        self.tracks: dict[int, Track] = {}
        self.events: list[SliceEvent] = []
        self.gpu_work: list[GpuWork] = []
        self.counters: list[Counter] = []
        self.stateless = 0
        self.undated = 0
        self._threads: dict[tuple[int | None, int | None], int] = {}
        self._sequences: defaultdict[int, Sequence] = defaultdict(Sequence)
        self._clocks = ClockTable()
        self._used_clocks: Counts[int] = Counts()
        self._characters = 0

    def common_clock(self) -> tuple[int, bool]:
        """Return what to add to the times of all events, in nanoseconds, and whether they are wall times then."""
        used = next((clock for clock, _ in self._used_clocks.most_common(1)), BOOTTIME)
        offset_ns = self._clocks.offsets.get(used)
        return (0, used == REALTIME) if offset_ns is None else (offset_ns, True)

    def add(self, packet: PacketFields) -> None:
        """Add the content of a packet. Raises DamagedFieldError; what came before the damage has been added."""
        numbers = {number: value for number, _, value in packet if isinstance(value, int)}
        parts = {number: value for number, _, value in packet if not isinstance(value, int)}
        sequence = self._sequences[numbers.get(Packet.SEQUENCE_ID, 0)]
        flags = numbers.get(Packet.SEQUENCE_FLAGS, 0)
        if numbers.get(Packet.PREVIOUS_DROPPED):
            sequence.has_state = False
        if flags & CLEARED_FLAG or numbers.get(Packet.STATE_CLEARED):
            sequence.clear()
        if Packet.DEFAULTS in parts:
            sequence.set_defaults(parts[Packet.DEFAULTS])
        if Packet.INTERNED_DATA in parts:
            sequence.intern(parts[Packet.INTERNED_DATA])
        if Packet.CLOCK_SNAPSHOT in parts:
            self._clocks.add_snapshot(parts[Packet.CLOCK_SNAPSHOT], sequence)
        if Packet.TRACK_DESCRIPTOR in parts:
            self._add_track(track_of(parts[Packet.TRACK_DESCRIPTOR]))
        if Packet.THREAD_DESCRIPTOR in parts:
            sequence.default_track = self._legacy_track(parts[Packet.THREAD_DESCRIPTOR])
        time_ns = self._time_ns(numbers, sequence)
        if Packet.TRACK_EVENT not in parts and Packet.GPU_STAGE not in parts:
            return
        if flags & NEEDS_STATE_FLAG and not sequence.has_state:
            self.stateless += 1
        elif time_ns is None:
            self.undated += 1
        elif Packet.TRACK_EVENT in parts:
            self._add_event(parts[Packet.TRACK_EVENT], time_ns, sequence)
        else:
            self.gpu_work.append(_gpu_work(parts[Packet.GPU_STAGE], time_ns, sequence))

    def _add_track(self, stated: Track) -> None:
        if self.events and self._begins(stated):
            self._part += PART
        track = stated._replace(uuid=self._placed(stated.uuid), parent=self._placed(stated.parent))
        self.tracks[track.uuid] = track
        self._threads.setdefault((track.process, track.thread), track.uuid)

    def _placed(self, uuid: int) -> int:
        """Return the number of a track among all traces of the file; 0, which is none, and legacy ones stay."""
        return uuid + self._part if 0 < uuid < LARGEST_THREAD else uuid

    def _time_ns(self, numbers: dict[int, int], sequence: Sequence) -> int | None:
        if Packet.TIMESTAMP not in numbers:
            return None
        clock = numbers.get(Packet.TIMESTAMP_CLOCK) or sequence.default_clock or BOOTTIME
        found = self._clocks.resolve(numbers[Packet.TIMESTAMP], clock, sequence)
        if found is None:
            return None
        self._used_clocks[found[1]] += 1
        return found[0]

    def _legacy_track(self, data: Buffer) -> int:
        """Return the track of the events of a sequence whose thread is described as in old versions."""
        ids = numbers_of(data)
        process, thread = (as_signed(ids.get(number, 0)) for number in (Thread.PID, Thread.TID))
        name = text_of(parts_of(data).get(Thread.NAME))
        uuid = self._threads.setdefault((process, thread), LARGEST_THREAD + len(self.tracks))
        self.tracks.setdefault(uuid, Track(uuid, name, process=process, thread=thread))
        return uuid

    def _add_event(self, data: Buffer, time_ns: int, sequence: Sequence) -> None:
        event = _event_fields(data, sequence)
        track = self._placed(sequence.default_track if event.track is None else event.track)
        phase = event.legacy.get(Legacy.PHASE, 0) if event.legacy is not None else 0
        if event.type == COUNTER:
            if event.value is not None:
                self.counters.append(Counter(track, time_ns, event.value))
            return
        if event.type == SLICE_END or phase == END:
            self.events.append(SliceEvent(time_ns, track, None))
        elif event.type == SLICE_BEGIN or phase in (BEGIN, COMPLETE):
            if event.name is None:
                self.stateless += 1  # its end would close another slice, so an unnamed slice stays
            began = Slice(
                track, event.name or "", _joined(event.categories), time_ns, time_ns,
                event.args, tuple(event.flows), tuple(event.ending_flows),
            )  # fmt: skip
            self.events.append(SliceEvent(time_ns, track, began))
            # An interned text is stored once here, but once per slice in a table.
            self._characters += len(began.name) + characters_of(event.args)
            require("whole", self._characters, self.path)
            if phase == COMPLETE and event.legacy is not None:
                duration_ns = 1000 * as_signed(event.legacy.get(Legacy.DURATION_US, 0))
                self.events.append(SliceEvent(time_ns + duration_ns, track, None))
        if len(self.events) % 65_536 == 0:
            require("spans", len(self.events) // 2, self.path)


def _joined(categories: list[str]) -> str:
    """Return categories as one text; interned ones may be of any size, and each event may name all of them."""
    return ",".join(one[:MOST_CATEGORY_LENGTH] for one in categories[:MOST_CATEGORIES])


def _event_fields(data: Buffer, sequence: Sequence) -> _Fields:
    """Return the fields of a TrackEvent. Raises DamagedFieldError."""
    found = _Fields()
    for number, _, value in message_fields(data):
        if isinstance(value, int):
            _add_number(found, number, value, sequence)
        elif number == Event.ANNOTATIONS:
            name, argument_value = argument(value, sequence)
            found.args[name] = argument_value
        elif number == Event.NAME:
            found.name = text_of(value)
        elif number == Event.CATEGORIES:
            found.categories.append(text_of(value))
        elif number == Event.LEGACY:
            found.legacy = numbers_of(value)
    if found.legacy is not None and found.name is None:
        found.name = sequence.texts.get((Interned.EVENT_NAMES, found.legacy.get(Legacy.NAME_IID, 0)))
    return found


def _add_number(found: _Fields, number: int, value: int, sequence: Sequence) -> None:
    """Add a field of a TrackEvent that is a number."""
    if number == Event.TYPE:
        found.type = value
    elif number == Event.NAME_IID:
        found.name = sequence.texts.get((Interned.EVENT_NAMES, value))
    elif number == Event.TRACK_UUID:
        found.track = value
    elif number == Event.CATEGORY_IIDS:
        found.categories.append(sequence.texts.get((Interned.CATEGORIES, value), ""))
    elif number == Event.FLOW_IDS:
        found.flows.append(value)
    elif number == Event.ENDING_FLOW_IDS:
        found.ending_flows.append(value)
    elif number == Event.COUNTER_VALUE:
        found.value = float(as_signed(value))
    elif number == Event.DOUBLE_COUNTER_VALUE:
        found.value = as_double(value)


def _gpu_work(data: Buffer, time_ns: int, sequence: Sequence) -> GpuWork:
    """Return the work that a GpuRenderStageEvent describes. Raises DamagedFieldError."""
    numbers, args, name = numbers_of(data), {}, ""
    for number, kind, value in message_fields(data):
        if kind == LENGTH and number == GpuStage.EXTRA and not isinstance(value, int):
            extra = parts_of(value)
            args[text_of(extra.get(GpuStage.EXTRA_NAME))] = text_of(extra.get(GpuStage.EXTRA_VALUE))
        elif kind == LENGTH and number == GpuStage.NAME:
            name = text_of(value)
    queue, stage = (
        sequence.texts.get((Interned.GPU_SPECIFICATIONS, numbers.get(number, 0)), "")
        for number in (GpuStage.QUEUE_IID, GpuStage.STAGE_IID)
    )
    name = name or sequence.texts.get((Interned.EVENT_NAMES, numbers.get(GpuStage.NAME_IID, 0)), "") or stage
    gpu, end_ns = as_signed(numbers.get(GpuStage.GPU_ID, 0)), time_ns + numbers.get(GpuStage.DURATION, 0)
    return GpuWork(numbers.get(GpuStage.EVENT_ID, 0), gpu, queue, stage, name, time_ns, end_ns, args)
