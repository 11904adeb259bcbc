"""One Perfetto trace of all ranks with every slice of their original traces, on the aligned clock.

Source: protos/perfetto/trace in github.com/google/perfetto. The file begins with the run as `--to pftrace` writes it;
each original follows as a packet sequence of its own, with absolute nanoseconds. Arguments of slices are debug
annotations, whose names are interned where they are first used.
"""

from __future__ import annotations

import struct
from itertools import islice
from typing import IO, TYPE_CHECKING

import msgspec

from stagescope.exporters.originals.annotations import annotation_fields
from stagescope.exporters.originals.merged import (
    Totals,
    each_original,
    merging_writer,
    prepare,
    process_name,
    track_name,
)
from stagescope.exporters.originals.slice_order import slice_order
from stagescope.exporters.protobuf import bytes_field, number_field, varint
from stagescope.exporters.writer import Written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from stagescope.exporters.originals.events import OriginalEvents
    from stagescope.exporters.originals.files import Progress
    from stagescope.exporters.writer import Writer
    from stagescope.model import Timeline

TRACE_PACKET = 1
# Fields of TracePacket; BOOTTIME is the clock that Perfetto sorts by.
TIMESTAMP, SEQUENCE_ID, TRACK_EVENT, INTERNED_DATA, SEQUENCE_FLAGS = 8, 10, 11, 12, 13
TIMESTAMP_CLOCK, TRACK_DESCRIPTOR = 58, 60
BOOTTIME = 6
STATE_CLEARED, NEEDS_STATE = 1, 2
# Fields of TrackEvent, TrackDescriptor and InternedData.
CATEGORY_IIDS, EVENT_TYPE, NAME_IID, TRACK_UUID, DOUBLE_VALUE, FLOW_IDS, ENDING_FLOW_IDS = (
    3,
    9,
    10,
    11,
    44,
    47,
    48,
)
SLICE_BEGIN, SLICE_END, COUNTER = 1, 2, 4
UUID, NAME, PARENT, COUNTER_DESCRIPTOR = 1, 2, 5, 8
EVENT_CATEGORIES, EVENT_NAMES, ANNOTATION_NAMES = 1, 2, 3
FIRST_SEQUENCE = 1 << 20
FIRST_UUID = 1 << 48
UUIDS_OF_RANK = 1 << 24
FLUSH_PACKETS = 4096
FIXED64 = 1


def writer(write_run: Callable[..., Written]) -> Writer:
    """Return the writer; `write_run` is that of the Perfetto export for a layout, which this folder cannot import."""

    def write(timeline: Timeline, path: Path, on_progress: Progress) -> Written:
        drawn = prepare(timeline)
        run = write_run(drawn.layout, path, is_partial=timeline.is_partial)
        totals = Totals()
        with path.open("ab") as file:
            _write_originals(file, each_original(drawn, totals, on_progress))
            size_bytes = file.tell()
        return Written(
            path,
            size_bytes,
            run.slice_count + totals.slices,
            run.flow_count + totals.flows,
            (*run.track_names, *totals.track_names),
            (*run.diagnostics, *totals.diagnostics()),
        )

    return merging_writer(
        "merged-pftrace", ".pftrace", "one Perfetto trace with every event of all originals", write
    )


def _write_originals(file: IO[bytes], originals: Iterator[OriginalEvents]) -> None:
    first_flow = 1 << 40  # above those of the run
    for place, events in enumerate(originals):
        ids = _Ids(FIRST_SEQUENCE + place, FIRST_UUID + place * UUIDS_OF_RANK, first_flow)
        packets: list[bytes] = []
        for packet in _packets(events, ids):
            packets.append(bytes_field(TRACE_PACKET, packet + ids.ending))
            if len(packets) >= FLUSH_PACKETS:
                file.write(b"".join(packets))
                packets.clear()
        file.write(b"".join(packets))
        first_flow += 1 + max((end.flow for end in events.flows), default=-1)


class _Ids:
    """Numbers of one original in the merged file: its sequence, its first track and its first arrow."""

    def __init__(self, sequence: int, first_uuid: int, first_flow: int) -> None:
        self.first_uuid, self.first_flow = first_uuid, first_flow
        self.ending = number_field(SEQUENCE_ID, sequence)


def _packets(events: OriginalEvents, ids: _Ids) -> Iterator[bytes]:
    names = _numbered(each.name for each in events.slices)
    categories = _numbered(each.category for each in events.slices)
    interned = _interned(EVENT_CATEGORIES, categories) + _interned(EVENT_NAMES, names)
    yield bytes_field(INTERNED_DATA, interned) + number_field(SEQUENCE_FLAGS, STATE_CLEARED | NEEDS_STATE)
    processes = list(
        dict.fromkeys([*(track.pid for track in events.tracks), *(s.pid for s in events.counters)])
    )
    uuid_of = {pid: ids.first_uuid + place for place, pid in enumerate(processes)}
    first_track = ids.first_uuid + len(processes)
    for pid, uuid in uuid_of.items():
        yield _descriptor(number_field(UUID, uuid) + bytes_field(NAME, process_name(events, pid)))
    for number, track in enumerate(events.tracks):
        text = bytes_field(NAME, track_name(events, number)) + number_field(PARENT, uuid_of[track.pid])
        yield _descriptor(number_field(UUID, first_track + number) + text)
    yield from _slice_packets(events, _flow_fields(events, ids), first_track, (names, categories))
    yield from _counter_packets(events, uuid_of, first_track + len(events.tracks))


def _slice_packets(
    events: OriginalEvents,
    arrows: dict[int, bytes],
    first_track: int,
    texts: tuple[dict[str, int], dict[str, int]],
) -> Iterator[bytes]:
    """Yield begins and ends of all slices; a packet with new names of arguments defines them for those after it."""
    names, categories = texts
    keys: dict[str, int] = {}
    for place in slice_order(events).tolist():
        own = events.slices[place >> 1]
        track = number_field(TRACK_UUID, first_track + own.track)
        if place & 1:
            yield _event(own.end_ns, number_field(EVENT_TYPE, SLICE_END) + track)
            continue
        known = len(keys)
        annotations = annotation_fields(own.args, lambda key: keys.setdefault(key, len(keys) + 1))
        event = number_field(EVENT_TYPE, SLICE_BEGIN) + track + number_field(NAME_IID, names[own.name])
        event += number_field(CATEGORY_IIDS, categories[own.category]) + annotations
        interned = _interned(ANNOTATION_NAMES, dict(islice(keys.items(), known, None)))
        yield _event(own.start_ns, event + arrows.get(place >> 1, b""), interned)


def _interned(field: int, texts: dict[str, int]) -> bytes:
    return b"".join(
        bytes_field(field, number_field(1, iid) + bytes_field(2, text.encode("utf-8", "replace")))
        for text, iid in texts.items()
    )


def _numbered(texts: Iterable[str]) -> dict[str, int]:
    return {text: iid for iid, text in enumerate(dict.fromkeys(texts), start=1)}


def _descriptor(content: bytes) -> bytes:
    return bytes_field(TRACK_DESCRIPTOR, content)


def _event(at_ns: int, event: bytes, interned: bytes = b"") -> bytes:
    head = number_field(TIMESTAMP, max(0, at_ns)) + number_field(TIMESTAMP_CLOCK, BOOTTIME)
    if interned:
        head += bytes_field(INTERNED_DATA, interned)
    return head + number_field(SEQUENCE_FLAGS, NEEDS_STATE) + bytes_field(TRACK_EVENT, event)


def _flow_fields(events: OriginalEvents, ids: _Ids) -> dict[int, bytes]:
    """Return the arrows of every slice that has an end of one: the innermost slice around that moment."""
    begun = {end.flow for end in events.flows if end.is_start}
    rows: dict[int, list[int]] = {}
    for row, each in enumerate(events.slices):
        rows.setdefault(each.track, []).append(row)
    found: dict[int, bytes] = {}
    for end in events.flows:
        if not end.is_start and end.flow not in begun:
            continue
        around = _around(events, rows.get(end.track, []), end.at_ns)
        if around is not None:
            field = FLOW_IDS if end.is_start else ENDING_FLOW_IDS
            number = (ids.first_flow + end.flow).to_bytes(8, "little")
            found[around] = found.get(around, b"") + varint(field << 3 | FIXED64) + number
    return found


def _around(events: OriginalEvents, rows: list[int], at_ns: int) -> int | None:
    """Return the innermost slice of a track around a moment; `rows` are its slices by start."""
    low, high = 0, len(rows)
    while low < high:
        middle = (low + high) // 2
        if events.slices[rows[middle]].start_ns <= at_ns:
            low = middle + 1
        else:
            high = middle
    for place in range(low - 1, max(-1, low - 65), -1):
        if events.slices[rows[place]].end_ns >= at_ns:
            return rows[place]
    return None


def _counter_packets(
    events: OriginalEvents, uuid_of: dict[int | str, int], first_uuid: int
) -> Iterator[bytes]:
    """Yield the counters: one track for every name and series of a process."""
    known: dict[tuple[object, str], int] = {}
    for sample in events.counters:
        try:
            values = msgspec.json.decode(sample.args)
        except msgspec.DecodeError:
            continue
        for series, value in values.items() if isinstance(values, dict) else ():
            if type(value) not in {int, float}:
                continue
            key = sample.pid, f"{sample.name} {series}"
            if key not in known:
                known[key] = first_uuid + len(known)
                text = bytes_field(NAME, key[1]) + number_field(PARENT, uuid_of[sample.pid])
                yield _descriptor(
                    number_field(UUID, known[key]) + text + bytes_field(COUNTER_DESCRIPTOR, b"")
                )
            number = varint(DOUBLE_VALUE << 3 | FIXED64) + _double(float(value))
            yield _event(
                sample.at_ns,
                number_field(EVENT_TYPE, COUNTER) + number_field(TRACK_UUID, known[key]) + number,
            )


def _double(value: float) -> bytes:

    return struct.pack("<d", value)
