"""Simulated ranks that write recordings while time passes: live_ranks.py DIRECTORY [RANKS SPANS_PER_S SECONDS].

All ranks repeat one step of 1F1B with transfers, stretched so that each records SPANS_PER_S spans per second. Like the
recorder, each writes a frame every half second, with the spans that have ended since, and a clock reading.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from recorded_runs import _records, _step_records
from stagescope.record import format as fmt
from synthetic import Shape, pipeline_timeline

FLUSH_S = 0.5
STEP_GAP = 1.01
TIMES = ("start_ns", "end_ns", "wait_start_ns", "wait_end_ns")


class LiveRanks:
    """Recordings of simulated ranks; `write` adds what has happened until a moment of the monotonic clock."""

    def __init__(
        self,
        directory: Path,
        ranks: int = 4,
        spans_per_s: float = 100.0,
        microbatches: int = 8,
        *,
        tokens: int = 0,
    ) -> None:
        """Create the recordings, which begin now; rank 0 counts so many tokens in each step, if any."""
        self.tokens = tokens
        directory.mkdir(parents=True, exist_ok=True)
        timeline = pipeline_timeline(Shape(ranks=ranks, microbatches=microbatches, steps=1, origin_ns=0))
        length_ns = int(timeline.spans["end_ns"].max() * STEP_GAP)
        most = max(group.height for group in timeline.spans.partition_by("rank"))
        self.step_ns = int(most / spans_per_s * 1e9)
        self._steps = [self._step_of(timeline, rank, length_ns) for rank in range(ranks)]
        self._files = [directory / f"rank-{rank:05}{fmt.SUFFIX}" for rank in range(ranks)]
        self.began_ns = time.monotonic_ns()
        self._written_ns = self.began_ns
        self._sequences, self._counts = [0] * ranks, [0] * ranks
        for rank, file in enumerate(self._files):
            file.write_bytes(b"")
            header = {
                "format": "stagescope recording", "version": fmt.FORMAT_VERSION, "run": "live", "rank": rank,
                "world_size": ranks, "host": "node-0", "boot": "boot-0", "clock": "CLOCK_MONOTONIC",
                "recording": f"recording-{rank}", "pid": os.getpid(), "device": "cpu",
                "process_start_ns": self.began_ns,
                "schedule": {"name": "1F1B", "microbatches": microbatches},
                "parallel": {"pp": rank, "pp_size": ranks, "pp_ranks": list(range(ranks))},
            }  # fmt: skip
            self._add(rank, fmt.HEADER, json.dumps(header).encode())
            self._add(rank, fmt.NAMES, b'{"first": 1, "names": ["tokens"]}')
            self._add_reading(rank)

    def write(self, until_ns: int | None = None, behind: dict[int, int] | None = None) -> None:
        """Write what has ended since the last call; ranks that are `behind` are so many steps earlier."""
        until_ns = time.monotonic_ns() if until_ns is None else until_ns
        for rank, step in enumerate(self._steps):
            records = self._between(step, self._written_ns, until_ns)
            records["step"] = np.maximum(records["step"] - (behind or {}).get(rank, 0), 0)
            self._counts[rank] += len(records)
            if len(records):
                self._add(rank, fmt.SPANS, records.tobytes())
            self._add_reading(rank)
        self._add_tokens(until_ns)
        self._written_ns = until_ns

    def end(self) -> None:
        """End all recordings."""
        for rank in range(len(self._files)):
            facts = {"spans": self._counts[rank], "dropped_spans": 0, "reason": "exit"}
            self._add(rank, fmt.END, json.dumps(facts).encode())

    def _add_tokens(self, until_ns: int) -> None:
        """Count the tokens of the steps that began since the last call."""
        since, until = ((at - self.began_ns) // self.step_ns for at in (self._written_ns - 1, until_ns - 1))
        for step in range(since + 1, until + 1) if self.tokens else ():
            place = (self.began_ns + step * self.step_ns, self.tokens, step, fmt.NONE, fmt.NONE, 1)
            self._add(0, fmt.COUNTERS, fmt.COUNTER.pack(*place))

    def _step_of(self, timeline, rank, length_ns):
        own = timeline.spans.filter(timeline.spans["rank"] == rank)
        records = np.concatenate([_records(own, lambda at: at), _step_records(own, lambda at: at)])
        for name in TIMES:
            known = records[name] != fmt.NONE
            records[name][known] = (records[name][known] * (self.step_ns / length_ns)).astype(np.int64)
        return records[np.argsort(records["end_ns"], kind="stable")]

    def _between(self, step, since_ns, until_ns):
        """Return the records that end after one moment and not after another."""
        first = max(0, (since_ns - self.began_ns) // self.step_ns - 1)
        last = (until_ns - self.began_ns) // self.step_ns
        found = []
        for number in range(first, last + 1):
            moved = step.copy()
            for name in TIMES:
                moved[name][moved[name] != fmt.NONE] += self.began_ns + number * self.step_ns
            moved["step"] = number
            found.append(moved[(moved["end_ns"] > since_ns) & (moved["end_ns"] <= until_ns)])
        return np.concatenate(found)

    def _add(self, rank, kind, payload):
        with self._files[rank].open("ab") as file:
            file.write(fmt.encode_frame(self._sequences[rank], kind, payload))
        self._sequences[rank] += 1

    def _add_reading(self, rank):
        self._add(rank, fmt.CLOCK, fmt.ANCHOR.pack(time.monotonic_ns(), time.time_ns(), 100))


def main(directory: str, ranks: str = "64", spans_per_s: str = "1000", seconds: str = "60") -> None:
    """Write for so many seconds."""
    live = LiveRanks(Path(directory), int(ranks), float(spans_per_s), microbatches=64)
    until_s = time.monotonic() + float(seconds)
    while (now_s := time.monotonic()) < until_s:
        live.write()
        time.sleep(max(0.0, FLUSH_S - (time.monotonic() - now_s)))
    live.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
