"""Some steps of a run are stored in parts and slices the same to the byte as when they are read at once."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest

from hand_written_runs import record
from planted_runs import Shape, random_times, run
from recorded_runs import small_frames, write_recordings
from recordings import encode
from stagescope.api import part_slices, read, reading, settling, store, storing_parts
from stagescope.ingest.recording import long_spans, reader, survey
from stagescope.ingest.recording.columns import SPAN_DTYPE
from stagescope.model import SPANS
from stagescope.model.validate import conform
from stagescope.record import format as fmt
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.kinds import STEP_CODE
from stored_parts import assert_as_read, assert_files_as_read, interrupted_after_spans, stored

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHAPE = Shape(pipelines=2, stages=4, microbatches=4, steps=16)
STEPS = "4:13"
SIZES = {"parts": (1, 10**9), "slices": (10**9, 60)}


@pytest.fixture(scope="module")
def planted():
    """Return a run of 2 pipelines on 4 machines, with a checkpoint of every rank after each step."""
    timeline = run(random_times(SHAPE))
    last = timeline.spans.group_by("rank", "step").agg(pl.max("end_ns"))
    saves = last.select(
        "rank", kind=pl.lit("other"), lane=pl.lit("host"), start_ns=pl.col("end_ns") + 10,
        end_ns=pl.col("end_ns") + 40_000,
    )  # fmt: skip
    return timeline.with_spans(conform(pl.concat([timeline.spans, saves], how="diagonal_relaxed"), SPANS))


@pytest.fixture
def recordings(planted, tmp_path):
    write_recordings(planted, tmp_path / "recordings", SHAPE.stages, ranks_per_machine=2)
    return tmp_path / "recordings"


def change(path: Path, spans: Callable[[np.ndarray], np.ndarray]) -> None:
    """Write a recording again with other spans."""
    frames = [(frame.type, bytes(frame.payload)) for frame in fmt.scan_frames(path.read_bytes())]
    path.write_bytes(
        encode(
            (
                kind,
                spans(np.frombuffer(payload, SPAN_DTYPE).copy()).tobytes() if kind == fmt.SPANS else payload,
            )
            for kind, payload in frames
        )
    )


def without_markers(rows: np.ndarray) -> np.ndarray:
    return rows[rows["kind"] != STEP_CODE]


def without_steps(rows: np.ndarray) -> np.ndarray:
    others = without_markers(rows)
    others["step"] = fmt.NONE
    return others


def lack_all_markers(recordings: Path) -> None:
    for path in recordings.iterdir():
        change(path, without_markers)


def lack_steps_on_two_ranks(recordings: Path) -> None:
    for rank in (2, 5):
        change(recordings / f"rank-{rank:05}.sscope", without_steps)


def lack_markers_on_a_rank(recordings: Path) -> None:
    change(recordings / "rank-00003.sscope", without_markers)


def have_gaps(recordings: Path) -> None:
    for path in sorted(recordings.iterdir())[::3]:
        change(path, lambda rows: rows[~np.isin(rows["step"], [3, 4, 8, 13, 14])])


def end_early(recordings: Path) -> None:
    change(recordings / "rank-00006.sscope", lambda rows: rows[rows["step"] < 6])


def truncate(recordings: Path) -> None:
    file = recordings / "rank-00003.sscope"
    file.write_bytes(file.read_bytes()[:-3_000])


def miss_files(recordings: Path) -> None:
    (recordings / "rank-00001.sscope").unlink()


def copy(recordings: Path) -> None:
    shutil.copytree(recordings, recordings / "backup")


def change_nothing(recordings: Path) -> None:
    assert recordings.is_dir()


WAYS = [
    change_nothing, lack_all_markers, lack_steps_on_two_ranks, lack_markers_on_a_rank, have_gaps, end_early, truncate,
    miss_files, copy,
]  # fmt: skip


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("way", WAYS)
def test_some_steps_are_stored_as_if_they_were_read_at_once(way, sizes, recordings, monkeypatch, tmp_path):
    way(recordings)
    with monkeypatch.context() as changed:
        changed.setattr(storing_parts, "MOST_SPANS", 10**6)
        parts, found = stored(recordings, tmp_path / "run", changed, sizes, steps=STEPS)
    assert parts >= 2
    assert_files_as_read(recordings, found, tmp_path / "memory", steps=STEPS)


@pytest.mark.parametrize("steps", [":1", "15:", "0:100", "7:8"])
def test_any_range_is_stored_in_parts(steps, recordings, monkeypatch, tmp_path):
    _, found = stored(recordings, tmp_path / "run", monkeypatch, (1, 60), steps=steps)
    assert_files_as_read(recordings, found, tmp_path / "memory", steps=steps)


def test_some_steps_are_never_read_at_once(recordings, monkeypatch, tmp_path):
    monkeypatch.setattr(reading, "read_inputs", lambda *_: pytest.fail("the run is read at once"))
    stored(recordings, tmp_path / "run", monkeypatch, (1, 60), steps=STEPS)


def test_their_timestamps_stay_as_recorded_if_the_clocks_are_not_aligned(recordings, monkeypatch, tmp_path):
    _, found = stored(recordings, tmp_path / "run", monkeypatch, (1, 60), steps=STEPS, align=False)
    assert_files_as_read(recordings, found, tmp_path / "memory", steps=STEPS, align=False)


def test_workers_that_store_some_steps_change_nothing(recordings, monkeypatch, tmp_path):
    lack_steps_on_two_ranks(recordings)
    _, found = stored(recordings, tmp_path / "run", monkeypatch, (10**9, 60), steps=STEPS, workers=2)
    assert_files_as_read(recordings, found, tmp_path / "memory", steps=STEPS)


@pytest.mark.parametrize("way", [change_nothing, lack_all_markers, lack_steps_on_two_ranks])
def test_long_recordings_stay_in_their_files(way, recordings, monkeypatch, tmp_path):
    way(recordings)
    for module in (survey, part_slices, reader):
        monkeypatch.setattr(module, "SPANS_IN_MEMORY", 20)
    monkeypatch.setattr(long_spans, "SPANS_OF_BLOCK", 30)
    for path in recordings.glob("*.sscope"):
        path.write_bytes(encode(small_frames(path.read_bytes(), spans=20)))
    _, found = stored(recordings, tmp_path / "run", monkeypatch, (10**9, 60), steps=STEPS)
    assert_files_as_read(recordings, found, tmp_path / "memory", steps=STEPS)


@pytest.mark.parametrize("sizes", [(1, 10**9), (10**9, 100)], ids=["parts", "slices"])
@pytest.mark.parametrize(
    "way",
    [
        "plain",
        "plain, without steps",
        "numbered through",
        "marks, without steps",
        "unmarked",
        "overlapping steps",
    ],
)
def test_some_steps_of_a_hand_written_pipeline_are_stored_in_parts(way, sizes, monkeypatch, tmp_path):
    recordings = record(way, tmp_path)
    for module in (survey, part_slices, settling):
        monkeypatch.setattr(module, "SPANS_IN_MEMORY", 20)
    _, found = stored(recordings, tmp_path / "run", monkeypatch, sizes, steps="3:9")
    assert_as_read(recordings, found.path, steps="3:9")


def test_steps_in_which_no_transfer_names_its_peer_are_stored_in_parts(recordings, monkeypatch, tmp_path):
    def early_transfers(rows: np.ndarray) -> np.ndarray:
        others = without_steps(rows)
        return others[(others["peer"] == fmt.NONE) | (np.arange(len(others)) < 40)]

    for path in recordings.iterdir():
        keeps = path.name in {"rank-00000.sscope", "rank-00001.sscope"}
        change(path, early_transfers if keeps else lambda rows: rows[rows["peer"] == fmt.NONE])
    _, found = stored(recordings, tmp_path / "run", monkeypatch, (1, 10**9), steps=STEPS)
    assert not found.diagnostics.is_empty()
    assert_files_as_read(recordings, found, tmp_path / "memory", steps=STEPS)


@pytest.mark.parametrize(("way", "known"), [(change_nothing, "0 to 15"), (lack_all_markers, "0 to 15")])
def test_steps_that_were_not_recorded_are_the_same_error(way, known, recordings, tmp_path):
    way(recordings)
    for call in (
        lambda: store(recordings, out=tmp_path / "run", steps="90:91"),
        lambda: read(recordings, steps="90:91"),
    ):
        with pytest.raises(InputError, match=rf"there is no step in 90:91: the run has steps {known}"):
            call()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("plain, without steps", "there is no step in 90:91: the run has steps 0 to 11"),
        ("forwards", "steps 90:91 cannot be read: nothing states the steps of this run"),
    ],
)
def test_steps_that_are_found_to_be_others_leave_nothing_behind(way, message, tmp_path):
    recordings = record(way, tmp_path)
    with pytest.raises(InputError, match=message):
        read(recordings, steps="90:91")
    with pytest.raises(InputError, match=message):
        store(recordings, out=tmp_path / "run", steps="90:91")
    assert not (tmp_path / "run").exists()


def test_steps_that_are_found_to_be_others_leave_the_run_that_they_would_replace(tmp_path):
    recordings = record("plain, without steps", tmp_path)
    store(recordings, out=tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="there is no step in 90:91"):
        store(recordings, out=tmp_path / "run", steps="90:91", force=True)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_a_step_without_a_marker_can_be_chosen(recordings, monkeypatch, tmp_path):
    for path in recordings.iterdir():
        change(path, lambda rows: rows[(rows["kind"] != STEP_CODE) | (rows["step"] != 15)])
    _, found = stored(recordings, tmp_path / "run", monkeypatch, (1, 10**9), steps="15:16")
    assert set(read(found.path).spans["step"].drop_nulls()) == {15}
    assert_files_as_read(recordings, found, tmp_path / "memory", steps="15:16")


def test_storing_some_steps_goes_on_where_it_was_interrupted(recordings, monkeypatch, tmp_path):
    expected = store(recordings, out=tmp_path / "whole", steps=STEPS)
    with interrupted_after_spans(monkeypatch):
        store(recordings, out=tmp_path / "run", steps=STEPS)
    again = store(recordings, out=tmp_path / "run", steps=STEPS)
    assert again.manifest.parts == expected.manifest.parts
    assert again.kept > 0
    assert not (tmp_path / "run" / "unencoded").exists()
