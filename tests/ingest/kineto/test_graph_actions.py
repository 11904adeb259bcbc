"""Actions inside CUDA graphs: the host has one launch, and the kernels carry the names of their actions.

No such trace is public. The events have the fields that torch.cuda._annotate_cuda_graph_trace reads and writes: `graph
node id` and the fields of the annotations in the arguments of kernels, and one correlation id per launch.
"""

import json

import polars as pl
import pytest

import stagescope
from ingest.kineto.planted_traces import BASE_NS, event, mark, write_trace

SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
MESSAGE = {"Collective name": "send", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "BFloat16",
           "Src Rank": 0, "Dst Rank": 1}  # fmt: skip


def launch(correlation, at_us):
    return event("cuda_runtime", "cudaGraphLaunch", at_us, at_us + 5, correlation=correlation)


def kernel(correlation, node, start_us, end_us, annotation=None, *, title="sm90_gemm", stream=7, **more):
    found = event("kernel", title, start_us, end_us, stream, correlation=correlation, stream=stream, **more)
    found["args"] |= {"graph id": 3, "graph node id": node}
    found["args"] |= {} if annotation is None else {"name": annotation}
    return found


def replay(correlation, at_us):
    """Return the kernels of one replay of a captured step of stage 0: two micro-batches."""
    return [
        launch(correlation, at_us),
        kernel(correlation, 1, at_us + 100, at_us + 140, "PP:0F0"),
        kernel(correlation, 2, at_us + 150, at_us + 200, "PP:0F0"),
        kernel(
            correlation, 3, at_us + 200, at_us + 230, "PP:0SEND_F0", title=SEND_RECV, stream=20, **MESSAGE
        ),
        kernel(correlation, 4, at_us + 205, at_us + 300, "PP:0F1"),
        kernel(correlation, 5, at_us + 300, at_us + 320),
        kernel(correlation, 6, at_us + 400, at_us + 600, "PP:0B0"),
        kernel(correlation, 7, at_us + 600, at_us + 800, "PP:0B1"),
    ]


EXPECTED = [
    ("forward", 0, 100, 200),
    ("forward", 1, 205, 300),
    ("backward", 0, 400, 600),
    ("backward", 1, 600, 800),
]


def read(tmp_path, events, **options):
    return stagescope.read(write_trace(tmp_path / "rank0.json", events), **options)


def actions(timeline, step):
    rows = timeline.spans.filter((pl.col("step") == step) & (pl.col("lane") == "compute"))
    return rows.select(pl.col("kind").cast(pl.String), "microbatch", "start_ns", "end_ns").rows()


def expected(at_us):
    ns = BASE_NS + at_us * 1000
    return [
        (kind, microbatch, ns + 1000 * start, ns + 1000 * end) for kind, microbatch, start, end in EXPECTED
    ]


@pytest.mark.parametrize("marked", [False, True])
def test_kernels_of_one_name_and_launch_are_one_action_at_device_times(tmp_path, marked):
    # The device is late: the second step runs after the marks of both steps have closed on the host.
    marks = [mark("ProfilerStep#0", 0, 40), mark("ProfilerStep#1", 40, 90)] if marked else []
    first, second = replay(1, 10), replay(2, 1010)
    if marked:
        second[0] = launch(2, 50)
    timeline = read(tmp_path, marks + first + second)
    assert actions(timeline, 0) == expected(10)
    assert actions(timeline, 1) == expected(1010)
    assert timeline.spans["stage"].unique().to_list() == [0]
    assert "actions.in_graphs" in timeline.diagnostics["code"].to_list()


def test_transfers_in_a_graph_have_peer_and_size(tmp_path):
    sent = read(tmp_path, replay(1, 10)).spans.filter(pl.col("kind") == "send_forward")
    assert sent.select("step", "microbatch", "peer", "bytes", "start_ns").rows() == [
        (0, 0, 1, 2000, BASE_NS + 210_000)
    ]


def test_an_overlapped_pair_is_two_actions_at_the_same_time(tmp_path):
    events = [*replay(1, 10), kernel(1, 8, 900, 950, "PP:(0F2;0B3)OVERLAP_F_B")]
    pair = read(tmp_path, events).spans.filter(pl.col("pair").is_not_null())
    assert pair.select(pl.col("kind").cast(pl.String), "microbatch").rows() == [
        ("forward", 2),
        ("backward", 3),
    ]
    assert pair["start_ns"].n_unique() == 1


def test_one_graph_per_action_is_read_alike(tmp_path):
    events = []
    for number, (letter, (_, microbatch, start, end)) in enumerate(zip("FFBB", EXPECTED, strict=True)):
        events += [launch(number + 1, number), kernel(number + 1, 9, start, end, f"PP:0{letter}{microbatch}")]
    assert actions(read(tmp_path, events), 0) == expected(0)


def test_kernels_on_request_belong_to_the_action_that_they_name(tmp_path):
    kernels = read(tmp_path, replay(1, 10), kernels=True).kernels.sort("start_ns")
    named = kernels.select(pl.col("kind").cast(pl.String), "microbatch").rows()
    assert named[:2] == [("forward", 0), ("forward", 0)]
    assert named[3] == ("forward", 1)
    assert named[4] == (None, None)


def test_names_that_are_no_actions_are_refused_in_one_sentence(tmp_path):
    events = [launch(1, 0), kernel(1, 1, 10, 20, "layers.0.attention"), kernel(1, 2, 20, 30, json.dumps([1]))]
    with pytest.raises(stagescope.InputError, match="no pipeline action"):
        read(tmp_path, events)
