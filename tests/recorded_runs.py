"""Planted runs as recordings: one file per rank, written by the code of the real format, on clocks that disagree."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.ingest.recording.columns import SPAN_DTYPE
from stagescope.model.tables import KindType, LaneType
from stagescope.record import format as fmt
from stagescope.vocabulary.kinds import BY_NAME, LANE_CODES, STEP_CODE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stagescope.model import Timeline

NUMBERS = ("step", "stage", "chunk", "microbatch", "peer", "pair", "bytes")
SPANS_PER_FRAME = 2048
ANCHOR_EVERY_NS = 100_000_000
UPTIME_NS = 86_400_000_000_000


def write_recordings(
    timeline: Timeline,
    directory: Path,
    stages: int,
    *,
    ranks_per_machine: int = 8,
    seed: int = 0,
    world_size: int | None = None,
) -> None:
    """Write the spans of a timeline as recordings: rank = pipeline * stages + stage.

    Each machine has a monotonic clock that began at another moment and drifts by up to 20 ppm, and a wall clock that is
    wrong by up to a millisecond. `world_size` is the number of ranks of the run if the timeline has only some of them.
    """
    random = np.random.default_rng(seed)
    directory.mkdir(parents=True, exist_ok=True)
    first_ns = int(timeline.spans["start_ns"].min())  # type: ignore[arg-type]  # there are spans
    parts = timeline.spans.partition_by("rank", as_dict=True)
    clocks: dict[int, tuple[int, float, int]] = {}
    for (rank,), spans in sorted(parts.items()):
        number = int(rank)  # type: ignore[call-overload]  # an integer
        machine = number // ranks_per_machine
        if machine not in clocks:
            began_ns = first_ns - int(random.integers(1, 30)) * UPTIME_NS
            clocks[machine] = (
                began_ns,
                float(random.uniform(-20e-6, 20e-6)),
                int(random.integers(-(10**6), 10**6)),
            )
        header = _header(number, world_size or len(parts), stages, machine)
        content = _recording(spans, header, first_ns, clocks[machine])
        (directory / f"rank-{number:05}{fmt.SUFFIX}").write_bytes(content)


def small_frames(data: bytes, spans: int) -> list[tuple[int, bytes]]:
    """Return the type and the payload of each frame of a recording, with at most so many spans in a frame."""
    frames = []
    for frame in fmt.scan_frames(data):
        assert isinstance(frame, fmt.Frame)
        size = spans * fmt.SPAN.size if frame.type == fmt.SPANS else len(frame.payload)
        starts = range(0, len(frame.payload), size)
        frames += [(frame.type, bytes(frame.payload[at : at + size])) for at in starts]
    return frames


def _header(rank: int, world_size: int, stages: int, machine: int) -> dict[str, object]:
    pipeline, stage = divmod(rank, stages)
    pp_ranks = list(range(pipeline * stages, (pipeline + 1) * stages))
    return {
        "format": "stagescope recording", "version": fmt.FORMAT_VERSION, "run": "planted", "rank": rank,
        "world_size": world_size, "host": f"node-{machine}", "boot": f"boot-{machine}", "clock": "CLOCK_MONOTONIC",
        "recording": f"recording-{rank}", "pid": 1000 + rank, "device": "cpu", "schedule": {"name": "1F1B"},
        "parallel": {"pp": stage, "pp_size": stages, "pp_ranks": pp_ranks, "dp": pipeline},
    }  # fmt: skip


def _recording(
    spans: pl.DataFrame, header: dict[str, object], first_ns: int, clock: tuple[int, float, int]
) -> bytes:
    began_ns, drift, wall_error_ns = clock

    def shown(at_ns: np.ndarray) -> np.ndarray:
        since_ns = at_ns - first_ns
        return at_ns - began_ns + np.rint(since_ns * drift).astype(np.int64)

    end_ns = int(spans["end_ns"].max())  # type: ignore[arg-type]
    moments_ns = np.arange(first_ns, end_ns + ANCHOR_EVERY_NS, ANCHOR_EVERY_NS)
    anchors = b"".join(
        fmt.ANCHOR.pack(int(own), int(moment) + wall_error_ns, 100)
        for own, moment in zip(shown(moments_ns), moments_ns, strict=True)
    )
    records = np.concatenate([_records(spans, shown), _step_records(spans, shown)])
    records = records[np.argsort(records["end_ns"], kind="stable")]
    frames = [
        (fmt.HEADER, json.dumps(header).encode()),
        (fmt.CLOCK, anchors),
        *(
            (fmt.SPANS, records[place : place + SPANS_PER_FRAME].tobytes())
            for place in range(0, len(records), SPANS_PER_FRAME)
        ),
        (fmt.END, json.dumps({"spans": len(records), "dropped_spans": 0, "reason": "exit"}).encode()),
    ]
    return b"".join(fmt.encode_frame(number, *frame) for number, frame in enumerate(frames))


def _records(spans: pl.DataFrame, shown: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    records = np.zeros(spans.height, SPAN_DTYPE)
    for name in NUMBERS:
        records[name] = spans[name].fill_null(fmt.NONE).to_numpy()
    for name in ("start_ns", "end_ns", "wait_start_ns", "wait_end_ns"):
        moments = spans[name]
        records[name] = np.where(
            moments.is_null().to_numpy(),
            fmt.NONE,
            shown(moments.fill_null(0).to_numpy()),  # type: ignore[operator]  # a function
        )
    kinds = np.array([BY_NAME[kind].code for kind in KindType.categories], np.uint8)
    lanes = np.array([LANE_CODES[lane] for lane in LaneType.categories], np.uint8)
    records["kind"] = kinds[spans["kind"].to_physical().to_numpy()]
    records["lane"] = lanes[spans["lane"].to_physical().to_numpy()]
    return records


def _step_records(spans: pl.DataFrame, shown: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return the records that mark the steps of a rank."""
    steps = (
        spans.drop_nulls("step")
        .group_by("step")
        .agg(first=pl.min("start_ns"), last=pl.max("end_ns"))
        .sort("step")
    )
    records = np.zeros(steps.height, SPAN_DTYPE)
    for name in (*NUMBERS, "wait_start_ns", "wait_end_ns"):
        records[name] = fmt.NONE
    records["step"] = steps["step"].to_numpy()
    records["start_ns"] = shown(steps["first"].to_numpy())  # type: ignore[operator]
    records["end_ns"] = shown(steps["last"].to_numpy())  # type: ignore[operator]
    records["kind"], records["lane"] = STEP_CODE, LANE_CODES["host"]
    return records
