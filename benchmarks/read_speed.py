"""Speed of reading recordings: spans per CPU second, for 8 files with 250,000 spans each."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from stagescope.ingest.recording.columns import SPAN_DTYPE
from stagescope.ingest.recording.reader import read_recordings
from stagescope.record import format as fmt

RANKS = 8
SPANS = 250_000
FRAME_SPANS = 1024
ROUNDS = 5
LIMIT = 5e6


def write_rank(directory: Path, rank: int) -> Path:
    spans = np.zeros(SPANS, SPAN_DTYPE)
    spans["start_ns"] = np.arange(SPANS) * 1_000
    spans["end_ns"] = spans["start_ns"] + 900
    for name in ("wait_start_ns", "wait_end_ns", "bytes", "peer", "pair"):
        spans[name] = fmt.NONE
    spans["step"] = np.arange(SPANS) // 100
    spans["stage"] = rank
    spans["microbatch"] = np.arange(SPANS) % 50
    spans["kind"] = 1 + np.arange(SPANS) % 2
    header = {
        "version": 1,
        "rank": rank,
        "world_size": RANKS,
        "host": "node",
        "boot": "b",
        "clock": "CLOCK_MONOTONIC",
    }
    frames = [(fmt.HEADER, json.dumps(header).encode()), (fmt.CLOCK, fmt.ANCHOR.pack(0, 10**18, 50))]
    frames += [(fmt.SPANS, spans[at : at + FRAME_SPANS].tobytes()) for at in range(0, SPANS, FRAME_SPANS)]
    frames.append((fmt.END, json.dumps({"spans": SPANS, "dropped_spans": 0}).encode()))
    path = directory / f"rank{rank:05d}-1.sscope"
    path.write_bytes(b"".join(fmt.encode_frame(n, *frame) for n, frame in enumerate(frames)))
    return path


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        paths = [write_rank(Path(directory), rank) for rank in range(RANKS)]
        size_mb = sum(path.stat().st_size for path in paths) / 1e6
        rates, wall = [], []
        for _ in range(ROUNDS):
            begun, begun_wall = time.process_time(), time.perf_counter()
            timeline = read_recordings(paths)
            rates.append(timeline.spans.height / (time.process_time() - begun))
            wall.append(time.perf_counter() - begun_wall)
    print(
        f"{RANKS * SPANS / 1e6:.1f} M spans, {size_mb:.0f} MB: {statistics.median(rates) / 1e6:.1f} M spans per CPU s"
        f" (wall {statistics.median(wall):.2f} s), at least {LIMIT / 1e6:.0f} required"
    )


if __name__ == "__main__":
    main()
