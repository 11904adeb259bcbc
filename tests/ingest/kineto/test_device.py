"""Actions at device times: traces with planted kernels, with the fields of libkineto/src/output_json.cpp."""

import json

import polars as pl
import pytest

import stagescope

BASE_NS = 1_790_000_000_000_000_000


def event(category, name, start_us, dur_us, tid=1, **arguments):
    return {
        "ph": "X", "cat": category, "name": name, "pid": 0, "tid": tid, "ts": start_us, "dur": dur_us,
        "args": arguments,
    }  # fmt: skip


def launch(correlation, at_us, tid=1, name="cudaLaunchKernel"):
    return event("cuda_runtime", name, at_us, 2.0, tid, correlation=correlation)


def kernel(correlation, start_us, dur_us, name="sm90_gemm", stream=7, **arguments):
    return event(
        "kernel", name, start_us, dur_us, stream, correlation=correlation, stream=stream, **arguments
    )


EVENTS = [
    event("user_annotation", "PP:0F0", 0.0, 20.0),
    launch(1, 5.0),
    launch(2, 10.0),
    kernel(1, 100.5, 30.0),
    kernel(2, 140.0, 60.25),
    event("user_annotation", "PP:0SEND_F0", 20.0, 10.0),
    launch(3, 25.0, name="cudaLaunchKernelExC"),
    kernel(3, 201.0, 50.0, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 20, **{
        "Collective name": "send", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "BFloat16",
        "Group size": 2, "Src Rank": 0, "Dst Rank": 1,
    }),
    event("user_annotation", "PP:0B0", 40.0, 100.0),
    launch(4, 60.0, tid=9),
    kernel(4, 400.0, 100.0),
    kernel(4, 510.0, 10.0),
    event("gpu_user_annotation", "PP:0F0", 0.0, 1.0, 7),
    event("user_annotation", "PP:0REDUCE_GRAD", 150.0, 1.0),
]  # fmt: skip


@pytest.fixture
def timeline(tmp_path):
    path = tmp_path / "rank0.json"
    device = {"id": 0, "name": "NVIDIA H100 80GB HBM3"}
    info = {"rank": 0, "world_size": 1, "pg_config": []}
    header = {"schemaVersion": 1, "deviceProperties": [device], "distributedInfo": info, "host_name": "h"}
    path.write_text(
        json.dumps({**header, "baseTimeNanoseconds": BASE_NS, "traceEvents": EVENTS}), encoding="utf-8"
    )
    return stagescope.read(path)


def span(timeline, kind):
    (row,) = timeline.spans.filter(pl.col("kind") == kind).to_dicts()
    return row


def test_an_action_extends_from_its_first_kernel_to_its_last(timeline):
    forward = span(timeline, "forward")
    assert (forward["start_ns"] - BASE_NS, forward["end_ns"] - BASE_NS) == (100_500, 200_250)
    assert (forward["lane"], forward["stage"], forward["microbatch"]) == ("compute", 0, 0)


def test_kernels_launched_by_the_autograd_engine_or_a_graph_belong_to_the_waiting_action(timeline):
    backward = span(timeline, "backward")
    assert (backward["start_ns"] - BASE_NS, backward["end_ns"] - BASE_NS) == (400_000, 520_000)


def test_an_nccl_kernel_is_a_transfer_with_peer_and_size(timeline):
    sent = span(timeline, "send_forward")
    assert (sent["start_ns"] - BASE_NS, sent["end_ns"] - BASE_NS) == (201_000, 251_000)
    assert (sent["peer"], sent["bytes"], sent["lane"]) == (1, 2000, "comm")


def test_an_action_without_kernels_is_shown_at_host_times_and_counted(timeline):
    assert span(timeline, "grad_reduce")["lane"] == "host"
    assert "actions.on_host" in timeline.diagnostics["code"].to_list()
    assert timeline.ranks["device"].to_list() == ["NVIDIA H100 80GB HBM3"]


def test_without_launches_kinetos_projected_annotations_are_used(tmp_path):
    events = []
    for step, at in enumerate((0.0, 1000.0)):
        events += [
            event("user_annotation", "PP:0F0", at, 20.0),
            event("gpu_user_annotation", "PP:0F0", at + 100.0, 300.0, 7),
            event("gpu_user_annotation", "PP:0F0", at + 90.0, 5.0, 20),
            event("user_annotation", "PP:0B0", at + 30.0, 20.0),
            kernel(step, at + 100.0, 300.0),
        ]
    path = tmp_path / "rank0.json"
    header = {"schemaVersion": 1, "deviceProperties": [], "baseTimeNanoseconds": BASE_NS}
    path.write_text(json.dumps({**header, "traceEvents": events}), encoding="utf-8")
    spans = stagescope.read(path).spans
    forwards = spans.filter(pl.col("kind") == "forward").with_columns(pl.col("start_ns", "end_ns") - BASE_NS)
    assert forwards.select("lane", "start_ns", "end_ns").rows() == [
        ("compute", 100_000, 400_000), ("compute", 1_100_000, 1_400_000),
    ]  # fmt: skip
    assert spans.filter(pl.col("kind") == "backward")["lane"].unique().to_list() == ["host"]
