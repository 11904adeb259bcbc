from collections import defaultdict

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb2

from drawing import timeline_from_text
from machines import on_machines
from stagescope.exporters.perfetto import pftrace
from stagescope.exporters.tracks import lay_out
from stagescope.model import empty_timeline
from stagescope.model.diagnostics import Diagnostic
from synthetic import EPOCH_NS, Shape, awkward_timeline, message_count, pipeline_timeline

BEGIN, END, COUNTER = (
    pb2.TrackEvent.TYPE_SLICE_BEGIN,
    pb2.TrackEvent.TYPE_SLICE_END,
    pb2.TrackEvent.TYPE_COUNTER,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.pftrace"


def packets_of(timeline, path):
    """Return the packets of a written trace, decoded by the reference implementation."""
    pftrace.write(timeline, path)
    return pb2.Trace.FromString(path.read_bytes()).packet


def decoded_events(packets):
    """Return (sequence, absolute time, event) of every event: clocks added up, the default track filled in."""
    clocks, tracks = {}, {}
    events = []
    for packet in packets:
        sequence = packet.trusted_packet_sequence_id
        if packet.HasField("clock_snapshot"):
            timestamps = {clock.clock_id: clock for clock in packet.clock_snapshot.clocks}
            assert timestamps[64].is_incremental
            assert packet.trace_packet_defaults.timestamp_clock_id == 64
            clocks[sequence] = timestamps[6].timestamp
            tracks[sequence] = packet.trace_packet_defaults.track_event_defaults.track_uuid
        if packet.HasField("track_event"):
            clocks[sequence] += packet.timestamp
            if not packet.track_event.HasField("track_uuid"):
                packet.track_event.track_uuid = tracks[sequence]
            events.append((sequence, clocks[sequence], packet.track_event))
    return events


def descriptors(packets):
    return [packet.track_descriptor for packet in packets if packet.HasField("track_descriptor")]


def interned(packets):
    """Return the interned strings of every sequence by field: {(sequence, field): {iid: text}}."""
    strings = defaultdict(dict)
    for packet in packets:
        for field, values in packet.interned_data.ListFields():
            for value in values:
                text = getattr(value, "name", "") or getattr(value, "str", b"").decode()
                strings[packet.trusted_packet_sequence_id, field.name][value.iid] = text
    return strings


@pytest.mark.parametrize(
    "timeline", [pipeline_timeline(Shape()), awkward_timeline()], ids=["pipeline", "awkward"]
)
def test_reference_implementation_reads_back_every_slice(timeline, path):
    packets = packets_of(timeline, path)
    names = interned(packets)
    open_slices, found = defaultdict(list), []
    for sequence, time_ns, event in decoded_events(packets):
        if event.type == BEGIN:
            open_slices[event.track_uuid].append((names[sequence, "event_names"][event.name_iid], time_ns))
        elif event.type == END:
            title, start_ns = open_slices[event.track_uuid].pop()
            assert open_slices[event.track_uuid] == []
            found.append((event.track_uuid, title, start_ns, time_ns))
    layout = lay_out(timeline)
    uuids = [d.uuid for d in descriptors(packets) if d.parent_uuid and not d.child_ordering]
    expected = [
        (uuids[track], title, start_ns, end_ns)
        for track, title, start_ns, end_ns in layout.slices.select(
            "track", "title", "start_ns", "end_ns"
        ).rows()
    ]
    assert sorted(found) == sorted(expected)


def test_tracks_form_a_tree_with_an_explicit_order(path):
    run, *others = descriptors(packets_of(pipeline_timeline(Shape(ranks=2, steps=1)), path))
    assert (run.name, run.child_ordering) == ("run", pb2.TrackDescriptor.EXPLICIT)
    children = defaultdict(list)
    for track in others:
        children[track.parent_uuid].append(track)
    top = sorted(children[run.uuid], key=lambda track: track.sibling_order_rank)
    assert [track.name for track in top] == ["Step", "rank 0 (node-0, stage 0)", "rank 1 (node-0, stage 1)"]
    below = sorted(children[top[1].uuid], key=lambda track: track.sibling_order_rank)
    assert [track.name for track in below] == [
        "compute",
        "receive wait",
        "send",
        "receive",
        "micro-batches in flight",
    ]
    assert [track.HasField("counter") for track in below] == [False] * 4 + [True]
    assert len({track.uuid for track in (run, *others)}) == len(others) + 1


def test_every_flow_has_one_start_before_its_one_end(path):
    shape = Shape()
    started, ended = [], []
    for _, _, event in decoded_events(packets_of(pipeline_timeline(shape), path)):
        started += event.flow_ids
        ended += event.terminating_flow_ids
        assert set(event.terminating_flow_ids) <= set(started)
    assert sorted(started) == sorted(ended) == list(range(1, message_count(shape) + 1))


def arguments(packets):
    """Return the arguments of every slice by its title."""
    names = interned(packets)
    return {
        names[sequence, "event_names"][event.name_iid]: {
            names[sequence, "debug_annotation_names"][note.name_iid]: note.int_value
            for note in event.debug_annotations
        }
        for sequence, _, event in decoded_events(packets)
        if event.type == BEGIN
    }


def test_an_action_has_its_step_stage_and_microbatch(path):
    found = arguments(packets_of(timeline_from_text("F3"), path))
    assert found["forward 3"] == {"step": 0, "stage": 0, "microbatch": 3}


def test_a_send_has_peer_and_size_and_arrows_from_its_receive_and_wait(path):
    found = arguments(packets_of(pipeline_timeline(Shape(ranks=2, microbatches=1, steps=1)), path))
    assert set(found["send forward 0"]) == {"stage", "microbatch", "peer", "bytes"}
    assert set(found["recv forward 0"]) == {"stage", "posted_before_ns"}
    assert set(found["wait for data 0"]) == {"stage"}


def test_counter_is_set_at_every_change(path):
    events = decoded_events(packets_of(timeline_from_text("F0 F1 B0 B1", origin_ns=EPOCH_NS), path))
    assert [(time_ns - EPOCH_NS, event.counter_value) for _, time_ns, event in events if event.type == COUNTER] == [
        (0, 1), (1_000, 2), (3_000, 1), (4_000, 0),
    ]  # fmt: skip


def test_recorded_counters_are_exact_and_have_their_unit(path):
    packets = packets_of(awkward_timeline(), path)
    tracks = {track.uuid: track for track in descriptors(packets) if track.HasField("counter")}
    found = {
        (tracks[event.track_uuid].name, tracks[event.track_uuid].counter.unit, value)
        for _, _, event in decoded_events(packets)
        if event.type == COUNTER
        for value in [event.double_counter_value or event.counter_value]
    }
    size = pb2.CounterDescriptor.UNIT_SIZE_BYTES
    assert {fact for fact in found if fact[0] != "micro-batches in flight"} == {
        ("allocated memory", size, 2**53 - 1),
        ("allocated memory", size, 0),
        ("allocated memory", size, 2**40),
        ('clock "MHz"', 0, 1980.5),
    }


def test_times_before_the_epoch_are_shifted_with_a_diagnostic(path):
    timeline = timeline_from_text("F0 B0", origin_ns=-500)
    written = pftrace.write(timeline, path)
    assert "shifted by 500 ns" in written.diagnostics[-1].message
    assert decoded_events(packets_of(timeline, path))[0][1] == 0


def test_a_partial_run_is_marked(path):
    lost = timeline_from_text("F0").with_diagnostics([Diagnostic("error", "gone", code="test.finding")])
    assert descriptors(packets_of(lost, path))[0].name == "run (partial: data are missing)"


def test_empty_timeline_is_a_valid_trace(path):
    assert [track.name for track in descriptors(packets_of(empty_timeline(), path))] == ["run"]


def test_file_is_the_same_every_time(path):
    first = pftrace.write(awkward_timeline(), path) and path.read_bytes()
    assert first == (pftrace.write(awkward_timeline(), path) and path.read_bytes())


def test_tracks_of_ranks_on_several_machines_describe_their_clock(path):
    timeline = on_machines(
        timeline_from_text("F0\nF0"), {0: "a", 1: "b"}, {"a": (0, 0), "b": (-1_500, 2_500)}
    )
    found = {one.name: one.description for one in descriptors(packets_of(timeline, path)) if one.description}
    assert found == {
        "rank 0 (a, stage 0)": "the reference clock",
        "rank 1 (b, stage 1)": "aligned, error between -1.500 µs and +2.500 µs",
    }
