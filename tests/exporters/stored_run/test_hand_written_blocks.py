"""Hand-written pipelines are stored the same, whether their spans are settled at once or in blocks of a few steps."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from hand_written_runs import SHAPE, WAYS, plain, planted, record, without_steps
from recorded_runs import write_recordings
from recordings import encode
from simulated_loops import hidden, run_of
from stagescope.api import settling, store
from stagescope.ingest.recording import row_blocks
from stagescope.ingest.recording.frames import ANCHOR_DTYPE, RAW_ANCHOR_DTYPE
from stagescope.record import format as fmt

ROWS = 40
HOUR_NS = 3_600_000_000_000


def frames_of(path):
    return [(frame.type, bytes(frame.payload)) for frame in fmt.scan_frames(path.read_bytes())]


def blocks_of(monkeypatch):
    """Return the numbers of blocks in which transfers are placed from now on, as they come."""
    counts = []
    needed = settling._needed

    def counted(item):
        blocks = list(needed(item))
        counts.append(len(blocks))
        return iter(blocks)

    monkeypatch.setattr(settling, "_needed", counted)
    return counts


def assert_blocks_change_nothing(recordings, monkeypatch, tmp_path):
    """Assert that what is stored does not depend on the size of blocks; return the numbers of blocks."""
    at_once = store(recordings, out=tmp_path / "at-once", align=False)
    monkeypatch.setattr(row_blocks, "ROWS_OF_BLOCK", ROWS)
    counts = blocks_of(monkeypatch)
    in_blocks = store(recordings, out=tmp_path / "in-blocks", align=False)
    assert in_blocks.manifest.parts == at_once.manifest.parts
    assert in_blocks.diagnostics.equals(at_once.diagnostics)
    return counts


@pytest.mark.parametrize("way", WAYS)
def test_blocks_of_spans_change_nothing(way, monkeypatch, tmp_path):
    recordings = record(way, tmp_path)
    counts = assert_blocks_change_nothing(recordings, monkeypatch, tmp_path)
    if way in {
        "plain",
        "plain, optimizer",
        "plain, without steps",
        "late sends",
        "prefetched",
        "numbered through",
    }:
        assert min(counts) > 1


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-v"])
def test_blocks_of_the_chunks_of_a_schedule_change_nothing(schedule, monkeypatch, tmp_path):
    tag = pl.col("name").str.extract(r" tag (\d+)").cast(pl.Int32)
    spans = hidden(run_of(schedule, ranks=2, tensors=2, steps=6)).with_columns(pl.col("pair") + 1_000 * tag)
    write_recordings(planted().with_spans(spans), tmp_path / "recordings", 2, world_size=2)
    assert min(assert_blocks_change_nothing(tmp_path / "recordings", monkeypatch, tmp_path)) > 1


def test_blocks_on_a_clock_that_was_slewed_change_nothing(monkeypatch, tmp_path):
    recordings = record("plain, without steps", tmp_path)
    for path in sorted(recordings.iterdir())[:2]:
        frames = frames_of(path)
        own_ns = np.frombuffer(dict(frames)[fmt.CLOCK], ANCHOR_DTYPE)["monotonic_ns"]
        middle_ns = (own_ns[0] + own_ns[-1]) // 2
        raw = np.zeros(len(own_ns), RAW_ANCHOR_DTYPE)
        raw["monotonic_ns"], raw["width_ns"] = own_ns, 100
        raw["raw_ns"] = own_ns - np.where(own_ns > middle_ns, (own_ns - middle_ns) // 2_000, 0)
        path.write_bytes(encode([frames[0], (fmt.RAW_CLOCK, raw.tobytes()), *frames[1:]]))
    assert min(assert_blocks_change_nothing(recordings, monkeypatch, tmp_path)) > 1


def test_blocks_of_a_run_that_was_restarted_change_nothing(monkeypatch, tmp_path):
    recordings = record("plain, without steps", tmp_path)
    later = without_steps(plain(planted().spans)).with_columns(pl.col("^.*_ns$") + HOUR_NS)
    again = recordings / "attempt-1"
    write_recordings(planted().with_spans(later), again, SHAPE.stages, ranks_per_machine=2, world_size=8)
    for path in again.iterdir():
        frames = frames_of(path)
        header = json.loads(frames[0][1])
        header["recording"] += " again"
        path.write_bytes(encode([(fmt.HEADER, json.dumps(header).encode()), *frames[1:]]))
    assert min(assert_blocks_change_nothing(recordings, monkeypatch, tmp_path)) > 1


def test_messages_with_the_same_number_are_placed_in_one_block(monkeypatch, tmp_path):
    spans = plain(planted().spans).with_columns(pl.col("pair") % 20)
    write_recordings(
        planted().with_spans(spans), tmp_path / "recordings", SHAPE.stages, ranks_per_machine=2, world_size=8
    )
    assert set(assert_blocks_change_nothing(tmp_path / "recordings", monkeypatch, tmp_path)) == {1}
