"""The recorded traces of ZBVZeroBubble with a planted clock: ranks 2 and 3 on a machine whose clock is ahead."""

import gzip
import json
from pathlib import Path

RECORDED = Path(__file__).parents[2] / "data/kineto/ZBVZeroBubble"
AHEAD_NS = 5_000_000
RANKS = range(4)


def recorded(rank):
    return json.loads(gzip.decompress((RECORDED / f"rank{rank}.json.gz").read_bytes()))


def plant(folder, ahead_ns=AHEAD_NS, drift_ppm=0.0):
    """Write the traces; returns their directory."""
    for rank in RANKS:
        trace = recorded(rank)
        if rank >= 2:
            trace["host_name"] = "other"
            trace["baseTimeNanoseconds"] += ahead_ns
            first_us = min(event["ts"] for event in trace["traceEvents"] if "ts" in event)
            for event in trace["traceEvents"]:
                if "ts" in event:
                    event["ts"] += round((event["ts"] - first_us) * drift_ppm * 1e-6, 3)
        (folder / f"rank{rank}.json").write_text(json.dumps(trace), encoding="utf-8")
    return folder


def times_of(trace, name, side="start"):
    """Return start or end, in nanoseconds of the file, of the annotations called `name`, in order."""
    found = [event for event in trace["traceEvents"] if event.get("name") == name and event["ph"] == "X"]
    return sorted(round((event["ts"] + (event["dur"] if side == "end" else 0)) * 1000) for event in found)


def causal_bounds(traces, offset_ns):
    """Return how much later the second machine may at most and must at least be placed, from sends and receives alone.

    `traces` are the traces of all ranks and `offset_ns` where time 0 of each is placed. A forward of stage s + 1 ends
    after the send of its input began; V schedules have stages 0 to 3 and 4 to 7 reversed on ranks 0 to 3.
    """
    rank_of = [0, 1, 2, 3, 3, 2, 1, 0]
    most, least = [], []
    for stage in range(7):
        source, target = rank_of[stage], rank_of[stage + 1]
        if (source < 2) == (target < 2):
            continue
        for microbatch in range(16):
            sent = times_of(traces[source], f"PP:{stage}SEND_F{microbatch}")
            received = times_of(traces[target], f"PP:{stage + 1}F{microbatch}", "end")
            for sent_ns, received_ns in zip(sent, received, strict=False):
                slack_ns = received_ns + offset_ns[target] - sent_ns - offset_ns[source]
                (least if source < 2 else most).append(slack_ns if source >= 2 else -slack_ns)
    return min(most), max(least)
