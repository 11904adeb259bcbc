"""Recordings of a long training on a few ranks, for scale_speed.py and some_steps.py: steps of a planted run, again.

    python benchmarks/long_recordings.py DIRECTORY [--ranks 8] [--steps 10000] [--times 6]
    python benchmarks/scale_speed.py DIRECTORY --ranks 8 --steps 60000 --workers 2 --cores-per-worker 1

The run of some_steps.py with `steps` steps is written into DIRECTORY/recordings, and its recordings then go on with the
same steps under other numbers and at later times, so that they are `times` as long; each clock keeps its drift.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from some_steps import generate

from stagescope.ingest.recording.columns import SPAN_DTYPE
from stagescope.ingest.recording.frames import ANCHOR_DTYPE
from stagescope.record import format as fmt

if TYPE_CHECKING:
    import numpy.typing as npt

TIMES = ("start_ns", "end_ns", "wait_start_ns", "wait_end_ns")


def main() -> None:
    """Write the recordings."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=6)
    options = parser.parse_args()
    recordings = options.directory / "recordings"
    generate(recordings, options.ranks, options.steps)
    files = sorted(recordings.glob(f"*{fmt.SUFFIX}"))
    length_ns = max(_length_ns(path.read_bytes()) for path in files)
    for path in files:
        _lengthen(path, length_ns, options.steps, options.times)
    size_bytes = sum(path.stat().st_size for path in files)
    print(f"{len(files)} recordings of {options.steps * options.times} steps, {size_bytes / 1e9:.1f} GB")


def _length_ns(data: bytes) -> int:
    """Return how long a recording is on the wall clock, with a little more: anchors are at equal distances."""
    realtime_ns = _anchors(data)["realtime_ns"]
    return int(realtime_ns[-1] - realtime_ns[0]) + 10**9


def _anchors(data: bytes) -> npt.NDArray[np.void]:
    payloads = [frame.payload for frame in fmt.scan_frames(data) if frame.type == fmt.CLOCK]
    return np.frombuffer(b"".join(payloads), ANCHOR_DTYPE)


def _lengthen(path: Path, length_ns: int, steps: int, times: int) -> None:
    data = path.read_bytes()
    anchors = _anchors(data)
    own_ns, wall_ns = (int(anchors[name][-1] - anchors[name][0]) for name in ("monotonic_ns", "realtime_ns"))
    frames = list(fmt.scan_frames(data))
    number = count = 0
    with path.open("wb") as file:
        for turn in range(times):
            moved = {fmt.CLOCK: turn * length_ns, fmt.SPANS: round(turn * length_ns * own_ns / wall_ns)}
            for frame in frames:
                if frame.type == fmt.END or (turn and frame.type == fmt.HEADER):
                    continue
                payload = bytes(frame.payload)
                if frame.type == fmt.CLOCK:
                    readings = np.frombuffer(payload, ANCHOR_DTYPE).copy()
                    readings["realtime_ns"] += moved[fmt.CLOCK]
                    readings["monotonic_ns"] += moved[fmt.SPANS]
                    payload = readings.tobytes()
                elif frame.type == fmt.SPANS:
                    payload = _moved(payload, moved[fmt.SPANS], turn * steps)
                    count += len(payload) // fmt.SPAN.size
                file.write(fmt.encode_frame(number, frame.type, payload))
                number += 1
        end = {"spans": count, "dropped_spans": 0, "reason": "exit"}
        file.write(fmt.encode_frame(number, fmt.END, json.dumps(end).encode()))


def _moved(payload: bytes, later_ns: int, later_steps: int) -> bytes:
    """Return spans at later times and in later steps."""
    spans = np.frombuffer(payload, SPAN_DTYPE).copy()
    for name in TIMES:
        spans[name] += np.where(spans[name] == fmt.NONE, 0, later_ns)
    spans["step"] += np.where(spans["step"] == fmt.NONE, 0, later_steps).astype(np.int32)
    return spans.tobytes()


if __name__ == "__main__":
    main()
