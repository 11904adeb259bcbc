"""Write traces like torch.profiler, with planted events and the fields of libkineto/src/output_json.cpp."""

from __future__ import annotations

import json

import polars as pl

from stagescope.ingest.kineto.tables import read_tables

BASE_NS = 1_790_000_000_000_000_000
MAIN, ENGINE = 1, 9
"""The training's thread, and a thread of the autograd engine."""


def event(category, name, start_us, end_us, tid=MAIN, **arguments):
    """Return one complete event."""
    return {
        "ph": "X", "cat": category, "name": name, "pid": 0, "tid": tid, "ts": start_us, "dur": end_us - start_us,
        "args": arguments,
    }  # fmt: skip


def mark(name, start_us, end_us):
    """Return an annotation."""
    return event("user_annotation", name, start_us, end_us)


def operator(name, start_us, end_us, tid=MAIN):
    """Return an operator."""
    return event("cpu_op", name, start_us, end_us, tid)


def backward_operator(start_us, end_us, tid=MAIN):
    """Return an operator of the autograd engine."""
    return operator("autograd::engine::evaluate_function: MmBackward0", start_us, end_us, tid)


def flow(number, from_us, to_us):
    """Return the two ends of a flow from a forward operator to a backward one."""
    ends = (("s", from_us), ("f", to_us))
    return [
        {"ph": phase, "id": number, "pid": 0, "tid": MAIN, "ts": at, "cat": "fwdbwd", "name": "fwdbwd"}
        for phase, at in ends
    ]


def write_trace(path, events, *, rank=0, ranks=(0,), host="h", **more):
    """Write a trace of one rank and return its path; `more` are additional header fields."""
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": len(ranks), "ranks": list(ranks)}
    header = {
        "schemaVersion": 1,
        "deviceProperties": [],
        "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": len(ranks), "pg_config": [group]},
        "host_name": host,
        "baseTimeNanoseconds": BASE_NS,
    }
    path.write_text(json.dumps({**header, **more, "traceEvents": events}), encoding="utf-8")
    return path


def tables_of(path, events):
    """Return the tables of a trace with these events."""
    return read_tables(write_trace(path / "rank0.json", events)).tables


def in_us(spans, *columns):
    """Return kind, start and end of spans, in microseconds since the start of the trace, and additional columns."""
    return (
        spans.sort("start_ns")
        .select(
            pl.col("kind").cast(pl.String),
            *((pl.col(name) - BASE_NS) / 1000 for name in ("start_ns", "end_ns")),
            *columns,
        )
        .rows()
    )
