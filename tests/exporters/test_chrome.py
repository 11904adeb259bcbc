import json

import pytest

from drawing import timeline_from_text
from machines import on_machines
from stagescope.exporters import chrome
from stagescope.model import empty_timeline
from stagescope.model.diagnostics import Diagnostic
from synthetic import AWKWARD_NAMES, EPOCH_NS, awkward_timeline


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.json"


def written_trace(timeline, path):
    chrome.write(timeline, path)
    return json.loads(path.read_text(encoding="utf-8"))


def events(trace, phase):
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def test_action_is_a_complete_event_with_color_and_arguments(path):
    trace = written_trace(timeline_from_text("F0 B0", cell_ns=1_001, origin_ns=EPOCH_NS), path)
    assert events(trace, "X")[1:] == [
        {
            "ph": "X", "pid": 0, "tid": 3, "ts": 0.0, "dur": 1.001, "name": "forward 0", "cat": "forward",
            "cname": "thread_state_running",
            "args": {"kind": "forward", "label": "F0.0", "step": 0, "stage": 0, "chunk": 0, "microbatch": 0},
        },
        {
            "ph": "X", "pid": 0, "tid": 3, "ts": 1.001, "dur": 1.001, "name": "backward 0", "cat": "backward",
            "cname": "thread_state_runnable",
            "args": {"kind": "backward", "label": "B0.0", "step": 0, "stage": 0, "chunk": 0, "microbatch": 0},
        },
    ]  # fmt: skip


def test_timestamps_have_exact_nanoseconds_from_zero(path):
    chrome.write(timeline_from_text("F0 . B0", cell_ns=1_000_007, origin_ns=EPOCH_NS), path)
    text = path.read_text(encoding="utf-8")
    assert '"ts":0.000,"dur":1000.007,' in text
    assert '"ts":2000.014,"dur":1000.007,' in text


def test_the_epoch_of_time_0_is_text(path):
    trace = written_trace(timeline_from_text("F0", origin_ns=EPOCH_NS), path)
    assert trace["otherData"]["epoch_ns_at_ts_0"] == str(EPOCH_NS)
    assert trace["otherData"]["stagescope_version"] == "0.1.0"


def test_diagnostics_are_part_of_the_trace(path):
    lost = Diagnostic("error", "half of it is gone", rank=3, count=2, code="test.finding")
    trace = written_trace(timeline_from_text("F0").with_diagnostics([lost]), path)
    assert trace["otherData"]["is_partial"] is True
    assert trace["otherData"]["diagnostics"] == [
        {"severity": "error", "message": "half of it is gone", "rank": 3, "count": 2}
    ]


def test_processes_are_ranks_below_the_run_and_no_thread_is_a_process(path):
    metadata = events(written_trace(awkward_timeline(), path), "M")
    order = {
        event["pid"]: event["args"]["sort_index"]
        for event in metadata
        if event["name"] == "process_sort_index"
    }
    names = {event["pid"]: event["args"]["name"] for event in metadata if event["name"] == "process_name"}
    assert sorted(order, key=order.get) == [8, 0, 1, 2, 3, 4, 5, 6, 7]
    assert (names[8], names[0], names[7]) == ("run", "rank 0 (node-0, stage 0)", "rank 7 (silent)")
    threads = [event["tid"] for event in metadata if event["name"] == "thread_name"]
    assert len(set(threads)) == len(threads)
    assert not set(threads) & set(names)


def test_names_survive_their_quoting(path):
    trace = written_trace(awkward_timeline(), path)
    named = [event["name"] for event in events(trace, "X") if event["pid"] == 6]
    assert named == [name or "other" for name in AWKWARD_NAMES]


def test_flow_starts_in_the_send_and_finishes_in_the_receive(path):
    trace = written_trace(awkward_timeline(), path)
    slices = {(event["pid"], event["tid"], event["ts"]): event["cat"] for event in events(trace, "X")}
    starts, ends = (
        {event["id"]: slices[event["pid"], event["tid"], event["ts"]] for event in events(trace, phase)}
        for phase in "sf"
    )
    assert starts.keys() == ends.keys()
    assert {starts[flow].removeprefix("send_") == ends[flow].removeprefix("recv_") for flow in starts} == {
        True
    }


def test_counter_is_one_series_per_rank(path):
    trace = written_trace(timeline_from_text("F0 F1 B0 B1"), path)
    assert [(event["pid"], event["ts"], event["args"]) for event in events(trace, "C")] == [
        (0, 0.0, {"in flight": 1}), (0, 1.0, {"in flight": 2}), (0, 3.0, {"in flight": 1}), (0, 4.0, {"in flight": 0}),
    ]  # fmt: skip


def test_recorded_counters_are_named_with_their_unit(path):
    trace = written_trace(awkward_timeline(), path)
    named = [(event["pid"], event["name"], event["args"]) for event in events(trace, "C") if event["pid"] > 3]
    named.sort(key=lambda event: event[:2])
    assert [event for event in named if event[1] != "micro-batches"] == [
        (4, "allocated memory", {"B": 2**53 - 1}),
        (4, 'clock "MHz"', {"value": 1980.5}),
        (5, "allocated memory", {"B": 0}),
        (7, "allocated memory", {"B": 2**40}),
    ]


def test_empty_timeline_is_a_valid_trace(path):
    trace = written_trace(empty_timeline(), path)
    assert [event["args"] for event in trace["traceEvents"]] == [{"name": "run"}, {"sort_index": 0}]


def test_process_labels_state_how_well_each_clock_is_aligned(path):
    errors_ns = {"a": (0, 0), "b": (-1_500, 2_500), "c": None}
    timeline = on_machines(timeline_from_text("F0\nF0\nF0"), {0: "a", 1: "b", 2: "c"}, errors_ns)
    trace = written_trace(timeline, path)
    labels = {e["pid"]: e["args"]["labels"] for e in events(trace, "M") if e["name"] == "process_labels"}
    assert labels == {
        0: "the reference clock",
        1: "aligned, error between -1.500 µs and +2.500 µs",
        2: "not aligned with the other machines: its clock offset is unknown",
    }
    clocks = trace["otherData"]["clocks"]
    assert [(c["machine"], c["error_lo_ns"], c["error_hi_ns"]) for c in clocks] == [
        ("a", "0", "0"),
        ("b", "-1500", "2500"),
        ("c", None, None),
    ]


def test_a_trace_of_one_clock_has_no_clock_labels(path):
    trace = written_trace(timeline_from_text("F0"), path)
    assert "clocks" not in trace["otherData"]
    assert "process_labels" not in {event["name"] for event in events(trace, "M")}
