"""stagescope inspect: what is in a trace, and how it could be read."""

import gzip
import json
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb2

import stagescope
from drawing import timeline_from_text
from stagescope import api
from stagescope.cli import main
from stagescope.ingest.mapping import contents as contents_module
from stagescope.vocabulary.errors import InputError

DATA = Path(__file__).parents[1] / "data"
MEGASCAN = DATA / "mapped" / "megascan-pp-iter10.json.gz"


def event(name, microbatch, start, **more):
    args = {"mb": microbatch, "it": "x", "step": 0}
    return {
        "ph": "X",
        "name": name,
        "pid": 7,
        "tid": 1,
        "cat": "c",
        "ts": start,
        "dur": 5,
        "args": args,
        **more,
    }


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "anything.json.gz"
    events = [event("fwd", 0, 0), event("fwd", 1, 5), event("bwd", 0, 10), event("bwd", 1, 15)]
    events += [{"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "rank\x1b]52;c;aGk=\x07 7"}}]
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    return path


def test_lists_what_is_in_a_trace_with_counts_and_examples(trace, capsys):
    assert main(["inspect", str(trace)]) == 0
    out = capsys.readouterr().out
    assert "5 events over 20.00 µs (4 X, 1 M)" in out
    assert "fwd  2" in out
    assert "mb    4  such as 0, 1" in out
    assert "pid 7  4" in out


def test_foreign_text_is_printed_without_control_characters(trace, capsys):
    main(["inspect", str(trace)])
    assert "\x1b" not in capsys.readouterr().out


def test_the_proposed_options_read_the_trace(trace, capsys):
    main(["inspect", str(trace)])
    assert "--map step=args.step --map microbatch=args.mb" in capsys.readouterr().out
    inspection = api.inspect(trace)
    fields = dict(inspection.proposal.fields)
    timeline = stagescope.read(trace, map=fields)
    assert timeline.spans.select("kind", "step", "microbatch").rows() == [
        ("forward", 0, 0), ("forward", 0, 1), ("backward", 0, 0), ("backward", 0, 1),
    ]  # fmt: skip


def test_the_proposed_file_reads_the_trace(trace, tmp_path, capsys):
    main(["inspect", str(trace), "--toml"])
    mapping = tmp_path / "mapping.toml"
    mapping.write_text(capsys.readouterr().out)
    assert 'microbatch = "args.mb"' in mapping.read_text()
    assert stagescope.read(trace, mapping=mapping).spans["microbatch"].to_list() == [0, 1, 0, 1]


def test_a_shipped_mapping_that_fits_is_named(capsys):
    assert main(["inspect", str(MEGASCAN), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["proposal"]["shipped"] == "megascan"
    assert found["names"] == {
        "forward": 256, "backward": 256, "iteration begin": 4, "reduce": 4, "iteration end": 4,
    }  # fmt: skip
    assert found["arguments"]["microbatch"]["events"] == 256


def test_works_for_traces_of_torch_profiler():
    traces = sorted((DATA / "kineto").rglob("*.json*"))
    found = api.inspect(traces[0]).contents
    assert "cpu_op" in found.categories.of or "user_annotation" in found.categories.of


def test_memory_is_bounded_whatever_the_trace_has(tmp_path, monkeypatch):
    for name in ("MOST_DISTINCT", "MOST_KEYS"):
        monkeypatch.setattr(contents_module, name, 10)
    path = tmp_path / "trace.json"
    events = [event(f"n{number}", number, number, args={f"k{number}": number}) for number in range(100)]
    path.write_text(json.dumps(events))
    found = api.inspect(path).contents
    assert (len(found.names.of), found.names.others) == (10, 90)
    assert (len(found.arguments), found.other_keys) == (10, 90)


@pytest.fixture
def native(tmp_path):
    """A Perfetto trace with names of processes and threads, debug annotations and a counter."""
    trace = pb2.Trace()
    process = trace.packet.add().track_descriptor
    process.uuid, process.process.pid, process.process.process_name = 1, 40, "trainer of rank 0"
    thread = trace.packet.add().track_descriptor
    thread.uuid, thread.parent_uuid = 2, 1
    thread.thread.pid, thread.thread.tid, thread.thread.thread_name = 40, 41, "stream 7"
    load = trace.packet.add().track_descriptor
    load.uuid, load.name = 3, "load"
    load.counter.unit_name = "%"
    for place, (name, microbatch) in enumerate([("fwd", 0), ("fwd", 1), ("bwd", 0), ("bwd", 1)]):
        for offset_ns, kind in ((0, pb2.TrackEvent.TYPE_SLICE_BEGIN), (4000, pb2.TrackEvent.TYPE_SLICE_END)):
            packet = trace.packet.add(timestamp=5000 * place + offset_ns, trusted_packet_sequence_id=1)
            packet.track_event.type, packet.track_event.track_uuid = kind, 2
            if kind == pb2.TrackEvent.TYPE_SLICE_BEGIN:
                packet.track_event.name = name
                packet.track_event.categories.append("pipeline")
                packet.track_event.debug_annotations.add(name="mb", int_value=microbatch)
                packet.track_event.debug_annotations.add(name="global_step", int_value=3)
    value = trace.packet.add(timestamp=100, trusted_packet_sequence_id=1)
    value.track_event.type, value.track_event.track_uuid = pb2.TrackEvent.TYPE_COUNTER, 3
    value.track_event.counter_value = 7
    path = tmp_path / "anything.pftrace"
    path.write_bytes(trace.SerializeToString())
    return path


def test_lists_what_is_in_a_perfetto_trace_and_proposes_a_mapping_that_reads_it(native, capsys):
    assert main(["inspect", str(native)]) == 0
    out = capsys.readouterr().out
    assert "5 events over 19.00 µs (4 slices, 1 counter values)" in out
    assert "trainer of rank 0  pid 40  4" in out
    assert "stream 7  pid 40, tid 41  4" in out
    assert "mb           4  such as 0, 1" in out
    assert "--map step=args.global_step --map microbatch=args.mb" in out
    timeline = stagescope.read(native, map=dict(api.inspect(native).proposal.fields))
    assert timeline.spans.select("kind", "step", "microbatch").rows() == [
        ("forward", 3, 0), ("forward", 3, 1), ("backward", 3, 0), ("backward", 3, 1),
    ]  # fmt: skip


def test_a_trace_whose_reader_may_need_no_mapping_names_that_reader(tmp_path, capsys):
    exported = tmp_path / "run.pftrace"
    stagescope.export(timeline_from_text("F0 B0"), exported)
    main(["inspect", str(exported)])
    assert "the reader perfetto needs no mapping" in capsys.readouterr().out
    torch = next(iter(sorted((DATA / "kineto").rglob("*.json*"))))
    assert (api.inspect(torch).reader, api.inspect(MEGASCAN).reader) == ("kineto", None)


def test_a_format_that_needs_no_mapping_is_refused_with_its_name(tmp_path):
    path = tmp_path / "run.parquet"
    stagescope.export(timeline_from_text("F0 B0"), path)
    with pytest.raises(InputError, match=r"run\.parquet is read by the reader parquet, .* nothing to map"):
        api.inspect(path)


def test_an_own_chrome_export_is_refused_without_a_proposal(tmp_path, capsys):
    path = tmp_path / "run.json"
    stagescope.export(timeline_from_text("F0 B0"), path)
    assert main(["inspect", str(path)]) == 1
    printed = capsys.readouterr()
    assert "was exported by stagescope for other viewers and is not read back" in printed.err
    assert "--map" not in printed.out + printed.err


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "rank0.sscope"
    path.write_bytes(b"\x00\x01")
    with pytest.raises(InputError, match="is not a recording or trace in a supported format"):
        api.inspect(path)
    path.write_text("{}")
    with pytest.raises(InputError):
        api.inspect(path)


@pytest.mark.parametrize("content", ['[{"file": "a.json.gz", "bs": 32}]', "[[-1, 1, 378], [5, 1, 2]]"])
def test_json_without_any_phase_is_no_trace(tmp_path, content):
    path = tmp_path / "execution_details.json"
    path.write_text(content)
    with pytest.raises(InputError, match="not a recording or trace"):
        api.inspect(path)
