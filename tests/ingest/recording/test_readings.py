"""Readings of clocks wait in files while a run is surveyed, and what they decide is what they decide in memory."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from recordings import anchor_record, encode, recording_frames, span_record, step_record
from stagescope.api import read, store
from stagescope.ingest.recording import diagnostics, readings
from stagescope.ingest.recording.survey import Files, survey
from stagescope.model import TABLES
from stagescope.record import format as fmt
from stagescope.vocabulary.errors import OutputError

S = 10**9
RANKS, STEPS = 6, 40


@pytest.fixture
def recorded(tmp_path):
    """Return recordings of three machines: one has two clocks, one was slewed, and one times its devices."""
    folder = tmp_path / "recordings"
    folder.mkdir()
    for rank in range(RANKS):
        (folder / f"rank-{rank:05d}.sscope").write_bytes(recording(rank))
    return folder


def recording(rank):
    rng = np.random.default_rng(rank)
    machine = rank // 2
    began_ns = 5_000 * S * (1 + 7 * (rank == 1))
    spans = []
    for step in range(STEPS):
        first_ns = began_ns + step * S
        spans.append(step_record(step, first_ns, first_ns + S))
        spans.append(
            span_record(start_ns=first_ns, end_ns=first_ns + S // 2, step=step, stage=rank, microbatch=0)
        )
    frames = recording_frames(
        spans, rank=rank, world_size=RANKS, host=f"node-{machine}", boot=f"boot-{machine}"
    )
    moments_ns = began_ns + np.sort(rng.integers(0, STEPS * S, STEPS))
    widths_ns = rng.integers(100, 500, STEPS).tolist()
    anchors = [
        anchor_record(at_ns, 10**18 + at_ns - began_ns + int(rng.integers(50)), width_ns)
        for at_ns, width_ns in zip(moments_ns.tolist(), widths_ns, strict=True)
    ]
    frames[2:3] = [(fmt.CLOCK, anchor) for anchor in anchors]
    if machine == 1:
        ahead_ns = np.clip(moments_ns - began_ns - 10 * S, 0, 10 * S) // 2_000
        raw = zip(moments_ns.tolist(), (moments_ns - ahead_ns).tolist(), widths_ns, strict=True)
        frames[3:3] = [(fmt.RAW_CLOCK, fmt.RAW_ANCHOR.pack(*each)) for each in raw]
    if machine == 2:
        devices = ((at_ns, at_ns, 100, int(rng.integers(900, 9_000))) for at_ns in moments_ns.tolist())
        frames[3:3] = [(fmt.DEVICE_CLOCK, fmt.DEVICE_ANCHOR.pack(*each)) for each in devices]
    return encode(frames)


@pytest.mark.parametrize("most", [-1, 10**9], ids=["in files", "in memory"])
@pytest.mark.parametrize("align", [False, True])
def test_readings_decide_the_same_in_files_and_in_memory(most, align, recorded, monkeypatch, tmp_path):
    monkeypatch.setattr(readings, "MOST_IN_MEMORY", most)
    files = []
    take = readings.WaitingReadings.without

    def without(self, contents):
        found = take(self, contents)
        files.append(found.readings is not None)
        return found

    monkeypatch.setattr(readings.WaitingReadings, "without", without)
    stored = store(recorded, out=tmp_path / "stored", align=align, workers=1)
    assert files == [most < 0] * RANKS
    codes = set(stored.diagnostics["code"])
    assert {"clock.namespaces", "clock.slewed", "device.clock_error"} <= codes
    timeline, again = read(recorded, align=align), read(stored.path, align=align)
    for table in TABLES:
        assert getattr(again, table.name).equals(getattr(timeline, table.name)), table.name
    assert not (stored.path / "unencoded").exists()


def test_a_disk_without_space_for_readings_is_an_error(recorded, monkeypatch, tmp_path):
    def without(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(readings.WaitingReadings, "without", without)
    with pytest.raises(OutputError, match="No space left on device"):
        store(recorded, out=tmp_path / "stored", workers=1)
    assert not (tmp_path / "stored").exists()


def test_surveyed_recordings_have_few_readings(recorded, monkeypatch):
    monkeypatch.setattr(readings, "MOST_IN_MEMORY", -1)
    (recorded.parent / "waiting").mkdir()
    paths = tuple(sorted(recorded.iterdir()))
    found = survey(Files(paths, readings=recorded.parent / "waiting" / "0"))
    for process in found.processes:
        assert len(process.contents.anchors) <= 3
        assert readings.count_of_readings(process.contents, "anchors") == STEPS
        assert len(readings.readings_of(process.contents, "anchors")) == STEPS
    assert all(len(part.contents.anchors) <= 3 for _, part in found.outcomes)


@pytest.mark.parametrize("count", [1, 2, 9, 10])
@pytest.mark.parametrize("together", [1, 10**6])
def test_the_median_of_counted_values_is_that_of_all(count, together, monkeypatch):
    monkeypatch.setattr(diagnostics, "VALUES_TOGETHER", together)
    rng = np.random.default_rng(count)
    arrays = [rng.integers(900, 950, count) for _ in range(3)] + [rng.integers(900, 5_000, count)]
    values, counts = diagnostics._distinct(iter(arrays))
    every_us = np.concatenate(arrays) / 1e3
    assert diagnostics._median(values / 1e3, counts) == np.median(every_us)
    assert values[-1] / 1e3 == every_us.max()
