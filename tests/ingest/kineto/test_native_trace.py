"""torch's native Perfetto traces, compared with JSON traces of the same events.

torch 2.13 has the cupti_monitor, which needs a GPU; the layout below is that of monitor_pftrace.cpp: tracks, one packet
of interned names, and for each group of slices all beginnings and then all ends.
"""

import gzip
import json

import polars as pl
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb2

import stagescope
from ingest.kineto.test_device import EVENTS
from places import DATA

HOST, CLEARED, NEEDED = 77, 1, 2
ON_HOST = ("cpu_op", "user_annotation")


def annotate(event, args):
    """Add arguments as the encoder spreads JSON: one annotation per key, lists as arrays."""
    for key, value in args.items():
        one = event.debug_annotations.add(name=key)
        if isinstance(value, bool):
            one.bool_value = value
        elif isinstance(value, int):
            one.int_value = value
        elif isinstance(value, float):
            one.double_value = value
        elif isinstance(value, list):
            for item in value:
                one.array_values.add(string_value=str(item))
        else:
            one.string_value = str(value)


def native(events, base_ns):
    """Return the trace that torch's encoder writes of complete events; kernels are slices on their stream's track."""
    trace, tracks, names = pb2.Trace(), {}, {}
    events = [one for one in events if one.get("ph") == "X" and one.get("cat") != "Trace"]
    for one in events:
        names.setdefault(one["name"], len(names) + 1)
        if (one["pid"], one["tid"]) not in tracks:
            descriptor = trace.packet.add().track_descriptor
            descriptor.uuid = tracks[one["pid"], one["tid"]] = len(tracks) + 1
            is_host = one["cat"] in ON_HOST or "runtime" in one["cat"]
            descriptor.thread.pid, descriptor.thread.tid = HOST if is_host else 0, int(one["tid"])
            descriptor.thread.thread_name = f"{'thread' if is_host else 'stream'} {one['tid']}"
    packet = trace.packet.add(trusted_packet_sequence_id=1, sequence_flags=CLEARED)
    for name, iid in names.items():
        packet.interned_data.event_names.add(iid=iid, name=name)
    for group in (ON_HOST, ("cuda_runtime",), ("kernel",), ("gpu_user_annotation",)):
        chosen = [one for one in events if one["cat"] in group]
        for is_begin in (True, False):
            for one in chosen:
                at_us = one["ts"] if is_begin else one["ts"] + one["dur"]
                packet = trace.packet.add(
                    timestamp=base_ns + round(at_us * 1000), trusted_packet_sequence_id=1
                )
                packet.track_event.track_uuid = tracks[one["pid"], one["tid"]]
                packet.track_event.type = 1 if is_begin else 2
                if is_begin:
                    packet.sequence_flags = NEEDED
                    packet.track_event.name_iid = names[one["name"]]
                    annotate(packet.track_event, one.get("args", {}))
    return trace.SerializeToString()


def rows(timeline):
    columns = ["rank", "kind", "step", "stage", "microbatch", "lane", "peer", "bytes", "start_ns", "end_ns"]
    spans = timeline.spans.with_columns(pl.col("kind", "lane").cast(pl.String))
    return spans.select(columns).sort(columns, nulls_last=True).rows()


@pytest.mark.parametrize("schedule", ["ZBVZeroBubble", "DualPipeV"])
def test_a_native_trace_gives_the_spans_of_its_json(tmp_path, schedule):
    for source in sorted((DATA / "kineto" / schedule).glob("*.gz")):
        trace = json.loads(gzip.decompress(source.read_bytes()))
        data = native(trace["traceEvents"], trace["baseTimeNanoseconds"])
        (tmp_path / source.name.replace(".json.gz", ".pftrace")).write_bytes(gzip.compress(data, 1))
    found, expected = rows(stagescope.read(tmp_path)), rows(stagescope.read(DATA / "kineto" / schedule))
    # Peers follow from the process groups in the header of the JSON.
    assert [row[:6] for row in found] == [row[:6] for row in expected]
    # The microseconds of the JSON are doubles, and resolve times since the last trimester to a nanosecond.
    times = [
        abs(one - other)
        for row, same in zip(found, expected, strict=True)
        for one, other in zip(row[-2:], same[-2:], strict=True)
    ]
    assert max(times) <= 1


def planted():
    events = [dict(one) for one in EVENTS]
    for one in events:
        if one["cat"] == "cuda_runtime":
            one["args"] = {**one["args"], "cbid": 211}
        elif one["cat"] != "kernel":
            one["args"] = {**one["args"], "External id": 5}
    return events


def test_kernels_on_their_streams_give_device_times(tmp_path):
    base_ns = 1_790_000_000_000_000_000
    (tmp_path / "rank0.json").write_text(
        json.dumps(
            {
                "schemaVersion": 1,
                "deviceProperties": [],
                "baseTimeNanoseconds": base_ns,
                "traceEvents": EVENTS,
            }
        ),
        encoding="utf-8",
    )
    (tmp_path / "rank0.pftrace").write_bytes(native(planted(), base_ns))
    read = stagescope.read(tmp_path / "rank0.pftrace")
    assert rows(read) == rows(stagescope.read(tmp_path / "rank0.json"))
    assert read.spans.filter(pl.col("lane") == "compute").height == 2


def test_render_stages_are_kernels(tmp_path):
    base_ns = 1_790_000_000_000_000_000
    trace = pb2.Trace.FromString(native([one for one in planted() if one["cat"] != "kernel"], base_ns))
    described = next(packet for packet in trace.packet if packet.HasField("interned_data")).interned_data
    described.gpu_specifications.add(iid=1, name="stream 7")
    described.gpu_specifications.add(iid=2, name="Kernel")
    for number, one in enumerate(one for one in EVENTS if one["cat"] == "kernel"):
        described.event_names.add(iid=900 + number, name=one["name"])
        packet = trace.packet.add(timestamp=base_ns + round(one["ts"] * 1000), trusted_packet_sequence_id=1)
        stage = packet.gpu_render_stage_event
        stage.event_id, stage.duration, stage.gpu_id = one["args"]["correlation"], round(one["dur"] * 1000), 0
        stage.hw_queue_iid, stage.stage_iid, stage.name_iid = 1, 2, 900 + number
        for key, value in one["args"].items():
            stage.extra_data.add(name=key, value=str(value))
    (tmp_path / "rank0.pftrace").write_bytes(trace.SerializeToString())
    (tmp_path / "slices-rank0.pftrace").write_bytes(native(planted(), base_ns))
    read = [stagescope.read(tmp_path / name) for name in ("rank0.pftrace", "slices-rank0.pftrace")]
    assert rows(read[0]) == rows(read[1])
