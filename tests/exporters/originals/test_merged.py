"""Merged traces: every event of all originals, as trace_processor counts them, on the aligned clock."""

import json

import numpy as np
import polars as pl
import pytest
from tests.exporters.originals.planted import RANKS, RECORDED, plant, recorded
from tests.ingest.kineto.test_kernels import event, launched, trace

import stagescope
from consumers import query_trace
from stagescope.clocks import align_clocks
from stagescope.exporters.originals.annotations import annotation_fields
from stagescope.exporters.originals.collective_flows import with_collective_flows
from stagescope.exporters.originals.corrections import RankClock, rank_clocks
from stagescope.exporters.originals.events import _fit

ORIGINAL_SLICES, ORIGINAL_FLOWS, MESSAGES = 8371, 504, 96
BAD = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


def originals():
    return [recorded(rank)["traceEvents"] for rank in RANKS]


@pytest.mark.parametrize("name", ["merged-chrome", "merged-pftrace"])
def test_trace_processor_counts_every_slice_and_arrow(tmp_path, name):
    written = stagescope.export(stagescope.read(RECORDED), tmp_path / "run", format=name)
    events = originals()
    assert sum(each["ph"] == "X" for own in events for each in own) == ORIGINAL_SLICES
    assert sum(each["ph"] == "f" for own in events for each in own) == ORIGINAL_FLOWS
    slices, flows, bad, operators = query_trace(
        tmp_path / "run",
        "select count(*) from slice",
        "select count(*) from flow",
        BAD,
        "select count(*) from slice where name = 'aten::linear'",
    )
    assert slices == [(str(written.slice_count),)] == [("8888",)]
    assert flows == [(str(written.flow_count),)] == [(str(MESSAGES + ORIGINAL_FLOWS),)]
    assert bad == []
    named = sum(each.get("name") == "aten::linear" for own in events for each in own)
    assert operators == [(str(named),)]


def test_times_of_slices_are_corrected_one_by_one(tmp_path):
    plant(tmp_path, drift_ppm=500.0)
    timeline = stagescope.read(tmp_path)
    stagescope.export(timeline, tmp_path / "run.out", format="merged-chrome")
    merged = json.loads((tmp_path / "run.out").read_text(encoding="utf-8"))
    origin_ns = int(merged["otherData"]["epoch_ns_at_ts_0"])
    clocks = rank_clocks(timeline)
    processes = {
        each["pid"]: each["args"]["name"] for each in merged["traceEvents"] if each["name"] == "process_name"
    }
    for rank in RANKS:
        own = json.loads((tmp_path / f"rank{rank}.json").read_text(encoding="utf-8"))
        starts = sorted(each["ts"] for each in own["traceEvents"] if each["name"] == "aten::linear")
        raw_ns = own["baseTimeNanoseconds"] + np.rint(np.array(starts) * 1000).astype(np.int64)
        expected = (clocks[rank].at(raw_ns) - origin_ns).tolist()
        found = sorted(
            round(each["ts"] * 1000)
            for each in merged["traceEvents"]
            if each["name"] == "aten::linear" and processes[each["pid"]].startswith(f"rank {rank}:")
        )
        assert found == pytest.approx(expected, abs=1)


def test_corrections_are_those_of_the_alignment(tmp_path):
    raw = stagescope.read(plant(tmp_path, drift_ppm=500.0), align=False)
    aligned = align_clocks(raw).timeline
    for rank, clock in rank_clocks(aligned).items():
        own, moved = (each.spans.filter(pl.col("rank") == rank)["start_ns"] for each in (raw, aligned))
        assert np.abs(clock.at(own.to_numpy()) - moved.to_numpy()).max() <= 1


def test_a_fixed_offset_is_the_middle_of_the_correction():
    clock = RankClock(np.array([0, 1000]), np.array([10, 10]), np.array([0.0, 0.1]))
    assert clock.fixed_offset(0, 2000) == (60, 50)
    assert clock.fixed_offset(0, 500) == (10, 0)


def test_kernels_streams_counters_and_launch_arrows_are_merged(tmp_path):
    events = [
        event("user_annotation", "PP:0F0", 0.0, 20.0),
        *launched(1, 5.0, "sm90_xmma_gemm", 100.5, 30.0),
        *launched(2, 6.0, "overlapping", 110.0, 90.0),
        {"ph": "s", "id": 1, "pid": 0, "tid": 1, "ts": 5.0, "cat": "ac2g", "name": "ac2g"},
        {"ph": "f", "id": 1, "pid": 0, "tid": 7, "ts": 100.5, "cat": "ac2g", "name": "ac2g", "bp": "e"},
        {"ph": "M", "pid": 0, "tid": 7, "name": "thread_name", "args": {"name": "stream 7"}},
        {"ph": "C", "pid": 0, "ts": 3.0, "name": "GPU 0 Memory", "args": {"bytes": 12}},
        event("user_annotation", "early", -50.0, 1.0),
    ]
    trace(tmp_path / "rank0.json", events=events)
    for name in ("merged-chrome", "merged-pftrace"):
        stagescope.export(stagescope.read(tmp_path / "rank0.json"), tmp_path / name, format=name)
        kernels, flows, counters, bad = query_trace(
            tmp_path / name,
            "select name, dur from slice where name in ('sm90_xmma_gemm', 'overlapping', 'early') order by name",
            "select a.name, b.name from flow join slice a on a.id = slice_out join slice b on b.id = slice_in",
            "select value from counter join counter_track t on t.id = track_id where t.name like 'GPU 0 Memory%'",
            BAD,
        )
        assert kernels == [("early", "1000"), ("overlapping", "90000"), ("sm90_xmma_gemm", "30000")]
        assert flows == [("cudaLaunchKernel", "sm90_xmma_gemm")]
        assert counters == [(12,)]
        assert bad == []


def test_arguments_are_kept_as_they_are(tmp_path):
    given = {
        "External id": 7, "whole": -3, "large": 2**63, "part": 0.25, "is": True, "text": "ncclKernel é",
        "dims": [[2, 3], []], "at": {"line": 4, "file": "a.py"}, "nothing": None,
    }  # fmt: skip
    events = [
        event("user_annotation", "PP:0F0", 0.0, 20.0),
        event("cpu_op", "aten::mm", 1.0, 2.0) | {"args": given},
    ]
    trace(tmp_path / "rank0.json", events=events)
    stagescope.export(stagescope.read(tmp_path / "rank0.json"), tmp_path / "run", format="merged-pftrace")
    rows, bad = query_trace(
        tmp_path / "run",
        "select flat_key, key, coalesce(int_value, real_value, string_value) from args"
        " where arg_set_id = (select arg_set_id from slice where name = 'aten::mm') and key like 'debug.%'",
        BAD,
    )
    found = {key: str(value) for _, key, value in rows}
    assert found.pop("debug.large") in {str(2**63), str(-(2**63))}  # SQLite has no larger integers
    assert found == {
        "debug.External id": "7", "debug.whole": "-3", "debug.part": "0.25", "debug.is": "1",
        "debug.text": "ncclKernel é", "debug.dims[0][0]": "2", "debug.dims[0][1]": "3", "debug.at.line": "4",
        "debug.at.file": "a.py",
    }  # fmt: skip
    assert bad == []


def test_arguments_that_are_no_object_or_too_deep_are_written_without_failing():
    deep = b"[" * 40 + b"]" * 40
    assert annotation_fields(b"[1]", len) == annotation_fields(b"{", len) == b""
    assert b"[[" in annotation_fields(b'{"a":' + deep + b"}", lambda key: 1)


def test_slices_that_do_not_nest_get_a_lane_and_rounding_is_trimmed():
    lanes = []
    fitted = [
        _fit(lanes, *times) for times in ((0, 10_000), (5_000, 10_500), (6_000, 20_000), (20_000, 21_000))
    ]
    assert fitted == [(0, 10_000), (0, 10_000), (1, 20_000), (0, 21_000)]


def test_collectives_are_joined_by_group_and_number():
    slices = pl.DataFrame(
        {
            "rank": [0, 1, 2, 0, 0, 1],
            "kind": ["collective"] * 6,
            "is_wait": [False] * 6,
            "name": ["all_reduce in dp (0)"] * 3 + ["barrier in dp (0)"] * 3,
            "step": [0] * 6,
            "pair": [4, 4, 4, 5, 5, 5],
            "start_ns": [30, 10, 20, 1, 2, 3],
        }
    )
    nothing = pl.DataFrame(schema={"send": pl.UInt32, "recv": pl.UInt32})
    flows, count = with_collective_flows(slices, nothing)
    # The first rank to call it has an arrow to every other one; rank 0 called the barrier twice under one number.
    assert flows.rows() == [(1, 2), (1, 0)]
    assert count == 2
