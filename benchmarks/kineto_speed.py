"""CPU seconds and memory for reading a torch.profiler trace of 1 GB, in a separate process.

The trace repeats the events of a real one (tests/data/kineto), in torch's layout. The baseline is a
typed msgspec decode of the same events, in pieces of the same size: the minimum cost of any reader.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SAMPLE = Path(__file__).parents[1] / "tests" / "data" / "kineto" / "ZBVZeroBubble" / "rank1.json.gz"
ROUNDS = 3
SIZE_BYTES = int(os.environ.get("STAGESCOPE_KINETO_BYTES", "1000000000"))
LEAST_MB_PER_SECOND = 200
LIMIT_MB = 1000
READ = """
import sys
from pathlib import Path
from stagescope.ingest.kineto.rank_trace import read_rank
print(read_rank(Path(sys.argv[1])).actions.height)
"""
DECODE = """
import sys
from pathlib import Path
import msgspec
from stagescope.ingest.kineto.event_types import TraceEvent
from stagescope.ingest.trace_json.trace_events import EventStream
print(sum(map(len, EventStream(Path(sys.argv[1]), msgspec.json.Decoder(list[TraceEvent])).pieces())))
"""
START = "import stagescope.ingest.kineto.rank_trace"


def write_trace(path: Path, size_bytes: int) -> None:
    """Write a trace of this size in torch's layout; each repetition is a second later than the previous one."""
    trace = json.loads(gzip.decompress(SAMPLE.read_bytes()))
    events = trace.pop("traceEvents")
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(trace, indent=2)[:-2] + ',\n  "traceEvents": [\n')
        while True:
            file.write("  " + json.dumps(events, indent=2)[1:-1].strip().replace("\n", "\n  "))
            if file.tell() >= size_bytes:
                break
            file.write(",\n")
            for event in events:
                event["ts"] = round(event["ts"] + 1_000_000, 3)
        file.write("\n  ]\n}\n")


def measure(code: str, path: Path) -> tuple[float, float]:
    """Return the CPU seconds and the peak memory in MB of a process."""
    process = subprocess.Popen([sys.executable, "-c", code, path], stdout=sys.stderr)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "rank0.json")
        write_trace(path, SIZE_BYTES)
        size_mb = path.stat().st_size / 1e6
        start_seconds = statistics.median(measure(START, path)[0] for _ in range(ROUNDS))
        packed = path.with_suffix(".json.gz")
        with path.open("rb") as plain, gzip.open(packed, "wb", 1) as target:
            shutil.copyfileobj(plain, target, 1 << 20)
        for what, code, source in (
            ("read", READ, path),
            ("read, packed with gzip", READ, packed),
            ("typed decode alone", DECODE, path),
        ):
            runs = [measure(code, source) for _ in range(ROUNDS)]
            seconds, memory_mb = (statistics.median(column) for column in zip(*runs, strict=True))
            speed = size_mb / (seconds - start_seconds)
            print(
                f"{what}: {size_mb:.0f} MB in {seconds:.1f} CPU s, {start_seconds:.1f} of them to start:"
                f" {speed:.0f} MB/s"
                f" (at least {LEAST_MB_PER_SECOND} required), {memory_mb:.0f} MB (at most {LIMIT_MB})"
            )


if __name__ == "__main__":
    main()
