"""Track events of other writers, written with Perfetto's own library."""

import zlib

import polars as pl
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb2

import stagescope
from drawing import timeline_from_text
from stagescope.vocabulary.errors import InputError

DRAWING = """
F0 F1 .  B0 .  B1
.  F0 B0 F1 B1 .
"""
BEGIN, END = pb2.TrackEvent.TYPE_SLICE_BEGIN, pb2.TrackEvent.TYPE_SLICE_END


def trace_of(timeline, name, *, arguments=(), processes=True):
    """Return a trace with a process and a thread per rank, and the slices of a timeline in order of time."""
    trace = pb2.Trace()
    for rank in timeline.ranks["rank"]:
        process = trace.packet.add().track_descriptor
        process.uuid = 100 + rank
        thread = trace.packet.add().track_descriptor
        thread.uuid, thread.parent_uuid = 200 + rank, 100 + rank
        if processes:
            process.process.pid, process.process.process_name = 4000 + rank, f"worker {rank}"
            thread.thread.pid, thread.thread.tid, thread.thread.thread_name = 4000 + rank, 9, "stream 7"
        else:
            process.name, thread.name = f"worker {rank}", "stream 7"
    events = []
    for span in timeline.spans.iter_rows(named=True):
        events += [(span["start_ns"], 1, span), (span["end_ns"], 0, span)]
    for time_ns, is_begin, span in sorted(events, key=lambda event: event[:2]):
        packet = trace.packet.add(timestamp=time_ns, trusted_packet_sequence_id=1)
        event = packet.track_event
        event.type, event.track_uuid = BEGIN if is_begin else END, 200 + span["rank"]
        if is_begin:
            event.name = name.format(**span)
            event.categories.append("pipeline")
            for key in arguments:
                event.debug_annotations.add(name=key, int_value=span[key])
    return trace


def actions(timeline):
    rows = timeline.spans.select("rank", pl.col("kind").cast(pl.String), "microbatch", "start_ns", "end_ns")
    return sorted(rows.rows())


@pytest.fixture
def write(tmp_path):
    def write(trace):
        path = tmp_path / "other.pftrace"
        path.write_bytes(trace.SerializeToString())
        return path

    return write


@pytest.mark.parametrize("processes", [True, False])
def test_slices_of_any_writer_are_read_by_their_names(write, processes):
    drawn = timeline_from_text(DRAWING)
    path = write(trace_of(drawn, "{kind}_{microbatch}", processes=processes))
    assert actions(stagescope.read(path)) == actions(drawn)


def test_slices_are_read_by_their_arguments(write):
    drawn = timeline_from_text(DRAWING)
    path = write(trace_of(drawn, "{kind}", arguments=("microbatch", "step")))
    read = stagescope.read(path, map={"microbatch": "args.microbatch", "step": "args.step"})
    assert actions(read) == actions(drawn)


@pytest.mark.parametrize("level", [9, 0], ids=["short", "longer than the searched head"])
def test_compressed_packets_are_read(write, level):
    drawn = timeline_from_text(DRAWING)
    inner = trace_of(drawn, "{kind}_{microbatch}")
    for number in range(200):
        inner.packet.add().track_descriptor.uuid = 2**60 + number * 2**40
    packed = pb2.Trace()
    packed.packet.add().compressed_packets = zlib.compress(inner.SerializeToString(), level)
    assert actions(stagescope.read(write(packed))) == actions(drawn)


def test_names_that_are_no_actions_are_refused_with_what_to_do(write):
    path = write(trace_of(timeline_from_text(DRAWING), "work"))
    with pytest.raises(InputError, match="'work'") as caught:
        stagescope.read(path)
    assert "--pattern" in caught.value.hint
