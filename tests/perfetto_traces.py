"""Traces of other writers, written with Perfetto's own library."""

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb2

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
