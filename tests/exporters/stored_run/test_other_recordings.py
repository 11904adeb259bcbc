"""Runs with attempts, pipelines or stages of which only some are shown or stated are stored in parts as well."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

from recordings import encode
from stagescope.api import read, store, storing_parts
from stagescope.ingest.recording.columns import SPAN_DTYPE
from stagescope.ingest.recording.frames import ANCHOR_DTYPE
from stagescope.record import format as fmt
from stagescope.vocabulary.kinds import BY_NAME, STEP_CODE
from stored_parts import assert_as_read, stored

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TIMES = ("start_ns", "end_ns", "wait_start_ns", "wait_end_ns")
HOUR_NS = 3_600_000_000_000


def rewrite(path: Path, payload_of: Callable[[fmt.Frame], bytes]) -> None:
    """Write a recording again with other payloads."""
    frames = []
    for frame in fmt.scan_frames(path.read_bytes()):
        assert isinstance(frame, fmt.Frame)
        frames.append((frame.type, payload_of(frame)))
    path.write_bytes(encode(frames))


def change(path: Path, spans: Callable[[np.ndarray], object], **header: Any) -> None:
    """Change the spans of a recording in place, and its header."""

    def payload_of(frame: fmt.Frame) -> bytes:
        if frame.type == fmt.SPANS:
            rows = np.frombuffer(frame.payload, SPAN_DTYPE).copy()
            spans(rows)
            return rows.tobytes()
        if frame.type == fmt.HEADER:
            return json.dumps(json.loads(bytes(frame.payload)) | header).encode()
        return bytes(frame.payload)

    rewrite(path, payload_of)


def later(path: Path, by_ns: int, **header: Any) -> None:
    """Move a recording to a later time."""

    def moved(rows: np.ndarray) -> None:
        for name in TIMES:
            rows[name] += np.where(rows[name] == fmt.NONE, 0, by_ns)

    def payload_of(frame: fmt.Frame) -> bytes:
        if frame.type != fmt.CLOCK:
            return bytes(frame.payload)
        anchors = np.frombuffer(frame.payload, ANCHOR_DTYPE).copy()
        for name in ("monotonic_ns", "realtime_ns"):
            anchors[name] += by_ns
        return anchors.tobytes()

    change(path, moved, **header)
    rewrite(path, payload_of)


def restart(recordings: Path) -> None:
    """Add an attempt an hour later, and the start of a third one, which sent to other ranks."""
    files = sorted(recordings.glob("*.sscope"))
    for attempt in (1, 2):
        for path in files if attempt == 1 else files[:5]:
            again = recordings / f"attempt-{attempt}" / path.name
            again.parent.mkdir(exist_ok=True)
            again.write_bytes(path.read_bytes())
            later(again, attempt * HOUR_NS, recording=f"{path.name} {attempt}")
            if attempt == 2:
                change(again, send_to_everybody)


def send_to_everybody(rows: np.ndarray) -> None:
    rows["peer"] = np.where(rows["peer"] >= 0, np.arange(len(rows)) % 16, rows["peer"])


def fork(recordings: Path) -> None:
    """Add recordings of processes that ranks started."""
    for path in sorted(recordings.glob("*.sscope"))[::3]:
        beside = recordings / "beside" / path.name
        beside.parent.mkdir(exist_ok=True)
        beside.write_bytes(path.read_bytes())
        header = json.loads(bytes(next(iter(fmt.scan_frames(path.read_bytes()))).payload))
        change(
            beside,
            send_to_everybody,
            recording=f"{path.name} child",
            pid=99_000,
            forked_from=[header["recording"]],
        )


def use_two_pipelines(recordings: Path) -> None:
    """Let each third step be of another pipeline, which has other peers, stages without a number and reductions."""

    def named(rows: np.ndarray) -> None:
        is_other = rows["step"] % 3 == 2
        is_marker = rows["kind"] == STEP_CODE
        rows["name"][is_marker] = np.where(is_other[is_marker], 2, 1)
        rows["stage"][is_other & ~is_marker] = fmt.NONE
        rows["peer"][is_other & (rows["peer"] >= 0)] = 15 - rows["peer"][is_other & (rows["peer"] >= 0)]
        reduces = is_other & (rows["kind"] == BY_NAME["grad_reduce"].code)
        rows["kind"][reduces], rows["name"][reduces] = BY_NAME["collective"].code, 3
        rows["bytes"][reduces] = 10_000

    for path in recordings.glob("*.sscope"):
        change(path, named)
        frames = [(frame.type, bytes(frame.payload)) for frame in fmt.scan_frames(path.read_bytes())]
        names = json.dumps({"first": 1, "names": ["training", "evaluation", "all_reduce everybody"]})
        path.write_bytes(encode([frames[0], (fmt.NAMES, names.encode()), *frames[1:]]))


def state_some_stages(recordings: Path) -> None:
    """Leave the stages of half of the ranks to be found."""
    for path in sorted(recordings.glob("*.sscope"))[::2]:
        change(path, lambda rows: rows["stage"].fill(fmt.NONE))


WAYS = [restart, fork, use_two_pipelines, state_some_stages]


@pytest.mark.parametrize("sizes", [(1, 10**9), (10**9, 100)], ids=["parts", "slices"])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_shown_of_a_run_is_stored_in_parts(way, sizes, recordings, monkeypatch, tmp_path):
    way(recordings)
    parts, found = stored(recordings, tmp_path / "run", monkeypatch, sizes)
    assert parts >= 4
    assert_as_read(recordings, found.path)


@pytest.mark.parametrize("attempt", [0, 2])
def test_another_attempt_is_stored_in_parts(attempt, recordings, monkeypatch, tmp_path):
    restart(recordings)
    monkeypatch.setattr(storing_parts, "SPANS_OF_PART", 1)
    found = store(recordings, out=tmp_path / "run", attempt=attempt)
    timeline, again = read(recordings, attempt=attempt), read(found.path)
    assert again.spans.equals(timeline.spans)
    assert again.diagnostics.equals(timeline.diagnostics)
    assert again.ranks.height == (16 if attempt == 0 else 5)


def test_another_pipeline_is_stored_in_parts(recordings, monkeypatch, tmp_path):
    use_two_pipelines(recordings)
    monkeypatch.setattr(storing_parts, "SPANS_OF_PART", 1)
    found = store(recordings, out=tmp_path / "run", pipeline="evaluation")
    timeline, again = read(recordings, pipeline="evaluation"), read(found.path)
    assert again.spans.equals(timeline.spans)
    assert again.diagnostics.equals(timeline.diagnostics)
    assert set(again.spans["step"].drop_nulls().unique()) == {2, 5, 8, 11}
    assert (
        again.spans.filter(pl.col("kind") == "grad_reduce").height
        == timeline.spans.filter(pl.col("kind") == "grad_reduce").height
    )
