"""Merged traces of torchtitan, in the structure of its compact_cuda_graph_trace.py (pytorch/torchtitan at 2054a2d).

No merged trace is public; the structure is that of the tool's own tests.
"""

import json

import polars as pl
import pytest

import stagescope
from delayed_runs import run
from stagescope.ingest.chrome.reader import READER as CHROME
from stagescope.ingest.kineto.reader import READER as KINETO
from stagescope.schedules import order

LETTERS = {"forward": "F", "backward": "B"}
SENDS = {
    "send_forward": "SEND_F",
    "recv_forward": "RECV_F",
    "send_backward": "SEND_B",
    "recv_backward": "RECV_B",
}
GLOBAL_RANKS = (0, 4)
BASE_NS = 1_700_000_000_000_000_000


def trained():
    words = {
        rank: [str(action) for action in row] for rank, row in order("1f1b", ranks=2, microbatches=4).items()
    }
    return run(words, lambda part, _: 20_000 if part.kind == "B" else 10_000, steps=3, hop_ns=1_000)


def annotation(span, pid, tid, start_ns, end_ns):
    name = f"PP:{span['stage']}{ {**LETTERS, **SENDS}[span['kind']] }{span['microbatch']}"
    return {
        "ph": "X", "cat": "gpu_user_annotation", "name": name, "pid": pid, "tid": tid,
        "ts": start_ns / 1000, "dur": (end_ns - start_ns) / 1000,
    }  # fmt: skip


def merged(timeline):
    """Return the events of a merged trace; every second backward has kernels without annotation inside."""
    events = []
    for span in timeline.spans.iter_rows(named=True):
        pid, start, end = span["rank"] * 2 + 2, span["start_ns"], span["end_ns"]
        is_action = span["kind"] in LETTERS
        tid = 5000 if is_action else 5001
        if is_action and span["microbatch"] % 2:
            middle = (start + end) // 2
            events += [
                annotation(span, pid, tid, start, middle - 100),
                annotation(span, pid, tid, middle, end),
            ]
            events.append({**annotation(span, pid, 5002, start + 10, end - 10)})  # a second compute lane
        else:
            events.append(annotation(span, pid, tid, start, end))
        events.append({**events[-1], "cat": "kernel", "name": "gemm", "args": {"name": events[-1]["name"]}})
    for rank, of_world in enumerate(GLOBAL_RANKS):
        names = {5000: "Compute 1 annotations", 5001: "NCCL other annotations", 5002: "Compute 2 annotations"}
        for tid, name in names.items():
            of_thread = {"name": f"PP rank {rank} | {name}"}
            events.append(
                {"ph": "M", "name": "thread_name", "pid": rank * 2 + 2, "tid": tid, "args": of_thread}
            )
        for pid, role in ((rank * 2 + 1, "process 77"), (rank * 2 + 2, "GPU")):
            of_process = {"name": f"PP rank {rank} (global rank {of_world}) | {role}"}
            events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": of_process})
    return events


@pytest.fixture
def path(tmp_path):
    info = {"backend": "nccl", "ranks": list(GLOBAL_RANKS), "pp_rank_count": 2}
    path = tmp_path / "pp_traces_merged_compacted.json"
    facts = {"schemaVersion": 1, "deviceProperties": [{"name": "H100" * 2000}], "distributedInfo": info}
    facts |= {"baseTimeNanoseconds": BASE_NS, "traceEvents": merged(trained()), "cuda_graph_pp_merge": {}}
    path.write_text(json.dumps(facts))
    return path


def rows(timeline, ranks):
    columns = ["kind", "step", "stage", "microbatch", "peer", "start_ns", "end_ns"]
    of_world = dict(zip(ranks, GLOBAL_RANKS, strict=True))
    numbered = timeline.spans.with_columns(
        pl.col("rank", "peer").replace_strict(of_world, default=None, return_dtype=pl.Int32),
        kind=pl.col("kind").cast(pl.String),
    )
    return sorted(numbered.select("rank", *columns).rows(), key=str)


def test_every_action_and_transfer_of_all_ranks_is_recovered(path):
    expected = trained()
    read = stagescope.read(path)
    shifted = expected.spans.with_columns(pl.col("start_ns", "end_ns") + BASE_NS)
    assert rows(read, GLOBAL_RANKS) == rows(expected.with_spans(shifted), (0, 1))
    assert read.ranks.select("rank", "pp").rows() == [(0, 0), (4, 1)]


def test_the_reader_of_single_ranks_leaves_merged_traces_alone(path):
    head = path.read_bytes()[:4096]
    assert CHROME.recognizes(path, head)
    assert not KINETO.recognizes(path, head)
