"""Recordings built byte by byte, with known content."""

from __future__ import annotations

import json

from stagescope.record import format as fmt
from stagescope.vocabulary.kinds import BY_NAME, LANE_CODES, STEP_CODE

HEADER = {
    "format": "stagescope recording",
    "version": 1,
    "run": "test",
    "rank": 0,
    "world_size": 1,
    "host": "node-a",
    "boot": "boot-a",
    "clock": "CLOCK_MONOTONIC",
    "schedule": {"name": "1F1B", "microbatches": 2},
    "parallel": {"pp": 0, "pp_size": 1},
    "device": "cpu",
}


def span_record(kind="forward", start_ns=0, end_ns=10, **fields):
    known = BY_NAME.get(kind)
    values = dict.fromkeys([name for name, _ in fmt.SPAN_FIELDS if name != "reserved"], fmt.NONE)
    values |= {"start_ns": start_ns, "end_ns": end_ns, "name": 0, "thread": 0}
    values |= {"kind": known.code if known else kind, "lane": LANE_CODES[known.lane if known else "host"]}
    return fmt.SPAN.pack(*(values | fields).values())


def step_record(step, start_ns, end_ns):
    return span_record(STEP_CODE, start_ns, end_ns, step=step)


def anchor_record(monotonic_ns=0, realtime_ns=1_000_000, width_ns=100):
    return fmt.ANCHOR.pack(monotonic_ns, realtime_ns, width_ns)


def recording_frames(spans, *, end=True, **header):
    """Return the frames of a recording, one span to a SPANS frame, as (type, payload)."""
    frames = [
        (fmt.HEADER, json.dumps({**HEADER, **header}).encode()),
        (fmt.NAMES, b'{"first": 1, "names": ["first name", "second name"]}'),
        (fmt.CLOCK, anchor_record()),
        *((fmt.SPANS, span) for span in spans),
    ]
    if end:
        frames.append(
            (fmt.END, json.dumps({"spans": len(spans), "dropped_spans": 0, "reason": "exit"}).encode())
        )
    return frames


def encode(frames):
    return b"".join(fmt.encode_frame(number, *frame) for number, frame in enumerate(frames))


def write_recording(path, spans, **options):
    path.write_bytes(encode(recording_frames(spans, **options)))
    return path
