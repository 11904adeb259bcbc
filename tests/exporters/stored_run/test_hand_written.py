"""Hand-written pipelines, whose transfers and steps are found from other ranks, are stored in parts as well."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from hand_written_runs import IS_MESSAGE, SHAPE, WAYS, plain, planted, record, without_steps
from recorded_runs import small_frames, write_recordings
from recordings import encode
from stagescope.api import part_slices, read, settling, store, storing_parts
from stagescope.exporters.stored_run import write_stored_run
from stagescope.ingest import memory_need
from stagescope.ingest.recording import long_spans, survey
from stagescope.ingest.recording.columns import SPAN_DTYPE
from stagescope.ingest.recording.frames import ANCHOR_DTYPE, RAW_ANCHOR_DTYPE
from stagescope.model.stored_run import FORMAT, VERSION, Manifest
from stagescope.record import format as fmt
from stagescope.record.frameworks.host_activities import DATA_LOADING
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.kinds import BY_NAME
from stored_parts import assert_as_read, stored

SLICED = WAYS.keys() - {"forwards"}


@pytest.mark.parametrize("sizes", [(1, 10**9), (10**9, 100)], ids=["parts", "slices"])
@pytest.mark.parametrize("way", WAYS)
def test_a_hand_written_pipeline_is_stored_in_parts(way, sizes, monkeypatch, tmp_path):
    recordings = record(way, tmp_path)
    parts, found = stored(recordings, tmp_path / "run", monkeypatch, sizes)
    if sizes[0] == 1:
        assert parts >= 1
    else:
        assert (parts >= 6) == (way in SLICED)
    assert_as_read(recordings, found.path)


@pytest.mark.parametrize("way", ["plain, without steps", "forwards", "unmarked", "plain"])
def test_its_files_are_those_of_reading_at_once(way, monkeypatch, tmp_path):
    recordings = record(way, tmp_path, with_coordinates=False)
    _, found = stored(recordings, tmp_path / "run", monkeypatch, (1, 10**9))
    tmp_path.joinpath("memory").mkdir()
    empty = Manifest(FORMAT, VERSION, "stagescope", (), {}, aligned=True)
    at_once = write_stored_run(read(recordings), tmp_path / "memory", empty)
    assert found.manifest.parts == at_once.manifest.parts


@pytest.mark.parametrize("way", ["plain, without steps", "numbered through", "marks"])
def test_long_recordings_of_it_stay_in_their_files(way, monkeypatch, tmp_path):
    recordings = record(way, tmp_path)
    for module in (survey, part_slices, settling):
        monkeypatch.setattr(module, "SPANS_IN_MEMORY", 20)
    monkeypatch.setattr(long_spans, "SPANS_OF_BLOCK", 30)
    for path in recordings.glob("*.sscope"):
        path.write_bytes(encode(small_frames(path.read_bytes(), spans=20)))
    _, found = stored(recordings, tmp_path / "run", monkeypatch, (10**9, 80))
    assert_as_read(recordings, found.path)


def test_workers_that_settle_it_change_nothing(monkeypatch, tmp_path):
    recordings = record("plain, without steps", tmp_path)
    _, found = stored(recordings, tmp_path / "run", monkeypatch, (10**9, 100), workers=2)
    assert_as_read(recordings, found.path)


def test_every_transfer_of_a_planted_loop_gets_its_action_back(monkeypatch, tmp_path):
    recordings = record("plain, without steps", tmp_path)
    _, found = stored(recordings, tmp_path / "run", monkeypatch, (1, 10**9))
    truth, again = planted().spans.filter(IS_MESSAGE), read(found.path).spans.filter(IS_MESSAGE)
    key = ["rank", "step", "kind", "stage", "microbatch", "peer"]
    assert again.select(key).sort(key).equals(truth.select(key).sort(key))


def test_loading_of_data_at_the_begin_of_a_forward_counts_the_same(monkeypatch, tmp_path):
    timeline = planted()
    spans = without_steps(plain(timeline.spans))
    firsts = spans.filter(pl.col("kind") == "forward", pl.col("microbatch") == 1)
    loads = firsts.with_columns(
        kind=pl.lit("other", spans.schema["kind"]), lane=pl.lit("host", spans.schema["lane"]),
        start_ns=pl.col("start_ns") + 1_000, end_ns=pl.col("start_ns") + 3_000_000, stage=None, microbatch=None,
    ).cast({"stage": pl.Int32, "microbatch": pl.Int32})  # fmt: skip
    assert loads.height
    recordings = tmp_path / "recordings"
    write_recordings(
        timeline.with_spans(pl.concat([spans, loads])), recordings, SHAPE.stages, ranks_per_machine=2
    )
    for path in recordings.iterdir():
        frames = [(frame.type, bytes(frame.payload)) for frame in fmt.scan_frames(path.read_bytes())]
        rows = np.frombuffer(
            b"".join(payload for kind, payload in frames if kind == fmt.SPANS), SPAN_DTYPE
        ).copy()
        rows["name"][rows["kind"] == BY_NAME["other"].code] = 1
        others = [frame for frame in frames[1:] if frame[0] != fmt.SPANS]
        names = json.dumps({"first": 1, "names": [DATA_LOADING]}).encode()
        path.write_bytes(encode([frames[0], (fmt.NAMES, names), (fmt.SPANS, rows.tobytes()), *others]))
    monkeypatch.setattr(storing_parts, "SPANS_OF_SLICE", 100)
    found = store(recordings, out=tmp_path / "run")
    assert_as_read(recordings, found.path)
    moved = read(found.path).spans.filter(pl.col("kind") == "forward", pl.col("microbatch") == 1)
    assert (moved["end_ns"] - moved["start_ns"]).max() < (firsts["end_ns"] - firsts["start_ns"]).min()


def test_a_clock_that_was_slewed_is_converted_the_same(monkeypatch, tmp_path):
    recordings = record("plain, without steps", tmp_path)
    for path in sorted(recordings.iterdir())[:2]:
        frames = [(frame.type, bytes(frame.payload)) for frame in fmt.scan_frames(path.read_bytes())]
        anchors = np.frombuffer(
            b"".join(payload for kind, payload in frames if kind == fmt.CLOCK), ANCHOR_DTYPE
        )
        own_ns = anchors["monotonic_ns"]
        middle_ns = (own_ns[0] + own_ns[-1]) // 2
        raw = np.zeros(len(own_ns), RAW_ANCHOR_DTYPE)
        raw["monotonic_ns"], raw["width_ns"] = own_ns, 100
        raw["raw_ns"] = own_ns - np.where(own_ns > middle_ns, (own_ns - middle_ns) // 2_000, 0)
        path.write_bytes(encode([frames[0], (fmt.RAW_CLOCK, raw.tobytes()), *frames[1:]]))
    _, found = stored(recordings, tmp_path / "run", monkeypatch, (10**9, 100))
    assert_as_read(recordings, found.path)
    assert "clock.slewed" in set(found.diagnostics["code"])


def test_a_run_that_cannot_be_divided_is_refused_with_the_reason(monkeypatch, tmp_path):
    recordings = record("forwards", tmp_path)
    monkeypatch.setattr(memory_need, "memory_bytes", lambda: 50 * memory_need.LEAST_SPAN_BYTES)
    with pytest.raises(InputError, match="nothing states the steps, so that they cannot be divided") as found:
        store(recordings, out=tmp_path / "run")
    assert "stagescope.record.step" in str(found.value.hint)
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(survey, "_reason_of_files", lambda *_: "files of its recordings were renamed")
    with pytest.raises(InputError, match="in files that were deleted meanwhile, or renamed"):
        store(recordings, out=tmp_path / "run")


def test_some_steps_that_need_more_memory_than_there_is_are_refused(monkeypatch, tmp_path):
    recordings = record("plain", tmp_path)
    monkeypatch.setattr(memory_need, "memory_bytes", lambda: 600 * memory_need.LEAST_SPAN_BYTES)
    with pytest.raises(InputError, match="which need at least"):
        read(recordings, steps="0:10")
    assert read(recordings, steps="0:1").spans.height < 600
