"""Decoding events into one type per category."""

import json

import msgspec
import pytest

from ingest.kineto.planted_traces import event, mark, operator, write_trace
from stagescope.ingest.kineto import event_types
from stagescope.ingest.kineto.event_types import EventDecoder, TraceEvent
from stagescope.ingest.kineto.tables import read_tables
from stagescope.ingest.trace_json import trace_events

FLOW = {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "id": 3, "ts": 1.0, "tid": 1}
EVENTS = [
    {"ph": "M", "name": "process_name", "args": {"name": "python"}},
    operator("aten::linear", 0, 50),
    operator("aten::mm", 10, 49),
    {**operator("record_param_comms", 50, 51), "args": {"Seq": 4, "External id": 7}},
    event("python_function", "train.py(3): step", 0, 90),
    FLOW,
    event("cuda_runtime", "cudaLaunchKernel", 1, 2, correlation=7),
    event("kernel", "gemm", 5, 9, correlation=7),
    event("a_category_of_the_future", "new", 5, 9),
    mark("PP:0F0", 0, 99),
]


def text(events):
    return json.dumps(events).encode()


def test_fields_that_nothing_needs_are_not_decoded_once_names_and_categories_are_known():
    decoder = EventDecoder()
    decoder.decode(text(EVENTS))
    found = decoder.decode(text(EVENTS[1:]))
    assert TraceEvent not in map(type, found)
    assert [one.cat for one in found] == [one["cat"] for one in EVENTS[1:]]
    first, second, call, python, flow, launch, kernel, future, annotation = found
    assert (first.name, first.ts, first.dur) == ("aten::linear", EVENTS[1]["ts"], EVENTS[1]["dur"])
    assert first.name is decoder.decode(text(EVENTS[1:2]))[0].name
    assert (second.name, call.args.sequence, call.args.external) == ("aten::mm", 4, 7)
    assert python.__struct_fields__ == future.__struct_fields__ == ()
    assert (flow.ph, flow.id, launch.args.correlation, kernel.args.correlation) == ("s", 3, 7, 7)
    assert annotation.name == "PP:0F0"


@pytest.mark.parametrize(
    "odd",
    [
        {"ph": "X", "name": "without a category", "ts": 1, "dur": 1},
        operator("aten::new", 1, 2),
        {**event("kernel", "gemm", 5, 9), "args": [1]},
        {**event("cuda_runtime", "cudaLaunchKernel", 5, 9), "args": None},
        {},
    ],
)
def test_a_list_with_an_event_that_fits_no_type_is_decoded_with_all_fields(odd):
    decoder = EventDecoder()
    decoder.decode(text(EVENTS))
    assert set(map(type, decoder.decode(text([*EVENTS[1:], odd])))) == {TraceEvent}
    assert TraceEvent not in map(type, decoder.decode(text(EVENTS[1:])))


def test_types_that_fit_too_few_lists_are_given_up(monkeypatch):
    monkeypatch.setattr(event_types, "MOST_MISSES", 3)
    decoder = EventDecoder()
    for number in range(10):
        decoder.decode(text([operator(f"aten::op{number}", 1, 2)]))
    assert type(decoder.decode(text([operator("aten::op1", 1, 2)]))[0]) is TraceEvent


def test_names_and_categories_are_bounded(monkeypatch):
    monkeypatch.setattr(event_types, "MOST_NAMES", 2)
    monkeypatch.setattr(event_types, "MOST_CATEGORIES", len(event_types.FIELDS))
    decoder = EventDecoder()
    decoder.decode(text([operator(f"aten::op{number}", 1, 2) for number in range(3)]))
    decoder.decode(text([event("new", "new", 1, 2)]))
    assert type(decoder.decode(text([operator("aten::op1", 1, 2)]))[0]) is TraceEvent
    assert type(decoder.decode(text([event("new", "new", 1, 2)]))[0]) is TraceEvent


@pytest.mark.parametrize("skipped", ["1.2.3", "01", "{]", '"open', "tru", "-"])
def test_invalid_json_in_fields_that_are_skipped_is_refused(skipped):
    decoder = EventDecoder()
    decoder.decode(text(EVENTS))
    broken = text(EVENTS[1:]).replace(b'"pid":', b'"pid": ' + skipped.encode() + b', "was":')
    assert b'"was"' in broken
    with pytest.raises(msgspec.DecodeError):
        decoder.decode(broken)


@pytest.mark.parametrize("piece_bytes", [300, 1 << 19])
def test_tables_do_not_depend_on_what_was_decoded_before(tmp_path, monkeypatch, piece_bytes):
    events = [*EVENTS, operator("aten::mm", 60, 61), *EVENTS[1:7]]
    whole = read_tables(write_trace(tmp_path / "rank0.json", events)).tables
    monkeypatch.setattr(trace_events, "PIECE_BYTES", piece_bytes)
    in_pieces = read_tables(write_trace(tmp_path / "rank0.json", events)).tables
    assert {name: table.to_dicts() for name, table in in_pieces.items()} == {
        name: table.to_dicts() for name, table in whole.items()
    }
    assert whole["operators"].height
    assert whole["calls"]["sequence"].to_list() == [4, 4]


def test_operators_are_not_nested_in_one_with_an_impossible_time(tmp_path):
    events = [
        {**operator("aten::far", 0, 1), "ts": -1e300, "dur": 2e300},
        operator("aten::mm", 10, 20),
        operator("aten::t", 11, 12),
    ]
    read = read_tables(write_trace(tmp_path / "rank0.json", events))
    assert read.tables["operators"].height == 1
    assert [(note.code, note.count) for note in read.diagnostics] == [("events.out_of_range", 1)]
