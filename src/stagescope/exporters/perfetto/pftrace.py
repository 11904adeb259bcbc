"""Perfetto's protobuf trace: small, fast to load, and exact to the nanosecond at any epoch.

Source: protos/perfetto/trace in github.com/google/perfetto; the field numbers below are from trace_packet.proto,
track_event/track_event.proto, track_descriptor.proto, debug_annotation.proto, interned_data.proto and
clock_snapshot.proto. Written without a protobuf library.

Layout of the file: one sequence of packets for the run and one per rank. Every sequence starts with its clock, its
defaults, its strings and its tracks. Then come all events, each with the time since the previous event of the same
sequence. If machines have different clocks, the description of a rank's track states how well its clock is aligned.
Packets are not compressed, so that any protobuf reader can decode them; arguments that repeat a slice's name or
neighbors are omitted instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.exporters.perfetto.restored import RESTORED, with_lost
from stagescope.exporters.protobuf import (
    bytes_field,
    constant_cells,
    fixed64_cells,
    join_cells,
    message_cells,
    number_cells,
    number_field,
    spread_cells,
    varint,
)
from stagescope.exporters.tracks import lay_out
from stagescope.exporters.writer import Writer, Written
from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from stagescope.exporters.protobuf import Cells
    from stagescope.exporters.tracks import Layout
    from stagescope.model import Timeline

    Ints = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]

TRACE_PACKET = 1
# Fields of TracePacket.
CLOCK_SNAPSHOT, TIMESTAMP, SEQUENCE_ID, TRACK_EVENT, INTERNED_DATA, SEQUENCE_FLAGS = 6, 8, 10, 11, 12, 13
DEFAULTS, TRACK_DESCRIPTOR = 59, 60
# Fields of TracePacketDefaults and TrackEventDefaults.
EVENT_DEFAULTS, TIMESTAMP_CLOCK, DEFAULT_TRACK_UUID = 11, 58, 11
STATE_CLEARED = 1
# Fields of TrackEvent and the values of its type.
ANNOTATIONS, EVENT_TYPE, NAME_IID, TRACK_UUID, COUNTER_VALUE = 4, 9, 10, 11, 30
DOUBLE_COUNTER_VALUE, FLOW_IDS, ENDING_FLOW_IDS = 44, 47, 48
SLICE_BEGIN, SLICE_END, COUNTER = 1, 2, 4
# Fields of DebugAnnotation and InternedData.
ANNOTATION_NAME_IID, INT_VALUE = 1, 4
EVENT_NAMES, ANNOTATION_NAMES = 2, 3
# Fields of TrackDescriptor; EXPLICIT orders children by their rank.
UUID, TRACK_NAME, PARENT_UUID, COUNTER_DESCRIPTOR, CHILD_ORDERING, ORDER, DESCRIPTION = 1, 2, 5, 8, 11, 12, 14
EXPLICIT = 3
# Fields of CounterDescriptor and a value of its unit.
UNIT, UNIT_NAME = 3, 6
SIZE_BYTES = 3
REALTIME, BOOTTIME, DELTA_CLOCK = 1, 6, 64
"""Clocks: the wall clock, the one that Perfetto sorts by, and the first id that a sequence may define."""

RUN_UUID = 1
RUN_SEQUENCE = 1
LARGEST_WHOLE = 2**53
"""Counters are doubles; whole ones up to here are written as integers, which is shorter and exact."""
BLOCK_ROWS = 16_384
"""Events encoded at a time, which bounds the memory for their matrices; four times more or fewer are not faster."""

_ANNOTATIONS = ("step", "stage", "microbatch", "pair", "peer", "bytes", "posted_before_ns", "transfer")
"""An argument that a reader restores from neighboring slices is not written (restored.py).

Only receives that are drawn later than they were posted have `posted_before_ns`: by how much. Only waits whose transfer
cannot be found by counting have `transfer` (restored.py)."""


def _interned(field: int, texts: list[str]) -> list[bytes]:
    """Return the InternedData field of every text: a message of its id (1), counted from 1, and the text (2)."""
    return [
        bytes_field(field, b"\x08" + varint(iid) + bytes_field(2, text))
        for iid, text in enumerate(texts, start=1)
    ]


def write(timeline: Timeline, path: Path) -> Written:
    """Write the timeline as one Perfetto trace with absolute nanoseconds, and return what was written."""
    return write_layout(lay_out(timeline), path, is_partial=timeline.is_partial)


def write_layout(layout: Layout, path: Path, *, is_partial: bool) -> Written:
    """Write a layout as one Perfetto trace, and return what was written; more packets may follow in the same file."""
    diagnostics = layout.diagnostics
    shift_ns = max(0, -layout.start_ns)
    if shift_ns:
        message = f"the trace begins before the Unix epoch, which the format cannot represent; shifted by {shift_ns} ns"
        diagnostics = (*diagnostics, Diagnostic("info", message, code="trace.shifted"))
    slices, titles = _intern(with_lost(layout))
    events = _events(layout)
    with path.open("wb") as file:
        clock = _clock(layout.start_ns + shift_ns)
        file.write(_preamble(layout, slices, titles, clock, is_partial=is_partial))
        columns = _Columns(slices, layout)
        for start in range(0, len(events.row), BLOCK_ROWS):
            file.write(_encode(events.part(start, start + BLOCK_ROWS), columns))
        size_bytes = file.tell()
    return Written(
        path, size_bytes, layout.slices.height, layout.flows.height, layout.track_names, diagnostics
    )  # fmt: skip


WRITER = Writer("pftrace", ".pftrace", "Perfetto protobuf for ui.perfetto.dev and trace_processor", write)


def _intern(slices: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Return slices with their titles replaced by ids, and the titles in the order of the ids, which start at 1."""
    titles = slices["title"].unique(maintain_order=True)
    codes = slices["title"].cast(pl.Enum(titles)).to_physical().cast(pl.Int64) + 1
    return slices.with_columns(codes.alias("title")), titles.to_list()


class _Events(NamedTuple):
    """The events of all tracks in order of time, and of each track in the order of its slices."""

    sequence: Ints
    delta_ns: Ints
    """Time since the previous event of the sequence; for the first one, since the start of its clock."""
    type: Ints
    row: Ints
    """Row of `slices` for a slice event, of `counters` for a counter."""

    def part(self, start: int, stop: int) -> _Events:
        """Return the events from `start` up to `stop`."""
        return _Events(*(column[start:stop] for column in self))


def _events(layout: Layout) -> _Events:
    """Return the begin and the end of every slice and every change of a counter."""
    slices, counters = layout.slices, layout.counters
    slice_row, counter_row = np.arange(slices.height), np.arange(counters.height)
    ends_ns = np.column_stack([slices["start_ns"].to_numpy(), slices["end_ns"].to_numpy()]).ravel()
    time_ns = np.concatenate([ends_ns, counters["time_ns"].to_numpy()])
    sequence = np.concatenate([np.repeat(_sequences(slices), 2), _sequences(counters)])
    slice_types = np.tile([SLICE_BEGIN, SLICE_END], slices.height)
    types = np.concatenate([slice_types, np.full(counters.height, COUNTER)])
    row = np.concatenate([np.repeat(slice_row, 2), counter_row])
    # At equal times, receives come last: a flow that ends before it begins is dropped. The sort is stable, so a
    # slice ends before the next one on its track begins, and a slice of zero length begins before it ends.
    is_receive = np.zeros(len(row), np.bool_)
    is_receive[: 2 * slices.height] = np.repeat(slices["is_receive"].to_numpy(), 2)
    order = np.lexsort((is_receive, time_ns))
    sequence, time_ns = sequence[order], time_ns[order]
    return _Events(sequence, _deltas(sequence, time_ns - layout.start_ns), types[order], row[order])


def _deltas(sequence: Ints, time_ns: Ints) -> Ints:
    """Return the time since the previous event of the same sequence, or since 0 for the first of a sequence."""
    order = np.argsort(sequence, kind="stable")
    is_first = np.diff(sequence[order], prepend=-1) != 0
    deltas = np.diff(time_ns[order], prepend=0)
    deltas[is_first] = time_ns[order][is_first]
    scattered = np.empty_like(deltas)
    scattered[order] = deltas
    return scattered


def _sequences(rows: pl.DataFrame) -> Ints:
    """Return the packet sequence of every row: 1 for the run, rank + 2 for a rank."""
    sequences: Ints = (rows["rank"].cast(pl.Int64) + RUN_SEQUENCE + 1).fill_null(RUN_SEQUENCE).to_numpy()
    return sequences


def _sequence(rank: int | None) -> int:
    return RUN_SEQUENCE if rank is None else rank + RUN_SEQUENCE + 1


def _preamble(
    layout: Layout, slices: pl.DataFrame, titles: list[str], clock: bytes, *, is_partial: bool
) -> bytes:
    """Return the packets at the start of every sequence: clock, defaults, strings and tracks."""
    interned = _interned_by_sequence(slices, titles)
    default_uuids = _default_uuids(slices)
    packets = []
    for sequence in (RUN_SEQUENCE, *(_sequence(group.rank) for group in layout.groups)):
        defaults = number_field(TIMESTAMP_CLOCK, DELTA_CLOCK)
        track = number_field(DEFAULT_TRACK_UUID, default_uuids.get(sequence, RUN_UUID))
        content = number_field(SEQUENCE_FLAGS, STATE_CLEARED) + clock
        content += bytes_field(DEFAULTS, defaults + bytes_field(EVENT_DEFAULTS, track))
        packets.append(_packet(sequence, content + bytes_field(INTERNED_DATA, interned.get(sequence, b""))))
    run_name = "run (partial: data are missing)" if is_partial else "run"
    return b"".join(packets + _track_packets(layout, run_name))


def _default_uuids(slices: pl.DataFrame) -> dict[int, int]:
    """Return for each sequence the track with most of its slices, which events on it need not name."""
    counts = slices.group_by("rank", "track").len().sort("len", "track", descending=[True, False])
    busiest = counts.unique("rank", keep="first", maintain_order=True)
    return dict(zip(_sequences(busiest).tolist(), _uuids(busiest).tolist(), strict=True))


def _packet(sequence: int, content: bytes) -> bytes:
    return bytes_field(TRACE_PACKET, number_field(SEQUENCE_ID, sequence) + content)


def _clock(start_ns: int) -> bytes:
    """Return the snapshot that relates a sequence's delta clock to the wall clock."""
    fixed = [number_field(1, clock) + number_field(2, start_ns) for clock in (BOOTTIME, REALTIME)]
    delta = number_field(1, DELTA_CLOCK) + number_field(2, 0) + number_field(3, 1)
    return bytes_field(CLOCK_SNAPSHOT, b"".join(bytes_field(1, clock) for clock in (*fixed, delta)))


def _interned_by_sequence(slices: pl.DataFrame, titles: list[str]) -> dict[int, bytes]:
    """Return the InternedData of every sequence: the names of arguments, and the titles that its slices use."""
    names = b"".join(_interned(ANNOTATION_NAMES, list(_ANNOTATIONS)))
    entries = _interned(EVENT_NAMES, titles)
    used = slices.select("rank", "title").unique(maintain_order=True)
    interned: dict[int, list[bytes]] = {}
    for sequence, iid in zip(_sequences(used).tolist(), used["title"].to_list(), strict=True):
        interned.setdefault(sequence, [names]).append(entries[iid - 1])
    return {sequence: b"".join(parts) for sequence, parts in interned.items()}


def _track_packets(layout: Layout, run_name: str) -> list[bytes]:
    """Return the descriptors of groups and tracks, each on the sequence that writes to it."""
    run = _track(RUN_UUID, run_name, 0, number_field(CHILD_ORDERING, EXPLICIT))
    packets = [_packet(RUN_SEQUENCE, bytes_field(TRACK_DESCRIPTOR, run))]
    group_uuids: dict[int | None, int] = {None: RUN_UUID}
    for order, group in enumerate(layout.groups, start=len(layout.tracks)):
        group_uuids[group.rank] = RUN_UUID + 1 + order
        extra = number_field(PARENT_UUID, RUN_UUID) + number_field(CHILD_ORDERING, EXPLICIT)
        extra += bytes_field(DESCRIPTION, group.clock) if group.clock else b""
        descriptor = _track(group_uuids[group.rank], group.name, order, extra)
        packets.append(_packet(_sequence(group.rank), bytes_field(TRACK_DESCRIPTOR, descriptor)))
    for order, track in enumerate(layout.tracks):
        extra = number_field(PARENT_UUID, group_uuids[track.rank])
        extra += bytes_field(COUNTER_DESCRIPTOR, _unit(track.unit)) if track.is_counter else b""
        descriptor = _track(RUN_UUID + 1 + order, track.name, order, extra)
        packets.append(_packet(_sequence(track.rank), bytes_field(TRACK_DESCRIPTOR, descriptor)))
    return packets


def _unit(unit: str) -> bytes:
    """Return the content of a CounterDescriptor."""
    if unit == "B":
        return number_field(UNIT, SIZE_BYTES)
    return bytes_field(UNIT_NAME, unit) if unit else b""


def _track(uuid: int, name: str, order: int, extra: bytes) -> bytes:
    return number_field(UUID, uuid) + bytes_field(TRACK_NAME, name) + number_field(ORDER, order) + extra


class _Columns:
    """The columns of slices and counters as arrays, to be gathered by event."""

    def __init__(self, slices: pl.DataFrame, layout: Layout) -> None:
        self.uuid = _uuids(slices)
        defaults = _default_uuids(slices)
        default_of = np.zeros(1 + max((RUN_SEQUENCE, *defaults)), np.int64)
        default_of[list(defaults)] = list(defaults.values())
        self.names_track = self.uuid != default_of[_sequences(slices)]
        self.title = slices["title"].to_numpy()
        names = [name for name in _ANNOTATIONS if slices[name].null_count() < slices.height]
        self.annotations = {
            name: (slices[name].fill_null(0).cast(pl.Int64).to_numpy(), _has_argument(slices, name))
            for name in names
        }
        self.flow_out, self.flow_in = (np.zeros(slices.height, np.int64) for _ in range(2))
        flow_ids = np.arange(1, layout.flows.height + 1)
        self.flow_out[layout.flows["send"].to_numpy()] = flow_ids
        self.flow_in[layout.flows["recv"].to_numpy()] = flow_ids
        self.counter_uuid = _uuids(layout.counters)
        self.counter_value = layout.counters["value"].to_numpy()


def _has_argument(slices: pl.DataFrame, name: str) -> Mask:
    """Return the slices on which an argument is written."""
    wanted = pl.col(name).is_not_null()
    if name in RESTORED:
        wanted &= pl.col(f"writes_{name}")
    if name == "pair":
        wanted &= ~pl.col("is_wait")
    if name == "microbatch":  # the titles of waits and receives have it
        wanted &= ~pl.col("is_wait") & ~pl.col("is_receive")
    mask: Mask = slices.select(wanted).to_series().to_numpy()
    return mask


def _uuids(rows: pl.DataFrame) -> Ints:
    uuids: Ints = rows["track"].cast(pl.Int64).to_numpy() + RUN_UUID + 1
    return uuids


def _encode(events: _Events, columns: _Columns) -> bytes:
    """Return one packet per event."""
    is_counter, is_begin = events.type == COUNTER, events.type == SLICE_BEGIN
    is_slice = ~is_counter
    uuid, value = np.empty_like(events.row), np.zeros(len(events.row), np.float64)
    names_track = np.ones(len(events.row), np.bool_)
    uuid[is_slice] = columns.uuid[events.row[is_slice]]
    names_track[is_slice] = columns.names_track[events.row[is_slice]]
    uuid[is_counter] = columns.counter_uuid[events.row[is_counter]]
    value[is_counter] = columns.counter_value[events.row[is_counter]]
    is_whole = (value == np.floor(value)) & (np.abs(value) < LARGEST_WHOLE)
    event = [
        number_cells(EVENT_TYPE, events.type),
        number_cells(TRACK_UUID, uuid, names_track),
        number_cells(COUNTER_VALUE, np.where(is_whole, value, 0).astype(np.int64), is_counter & is_whole),
        fixed64_cells(DOUBLE_COUNTER_VALUE, value.view(np.int64), is_counter & ~is_whole),
        spread_cells(_begin_cells(events.row[is_begin], columns), is_begin),
    ]
    packet = [
        number_cells(TIMESTAMP, events.delta_ns),
        number_cells(SEQUENCE_ID, events.sequence),
        message_cells(TRACK_EVENT, join_cells(event)),
    ]
    return message_cells(TRACE_PACKET, join_cells(packet)).tobytes()


def _begin_cells(row: Ints, columns: _Columns) -> Cells:
    """Return the content of the begin events of these slices: name, arguments and flows."""
    flow_out, flow_in = columns.flow_out[row], columns.flow_in[row]
    parts = [
        number_cells(NAME_IID, columns.title[row]),
        fixed64_cells(FLOW_IDS, flow_out, flow_out > 0),
        fixed64_cells(ENDING_FLOW_IDS, flow_in, flow_in > 0),
    ]
    for name, (values, present) in columns.annotations.items():
        here = present[row]
        name_iid = number_field(ANNOTATION_NAME_IID, _ANNOTATIONS.index(name) + 1)
        annotation = [constant_cells(name_iid, len(row), here), number_cells(INT_VALUE, values[row], here)]
        parts.append(message_cells(ANNOTATIONS, join_cells(annotation), here))
    return join_cells(parts)
