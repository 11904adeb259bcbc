"""Decoding of traces that Perfetto's own library writes, and of hostile ones."""

import zlib

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb2

from stagescope.exporters.protobuf import bytes_field, number_field
from stagescope.ingest.trace_proto import packets as packet_stream
from stagescope.ingest.trace_proto.trace import read_trace
from stagescope.ingest.trace_proto.tracks import MOST_LEVELS, Track, ancestors
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.limits import limits_in_force

BEGIN, END = pb2.TrackEvent.TYPE_SLICE_BEGIN, pb2.TrackEvent.TYPE_SLICE_END
EPOCH_NS = 1_790_000_000_000_000_000


@pytest.fixture
def decode(tmp_path):
    def decode(data):
        path = tmp_path / "trace.pftrace"
        path.write_bytes(data if isinstance(data, bytes) else data.SerializeToString())
        return read_trace(path)

    return decode


def add_slice(trace, begin, end, **packet_fields):
    for kind, at in ((BEGIN, begin), (END, end)):
        packet = trace.packet.add(timestamp=at, trusted_packet_sequence_id=1, **packet_fields)
        packet.track_event.type, packet.track_event.track_uuid = kind, 5
        if kind == BEGIN:
            packet.track_event.name = "work"


def times(trace):
    return [(one.start_ns, one.end_ns) for one in trace.slices]


def test_system_clocks_become_the_wall_clock_by_the_first_snapshot(decode):
    trace = pb2.Trace()
    clocks = trace.packet.add().clock_snapshot.clocks
    clocks.add(clock_id=6, timestamp=1000)
    clocks.add(clock_id=1, timestamp=EPOCH_NS)
    add_slice(trace, 1500, 1700)
    found = decode(trace)
    assert times(found) == [(EPOCH_NS + 500, EPOCH_NS + 700)]
    assert found.has_epoch


def test_clocks_of_a_sequence_may_count_differences_in_their_own_unit(decode):
    trace = pb2.Trace()
    clocks = trace.packet.add(trusted_packet_sequence_id=1).clock_snapshot.clocks
    clocks.add(clock_id=6, timestamp=1000)
    clocks.add(clock_id=64, timestamp=0, is_incremental=True, unit_multiplier_ns=10)
    add_slice(trace, 3, 4, timestamp_clock_id=64)
    assert times(decode(trace)) == [(1030, 1070)]


def test_events_without_their_state_or_clock_are_dropped_and_counted(decode):
    trace = pb2.Trace()
    add_slice(trace, 1, 2, sequence_flags=2)
    add_slice(trace, 3, 4, timestamp_clock_id=70)
    found = decode(trace)
    assert found.slices == []
    assert [(row.code, row.count) for row in found.diagnostics] == [
        ("events.dropped", 2),
        ("events.dropped", 2),
    ]


def test_compressed_packets_are_bounded(decode):
    data = bytes_field(1, bytes_field(50, zlib.compress(b"\0" * 100_000)))
    with limits_in_force({"string": 50_000}), pytest.raises(InputError, match="the limit of"):
        decode(data)


def test_deeply_nested_arguments_are_left_out(decode):
    inner = number_field(4, 1)
    for _ in range(5000):
        inner = bytes_field(11, inner)
    event = number_field(9, 1) + number_field(11, 5) + bytes_field(23, "work") + bytes_field(4, inner)
    packets = [
        number_field(8, 10) + bytes_field(11, event),
        number_field(8, 20) + bytes_field(11, number_field(9, 2) + number_field(11, 5)),
    ]
    assert times(decode(b"".join(bytes_field(1, packet) for packet in packets))) == [(10, 20)]


def test_a_slice_with_very_many_flows_has_them_all(decode):
    flows = b"".join(b"\xf9\x02" + number.to_bytes(8, "little") for number in range(20_000))
    event = number_field(9, 1) + number_field(11, 5) + bytes_field(23, "work") + flows
    packets = [
        number_field(8, 10) + bytes_field(11, event),
        number_field(8, 20) + bytes_field(11, number_field(9, 2) + number_field(11, 5)),
    ]
    (found,) = decode(b"".join(bytes_field(1, packet) for packet in packets)).slices
    assert found.flows == tuple(range(20_000))


def test_events_that_repeat_a_long_interned_text_are_bounded(decode):
    """A text is once in the file, but would be in the table of slices once per slice."""
    trace = pb2.Trace()
    packet = trace.packet.add(trusted_packet_sequence_id=1, sequence_flags=1)
    packet.interned_data.event_names.add(iid=1, name="x" * 50_000)
    for at in range(30):
        packet = trace.packet.add(timestamp=at, trusted_packet_sequence_id=1, sequence_flags=2)
        packet.track_event.type, packet.track_event.name_iid = BEGIN, 1
    with limits_in_force({"whole": 1_000_000}), pytest.raises(InputError, match="more than the limit"):
        decode(trace)


def test_compressed_packets_beyond_the_ratio_are_refused(decode, monkeypatch):
    monkeypatch.setattr(packet_stream, "ANY_RATIO_BYTES", 10_000)
    data = bytes_field(1, bytes_field(50, zlib.compress(b"\x0a\x00" * 50_000)))
    with pytest.raises(InputError, match="compression ratio"):
        decode(data)


def test_events_on_an_impossible_clock_are_dropped_and_counted(decode):
    """Offsets beyond 64 bits would not fit into any table."""
    trace = pb2.Trace()
    clocks = trace.packet.add(trusted_packet_sequence_id=1).clock_snapshot.clocks
    clocks.add(clock_id=6, timestamp=1)
    clocks.add(clock_id=1, timestamp=2**63, unit_multiplier_ns=2**63)
    add_slice(trace, 3, 4)
    found = decode(trace)
    assert found.slices == []
    assert [(row.code, row.count) for row in found.diagnostics] == [("events.out_of_range", 1)]


def test_a_chain_of_tracks_is_followed_up_to_a_limit():
    chain = {number: Track(number, parent=number - 1) for number in range(1, 1000)}
    assert len(ancestors(chain[999], chain)) == MOST_LEVELS


@pytest.mark.parametrize("copies", [2, 3])
def test_a_trace_that_is_in_the_file_several_times_is_used_once(decode, copies):
    """Slices touch and are nested: at one time, a copy ends what another one has just begun."""
    trace = pb2.Trace()
    for begin, end in ((0, 10), (10, 30), (30, 40)):
        add_slice(trace, begin, end)
    for begin, end in ((10, 20), (20, 30)):
        add_slice(trace, begin, end)
    trace.packet.sort(key=lambda packet: packet.timestamp)
    intact, found = decode(trace), decode(trace.SerializeToString() * copies)
    assert found.slices == intact.slices
    assert [(row.code, row.count) for row in found.diagnostics] == [
        *((row.code, row.count) for row in intact.diagnostics),
        ("events.repeated", 5 * (copies - 1)),
    ]


def test_a_repeated_slice_is_used_once(decode):
    trace = pb2.Trace()
    for begin, end in ((0, 10), (20, 30), (20, 30)):
        add_slice(trace, begin, end)
    found = decode(trace)
    assert times(found) == [(0, 10), (20, 30)]
    assert [(row.code, row.count) for row in found.diagnostics] == [("events.repeated", 1)]
