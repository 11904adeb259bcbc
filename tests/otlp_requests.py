"""Recorded requests of the OpenTelemetry SDK, and requests written as Python objects."""

from __future__ import annotations

import base64
import json

from places import DATA

EPOCH_NS = 1_790_000_000_000_000_000


def recorded():
    """Return the number of spans, and headers and body of each request that the SDK 1.45 sent.

    Recorded with `benchmarks/otlp_sdk.py --record tests/data/otlp`: 1F1B of two processes, three micro-batches, two
    steps, with the spans of Megatron-LM.
    """
    content = json.loads((DATA / "otlp" / "requests.json").read_text())
    requests = []
    for one in content["requests"]:
        body = base64.b64decode(one.pop("body"))
        requests.append((one, body))
    return content["spans"], requests


def attributes(**values):
    """Return attributes; `__` in a key is a dot."""
    kinds = {int: "intValue", str: "stringValue", bool: "boolValue"}
    return [
        {
            "key": key.replace("__", "."),
            "value": {kinds[type(value)]: str(value) if type(value) is int else value},
        }
        for key, value in values.items()
    ]


def span(name, start, end, number, *, links=(), **values):
    """Return a span; times are ns after EPOCH_NS, `number` its id."""
    return {
        "traceId": "ab" * 16, "spanId": f"{number:016x}", "name": name, "startTimeUnixNano": str(EPOCH_NS + start),
        "endTimeUnixNano": str(EPOCH_NS + end), "attributes": attributes(**values),
        "links": [{"traceId": "ab" * 16, "spanId": f"{one:016x}"} for one in links],
    }  # fmt: skip


def request(spans, *, rank=0, host="node1", **resource):
    """Return a request with the spans of a rank."""
    values = attributes(service__instance__id=f"run42-rank{rank}", host__name=host, **resource)
    return {"resourceSpans": [{"resource": {"attributes": values}, "scopeSpans": [{"spans": list(spans)}]}]}


def write_lines(path, *requests):
    """Write a file with one request per line, and return its path."""
    path.write_text("".join(json.dumps(one) + "\n" for one in requests), encoding="utf-8")
    return path


def megatron_rank(drawn, rank, *, evaluation=False):
    """Return the spans of a rank of a drawn timeline, named as Megatron-LM does; each transfer takes 10 ns."""
    own = drawn.filter(rank=rank).sort("start_ns")
    last = int(drawn["rank"].max())
    found = [span("megatron.train_step", own["start_ns"].min() - 50, own["end_ns"].max() + 50, 10_000 * rank + 9_999,
                  megatron__iteration=7)]  # fmt: skip
    for row in own.iter_rows(named=True):
        kind, number, start, end = row["kind"], row["microbatch"], row["start_ns"], row["end_ns"]
        is_forward = kind == "forward"
        source, target = (rank > 0, rank < last) if is_forward else (rank < last, rank > 0)
        found.append(span(f"megatron.microbatch.{kind}", start, end, _number(rank, kind, number)))
        sender = rank - 1 if is_forward else rank + 1
        if source:
            sent, own_id = _number(sender, f"send_{kind}", number), _number(rank, f"recv_{kind}", number)
            found.append(span(f"megatron.p2p.recv_{kind}", start - 20, start - 10, own_id, links=[sent]))
        if target:
            found.append(
                span(f"megatron.p2p.send_{kind}", end + 5, end + 10, _number(rank, f"send_{kind}", number))
            )
    if evaluation:
        end = own["end_ns"].max()
        found.append(span("megatron.evaluate", end + 1000, end + 2000, 10_000 * rank + 9_998))
        found.append(span("megatron.microbatch.forward", end + 1100, end + 1200, 10_000 * rank + 9_997))
    return found


def _number(rank, kind, microbatch):
    kinds = ("forward", "backward", "recv_forward", "send_forward", "recv_backward", "send_backward")
    return 10_000 * rank + 100 * kinds.index(kind) + microbatch + 1
