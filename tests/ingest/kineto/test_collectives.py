"""Numbered collectives of NCCL: planted traces with the arguments of torch 2.13 (kineto#1294)."""

import json

import polars as pl
import pytest
from tests.ingest.kineto.planted_traces import BASE_NS

import stagescope
from stagescope.exporters.originals.collective_flows import with_collective_flows
from stagescope.exporters.tracks import lay_out
from stagescope.model.collectives import find_collectives

AHEAD_NS = 3_000_000
KERNEL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
STEP_US = 10_000.0
SOONEST_US = 400.0


def event(category, name, start_us, dur_us, tid=1, **arguments):
    return {
        "ph": "X", "cat": category, "name": name, "pid": 0, "tid": tid, "ts": start_us, "dur": dur_us,
        "args": arguments,
    }  # fmt: skip


def group_of(name="7", purpose="mesh_dp", ranks="[0, 1]", **more):
    return {
        "Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "BFloat16",
        "Process Group Name": name, "Process Group Description": purpose, "Process Group Ranks": ranks, **more,
    }  # fmt: skip


def launched(correlation, at_us, name, start_us, end_us, stream=7, **arguments):  # noqa: PLR0917 - as in the trace
    call = event("cuda_runtime", "cudaLaunchKernel", at_us, 2.0, correlation=correlation)
    args = {"correlation": correlation, **arguments}
    return [call, event("kernel", name, start_us, end_us - start_us, stream, **args)]


def step_events(step, arrives_us, ends_us, **stated):
    """Return a forward, a backward and an all-reduce, during whose first 50 us another kernel computes."""
    at, number = step * STEP_US, 100 * step
    return [
        event("user_annotation", f"ProfilerStep#{step}", at, 900.0),
        event("user_annotation", "PP:0F0", at, 20.0),
        *launched(number + 1, at + 5, "sm90_xmma_gemm", at + 50, at + 100),
        event("user_annotation", "PP:0B0", at + 30, 20.0),
        *launched(number + 2, at + 35, "sm90_xmma_gemm", at + 100, at + 300),
        *launched(number + 3, at + 60, KERNEL, at + arrives_us, at + ends_us, 20, **stated),
        *launched(number + 4, at + 70, "elementwise_kernel", at + arrives_us, at + arrives_us + 50),
        *launched(number + 5, at + 80, "Memcpy DtoD", at + arrives_us, at + ends_us),
    ]


def write(path, rank, events, **header):
    facts = {"rank": rank, "world_size": 2, "pg_config": []}
    known = {"schemaVersion": 1, "distributedInfo": facts, "host_name": f"host {rank}", **header}
    text = json.dumps({"baseTimeNanoseconds": BASE_NS, **known, "traceEvents": events})
    (path / f"rank{rank}.json").write_text(text, encoding="utf-8")


def plant(path, stated=lambda step: group_of(Seq=40 + step), steps=range(6), base_ns=(0, 0)):
    """Write two replicas; in odd steps rank 1 comes 100 us after rank 0, in even ones rank 0 after rank 1."""
    for rank in range(2):
        late = [rank == step % 2 for step in steps]
        events = [
            each
            for step, is_late in zip(steps, late, strict=True)
            for each in step_events(step, SOONEST_US + 100 * is_late, SOONEST_US + 150 + rank, **stated(step))
        ]
        write(path, rank, events, baseTimeNanoseconds=BASE_NS + base_ns[rank])
    return path


@pytest.fixture
def timeline(tmp_path):
    return stagescope.read(plant(tmp_path), align=False)


def test_collectives_are_matched_by_group_and_number(timeline):
    found = find_collectives(timeline.spans, timeline.ranks)
    assert found["group"].unique().to_list() == ["mesh_dp 0,1 (7)"]
    assert found["sequence"].to_list() == [number for number in range(40, 46) for _ in range(2)]
    assert found.select("operation", "group_kind", "bytes", "ranks").unique().rows() == [
        ("all_reduce", "dp", 2000, 2)
    ]
    assert found["last_rank"].gather_every(2).to_list() == [0, 1, 0, 1, 0, 1]
    assert found["late_ns"].unique().to_list() == [100_000]
    assert found["step"].gather_every(2).to_list() == list(range(6))


def test_a_collective_is_exposed_after_the_last_kernel_that_computes_beside_it(timeline):
    found = find_collectives(timeline.spans, timeline.ranks).filter(sequence=40).sort("rank")
    # Rank 0 comes last, 500 to 550 us, and computes all that time; rank 1 waits from 450 us to the end at 551.
    assert found["exposed_ns"].to_list() == [0, 101_000]
    assert found["arrival_wait_ns"].to_list() == [0, 50_000]


def test_clocks_of_two_machines_are_aligned_from_numbered_collectives(tmp_path):
    aligned = stagescope.read(plant(tmp_path, base_ns=(0, AHEAD_NS)))
    found = aligned.spans.filter(pl.col("kind") == "forward").sort("step", "rank")["start_ns"].to_numpy()
    apart_ns = found[1::2] - found[::2]
    assert abs(apart_ns).max() < 5_000
    assert aligned.diagnostics["code"].to_list().count("clock.aligned") == 1


def test_the_call_states_the_number_that_its_kernel_lacks(tmp_path):
    plant(tmp_path, lambda step: {**group_of(), "External id": 1000 + step})
    for rank in range(2):
        path = tmp_path / f"rank{rank}.json"
        trace = json.loads(path.read_text(encoding="utf-8"))
        trace["traceEvents"] += [
            event("cpu_op", "record_param_comms", step * STEP_US + 59, 5.0, **group_of(Seq=7 + step),
                  **{"External id": 1000 + step})
            for step in range(6)
        ]  # fmt: skip
        path.write_text(json.dumps(trace), encoding="utf-8")
    found = stagescope.read(tmp_path, align=False).spans.filter(pl.col("kind") == "collective")
    assert sorted(found["pair"]) == sorted([*range(7, 13)] * 2)


def test_collectives_without_a_number_or_a_group_are_left_out(tmp_path):
    plant(tmp_path, lambda step: group_of() if step % 2 else {"Collective name": "allreduce", "Seq": 3})
    spans = stagescope.read(tmp_path, align=False).spans
    assert "collective" not in spans["kind"]


def test_sends_and_receives_are_not_matched_by_their_numbers(tmp_path):
    plant(
        tmp_path, lambda step: {**group_of(Seq=step), "Collective name": "send", "Src Rank": 0, "Dst Rank": 1}
    )
    assert "collective" not in stagescope.read(tmp_path, align=False).spans["kind"]


def test_ranks_of_a_group_come_from_the_header_if_arguments_list_only_some(tmp_path):
    listed = group_of(ranks="[0, ..., 1]", purpose="undefined", Seq=3)
    write(tmp_path, 0, step_events(0, 400, 500, **listed), distributedInfo={
        "rank": 0, "world_size": 1, "pg_config": [{"pg_name": "7", "ranks": list(range(40))}, {"pg_name": 4}, None],
    })  # fmt: skip
    spans = stagescope.read(tmp_path, align=False).spans
    assert spans.filter(pl.col("kind") == "collective")["name"].to_list() == ["all_reduce in 0-39 (7)"]


def test_a_coalesced_batch_is_one_collective(tmp_path):
    events = step_events(0, 400, 450, **group_of(Seq=3))
    events += launched(50, 62, KERNEL, 460, 500, 20, **group_of(Seq=3))
    write(tmp_path, 0, events)
    found = find_collectives(stagescope.read(tmp_path, align=False).spans)
    assert found.select("bytes", "start_ns", "end_ns").rows() == [
        (4000, BASE_NS + 400_000, BASE_NS + 500_000)
    ]


def test_a_gradient_reduction_is_the_collectives_of_its_annotation(tmp_path):
    events = [
        *step_events(0, 400, 500, **group_of(Seq=3)),
        event("user_annotation", "PP:0REDUCE_GRAD", 55, 12),
    ]
    write(tmp_path, 0, events)
    spans = stagescope.read(tmp_path, align=False).spans
    reductions = spans.filter(pl.col("kind") == "grad_reduce")
    assert reductions.select("stage", "step", "lane", "name").rows() == [
        (0, 0, "comm", "all_reduce in mesh_dp 0,1 (7)")
    ]
    assert "host" not in spans["lane"]


def test_a_trace_that_ends_earlier_still_aligns(tmp_path):
    plant(tmp_path, base_ns=(0, AHEAD_NS))
    path = tmp_path / "rank1.json"
    trace = json.loads(path.read_text(encoding="utf-8"))
    trace["traceEvents"] = [
        each for each in trace["traceEvents"] if each["args"].get("Seq") != 45 or each["cat"] != "kernel"
    ]
    path.write_text(json.dumps(trace), encoding="utf-8")
    timeline = stagescope.read(tmp_path)
    codes = timeline.diagnostics["code"].to_list()
    assert "collectives.window" in codes
    assert "clock.collectives" not in codes


def test_merged_traces_have_an_arrow_for_each_collective(timeline):
    layout = lay_out(timeline)
    flows, added = with_collective_flows(layout.slices, layout.flows)
    assert added == 6
    assert flows.height == layout.flows.height + 6
