"""Kernels on request: planted traces with the fields of libkineto/src/output_json.cpp."""

import json

import polars as pl
import pytest

import stagescope
from stagescope.model import KERNELS

BASE_NS = 1_790_000_000_000_000_000
ALL_TO_ALL = {"Collective name": "all_to_allv", "In msg nelems": 10, "Out msg nelems": 10, "dtype": "Float"}


def event(category, name, start_us, dur_us, tid=1, **arguments):
    return {
        "ph": "X", "cat": category, "name": name, "pid": 0, "tid": tid, "ts": start_us, "dur": dur_us,
        "args": arguments,
    }  # fmt: skip


def launched(correlation, at_us, name, start_us, dur_us, stream=7, **arguments):  # noqa: PLR0917 - as in the trace
    call = event("cuda_runtime", "cudaLaunchKernel", at_us, 2.0, correlation=correlation)
    return [call, event("kernel", name, start_us, dur_us, stream, correlation=correlation, **arguments)]


EVENTS = [
    event("user_annotation", "PP:0F0", 0.0, 20.0),
    *launched(1, 5.0, "sm90_xmma_gemm", 100.5, 30.0),
    *launched(2, 10.0, "ncclDevKernel_SendRecv(...)", 120.0, 60.25, 20, **ALL_TO_ALL),
    event("user_annotation", "PP:0B0", 40.0, 100.0),
    *launched(4, 60.0, "sm90_xmma_gemm", 400.0, 100.0),
    *launched(5, 200.0, "ncclDevKernel_AllReduce_Sum_f32(...)", 600.0, 10.0, 20),
    event("kernel", "left_over", 90.0, 1.0, 7, correlation=99),
    event("gpu_memset", "Memset (Device)", 700.0, 1.0, 7, correlation=0),
]


def trace(path, rank=0, events=EVENTS):
    header = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 1}, "host_name": "h"}
    path.write_text(
        json.dumps({**header, "baseTimeNanoseconds": BASE_NS, "traceEvents": events}), encoding="utf-8"
    )
    return path


def test_kernels_are_read_only_on_request(tmp_path):
    assert stagescope.read(trace(tmp_path / "rank0.json")).kernels.equals(KERNELS.empty())


def test_every_kernel_has_its_category_and_the_action_that_launched_it(tmp_path):
    found = stagescope.read(trace(tmp_path / "rank0.json"), kernels=True).kernels
    assert found.select("stream", "category", "operation", "kind", "stage", "microbatch", "step").rows() == [
        (7, "other", None, None, None, None, None),
        (7, "gemm", None, "forward", 0, 0, 0),
        (20, "communication", "all_to_all", "forward", 0, 0, 0),
        (7, "gemm", None, "backward", 0, 0, 0),
        (20, "communication", "all_reduce", None, None, None, None),
        (7, "memcpy", None, None, None, None, None),
    ]
    first = found.row(1, named=True)
    assert (first["start_ns"] - BASE_NS, first["end_ns"] - BASE_NS) == (100_500, 130_500)


def test_spans_are_the_same_with_and_without_kernels(tmp_path):
    path = trace(tmp_path / "rank0.json")
    assert stagescope.read(path).spans.equals(stagescope.read(path, kernels=True).spans)


def test_kernels_of_two_windows_of_one_rank_keep_their_actions(tmp_path):
    trace(tmp_path / "rank0_a.json")
    later = [
        {**each, "ts": each["ts"] + 5000.0, "name": each["name"].replace("PP:0F0", "PP:0F3")}
        for each in EVENTS
    ]
    trace(
        tmp_path / "rank0_b.json", events=[event("user_annotation", "ProfilerStep#7", 4990.0, 900.0), *later]
    )
    found = stagescope.read(tmp_path, kernels=True).kernels
    of_forwards = found.filter(pl.col("kind") == "forward")
    assert of_forwards["microbatch"].to_list() == [0, 0, 3, 3]


def test_the_table_of_kernels_can_be_exported(tmp_path):
    timeline = stagescope.read(trace(tmp_path / "rank0.json"), kernels=True)
    stagescope.export(timeline, tmp_path / "kernels.parquet", table="kernels")
    assert pl.read_parquet(tmp_path / "kernels.parquet").equals(timeline.kernels)


@pytest.mark.parametrize("stream", ["stream 7", 2**63])
def test_a_stream_without_a_number_is_unknown(tmp_path, stream):
    events = [*EVENTS[:1], *launched(1, 5.0, "sm90_xmma_gemm", 100.5, 30.0, stream)]
    found = stagescope.read(trace(tmp_path / "rank0.json", events=events), kernels=True).kernels
    assert found["stream"].to_list() == [None]
