"""Reading a trace into tables."""

import json

import pytest

from ingest.kineto.planted_traces import BASE_NS, event, mark, operator, tables_of, write_trace
from stagescope.ingest.annotations.kernel_classes import (
    COLLECTIVE_KERNEL,
    COMPUTE_KERNEL,
    TRANSFER_KERNEL,
    kernel_class,
)
from stagescope.ingest.kineto.arguments import Arguments, message_facts
from stagescope.ingest.kineto.tables import TABLES, read_tables
from stagescope.ingest.trace_json import trace_events


def test_times_are_nanoseconds_since_the_epoch(tmp_path):
    tables = tables_of(tmp_path, [mark("PP:0F0", 4420686983111.263, 4420686983111.263 + 0.818)])
    (row,) = tables["annotations"].to_dicts()
    assert row["start_ns"] - BASE_NS == pytest.approx(4420686983111263, rel=0, abs=1)
    assert row["end_ns"] - row["start_ns"] == pytest.approx(818, abs=2)


def test_a_trace_without_a_base_time_counts_from_the_epoch(tmp_path):
    path = tmp_path / "rank0.json"
    slices = [mark("a", 1683564901552104, 1683564901552114), mark("b", 1683564901552114, 1683564901552115)]
    path.write_text(json.dumps({"traceEvents": slices}))
    found = read_tables(path).tables["annotations"].select("start_ns", "end_ns").rows()
    assert found == [(1683564901552104000, 1683564901552114000), (1683564901552114000, 1683564901552115000)]


@pytest.mark.parametrize("piece_bytes", [64, 1 << 19])
def test_nested_operators_are_dropped_for_any_piece_size(tmp_path, monkeypatch, piece_bytes):
    monkeypatch.setattr(trace_events, "PIECE_BYTES", piece_bytes)
    events = [
        operator("aten::linear", 0, 50),
        operator("aten::t", 1, 9),
        operator("aten::mm", 10, 49, tid=2),
        operator("c10d::send", 11, 12),
        operator("aten::add", 60, 70),
    ]
    kept = tables_of(tmp_path, events)["operators"]
    assert ((kept["start_ns"] - BASE_NS) // 1000).to_list() == [0, 10, 11, 60]


def test_every_table_has_its_columns_for_any_trace(tmp_path):
    for events in ([], [{}], [{"ph": "X", "cat": "cpu_op"}], [{"cat": "fwdbwd", "id": "a"}]):
        tables = tables_of(tmp_path, events)
        assert {name: list(table.columns) for name, table in tables.items()} == {
            name: list(columns) for name, columns in TABLES.items()
        }


def test_events_with_impossible_timestamps_are_counted(tmp_path):
    path = write_trace(tmp_path / "rank0.json", [mark("PP:0F0", 1e300, 1e300), mark("PP:0F1", 1, 2)])
    read = read_tables(path)
    assert read.tables["annotations"]["name"].to_list() == ["PP:0F1"]
    (note,) = read.diagnostics
    assert (note.severity, note.count) == ("error", 1)


def test_launches_and_kernels_have_correlation_ids(tmp_path):
    events = [
        event("cuda_runtime", "cudaLaunchKernel", 0, 1, correlation=7),
        event("cuda_driver", "cuLaunchKernel", 1, 2, correlation="x"),
        event("kernel", "gemm", 5, 9, correlation=7),
    ]
    tables = tables_of(tmp_path, events)
    assert tables["launches"]["correlation"].to_list() == [7, -1]
    assert tables["kernels"].select("correlation", "what").rows() == [(7, COMPUTE_KERNEL)]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", TRANSFER_KERNEL),
        (
            "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
            TRANSFER_KERNEL,
        ),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", COLLECTIVE_KERNEL),
        ("void nccl_something", COLLECTIVE_KERNEL),
        ("sm90_gemm", COMPUTE_KERNEL),
    ],
)
def test_kernels_are_classified_by_name(name, what):
    assert kernel_class(name) == what


UNNUMBERED = dict.fromkeys(("external", "sequence", "group", "purpose", "members"))


def test_the_size_of_a_message_needs_a_known_element_type():
    known = message_facts(Arguments(1, "send", 10, 12, "BFloat16", 0, 1))
    assert known == {
        "correlation": 1,
        "collective": "send",
        "source": 0,
        "target": 1,
        "bytes": 24,
        "annotation": None,
        **UNNUMBERED,
    }
    assert message_facts(Arguments(1, "send", 10, 12, "Quaternion"))["bytes"] is None
    assert message_facts(Arguments(1, "send", "ten", None, "Float", 2**40, "x")) == {
        "correlation": 1, "collective": "send", "source": None, "target": None, "bytes": None,
        "annotation": None, **UNNUMBERED,
    }  # fmt: skip


def test_the_header_is_unchanged(tmp_path):
    facts = read_tables(write_trace(tmp_path / "rank0.json", [])).facts
    assert json.loads((tmp_path / "rank0.json").read_text())["distributedInfo"] == facts["distributedInfo"]
