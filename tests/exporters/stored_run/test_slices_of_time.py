"""Pipelines without steps are stored in slices of their time the same to the byte as when they are read at once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest

from hand_written_runs import plain
from planted_runs import Shape, random_times, run
from recorded_runs import small_frames, write_recordings
from recordings import encode
from stagescope.api import part_slices, read, run_parts, store, storing_parts
from stagescope.clocks import thinning
from stagescope.exporters.stored_run import parquet
from stagescope.ingest import memory_need
from stagescope.ingest.recording import long_spans, survey
from stagescope.ingest.recording.columns import SPAN_DTYPE
from stagescope.model import SPANS
from stagescope.model.validate import conform
from stagescope.record import format as fmt
from stagescope.record.frameworks.host_activities import DATA_LOADING
from stagescope.vocabulary.kinds import BY_NAME, STEP_CODE
from stored_parts import assert_files_as_read, interrupted_after_spans, stored

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHAPE = Shape(pipelines=2, stages=4, microbatches=5, steps=6)
IS_BACKWARD = pl.col("kind").is_in(["backward", "grad_reduce"])


def served(timeline):
    """Return the forwards of a run, and all transfers, as a server has them whose stages confirm what they got."""
    forwards = timeline.spans.filter(~IS_BACKWARD)
    return timeline.with_spans(conform(forwards.with_columns(step=pl.lit(None, pl.Int32)), SPANS))


def requests(timeline):
    """Return the same with a number for each micro-batch of the run."""
    number = pl.col("microbatch") + pl.col("step") * SHAPE.microbatches
    return served(timeline.with_spans(timeline.spans.with_columns(microbatch=number.cast(pl.Int32))))


WAYS = {"repeated": served, "numbered": requests}


@pytest.fixture(scope="module")
def planted():
    return run(random_times(SHAPE))


def record(timeline, place: Path) -> Path:
    write_recordings(timeline, place, SHAPE.stages, ranks_per_machine=2)
    for path in place.iterdir():
        change(path, lambda rows: rows[rows["kind"] != STEP_CODE])
    return place


def change(path: Path, spans: Callable[[np.ndarray], np.ndarray], *, named: bool = False) -> None:
    """Write a recording again with other spans."""
    frames = [(frame.type, bytes(frame.payload)) for frame in fmt.scan_frames(path.read_bytes())]
    rows = spans(np.frombuffer(b"".join(own for kind, own in frames if kind == fmt.SPANS), SPAN_DTYPE).copy())
    names = (fmt.NAMES, json.dumps({"first": 1, "names": [DATA_LOADING]}).encode())
    end = (fmt.END, json.dumps({"spans": len(rows), "dropped_spans": 0, "reason": "exit"}).encode())
    others = [frame for frame in frames[1:] if frame[0] not in {fmt.SPANS, fmt.END}]
    path.write_bytes(
        encode([frames[0], *([names] if named else []), *others, (fmt.SPANS, rows.tobytes()), end])
    )


@pytest.fixture(params=WAYS)
def recordings(request, planted, tmp_path):
    return record(WAYS[request.param](planted), tmp_path / "recordings")


@pytest.mark.parametrize("spans_of_slice", [12, 40])
def test_slices_of_time_change_nothing(spans_of_slice, recordings, monkeypatch, tmp_path):
    parts, found = stored(recordings, tmp_path / "run", monkeypatch, (10**9, spans_of_slice))
    assert parts >= 6
    assert read(recordings).spans["step"].null_count() == found.manifest.span_count
    assert_files_as_read(recordings, found, tmp_path / "memory")
    assert all(machine.observation_count for machine in read(found.path).alignment.machines)
    assert "aligned" in {machine.state for machine in read(found.path).alignment.machines}


def test_files_with_several_groups_of_rows_are_the_same(recordings, monkeypatch, tmp_path):
    monkeypatch.setattr(parquet, "ROWS_PER_GROUP", 64)
    _, found = stored(recordings, tmp_path / "run", monkeypatch, (10**9, 40))
    assert_files_as_read(recordings, found, tmp_path / "memory")


def test_workers_that_store_slices_of_time_change_nothing(recordings, monkeypatch, tmp_path):
    _, found = stored(recordings, tmp_path / "run", monkeypatch, (10**9, 40), workers=2)
    assert_files_as_read(recordings, found, tmp_path / "memory")


def test_timestamps_that_stay_as_recorded_are_the_same(recordings, monkeypatch, tmp_path):
    _, found = stored(recordings, tmp_path / "run", monkeypatch, (10**9, 40), align=False)
    assert_files_as_read(recordings, found, tmp_path / "memory", align=False)


def test_dense_observations_of_clocks_are_thinned_together(recordings, monkeypatch, tmp_path):
    monkeypatch.setattr(thinning, "OF_RUN", 0)
    monkeypatch.setattr(thinning, "LEAST_OF_PAIR", 12)
    _, found = stored(recordings, tmp_path / "run", monkeypatch, (10**9, 40))
    assert_files_as_read(recordings, found, tmp_path / "memory")


def test_long_recordings_stay_in_their_files(recordings, monkeypatch, tmp_path):
    for module in (survey, part_slices):
        monkeypatch.setattr(module, "SPANS_IN_MEMORY", 20)
    monkeypatch.setattr(long_spans, "SPANS_OF_BLOCK", 30)
    for path in recordings.glob("*.sscope"):
        path.write_bytes(encode(small_frames(path.read_bytes(), spans=20)))
    _, found = stored(recordings, tmp_path / "run", monkeypatch, (10**9, 40))
    assert_files_as_read(recordings, found, tmp_path / "memory")


def test_a_hand_written_pipeline_without_backwards_is_divided_by_time(planted, monkeypatch, tmp_path):
    timeline = requests(planted)
    recordings = record(timeline.with_spans(conform(plain(timeline.spans), SPANS)), tmp_path / "recordings")
    parts, found = stored(recordings, tmp_path / "run", monkeypatch, (10**9, 40))
    assert parts >= 6
    assert_files_as_read(recordings, found, tmp_path / "memory")


def test_a_clock_that_was_set_changes_nothing(planted, monkeypatch, tmp_path):
    timeline = served(planted)
    middle_ns = (timeline.spans["start_ns"].min() + timeline.spans["end_ns"].max()) // 2
    is_set = pl.col("rank").is_in([2, 3]) & (pl.col("start_ns") > middle_ns)
    moved = [
        pl.when(is_set).then(pl.col(name) + 3_000_000).otherwise(name).alias(name)
        for name in ("start_ns", "end_ns")
    ]
    recordings = record(timeline.with_spans(timeline.spans.with_columns(moved)), tmp_path / "recordings")
    _, found = stored(recordings, tmp_path / "run", monkeypatch, (10**9, 40))
    assert_files_as_read(recordings, found, tmp_path / "memory")
    assert len(read(found.path).alignment.adjustments) == 1


@pytest.mark.parametrize("spans_of_slice", [20, 40])
def test_loading_of_data_at_the_begin_of_a_forward_counts_the_same(
    spans_of_slice, planted, monkeypatch, tmp_path
):
    recordings = record(served(planted), tmp_path / "recordings")

    def with_loads(rows: np.ndarray) -> np.ndarray:
        loads = rows[rows["kind"] == BY_NAME["forward"].code].copy()
        loads["kind"], loads["name"] = BY_NAME["other"].code, 1
        length_ns = (loads["end_ns"] - loads["start_ns"]) // 3
        loads["start_ns"] += np.where(np.arange(len(loads)) % 2, 1_000, -1_000)
        loads["end_ns"] = loads["start_ns"] + length_ns
        for name in ("stage", "microbatch"):
            loads[name] = fmt.NONE
        together = np.concatenate([rows, loads])
        return together[np.argsort(together["end_ns"], kind="stable")]

    for path in recordings.iterdir():
        change(path, with_loads, named=True)
    _, found = stored(recordings, tmp_path / "run", monkeypatch, (10**9, spans_of_slice))
    assert_files_as_read(recordings, found, tmp_path / "memory")


def end_early(recordings: Path) -> None:
    change(recordings / "rank-00002.sscope", lambda rows: rows[: len(rows) // 3])


def lack_receives(recordings: Path) -> None:
    change(
        recordings / "rank-00005.sscope",
        lambda rows: rows[(rows["kind"] != BY_NAME["recv_forward"].code) | (np.arange(len(rows)) % 5 > 0)],
    )


def have_no_span(recordings: Path) -> None:
    change(recordings / "rank-00006.sscope", lambda rows: rows[:0])


def truncate(recordings: Path) -> None:
    file = recordings / "rank-00003.sscope"
    file.write_bytes(file.read_bytes()[:-3_000])


def miss_files(recordings: Path) -> None:
    (recordings / "rank-00001.sscope").unlink()


@pytest.mark.parametrize("way", [end_early, lack_receives, have_no_span, truncate, miss_files])
def test_what_is_wrong_with_files_is_reported_in_slices_as_well(way, recordings, monkeypatch, tmp_path):
    way(recordings)
    parts, found = stored(recordings, tmp_path / "run", monkeypatch, (10**9, 40))
    assert parts >= 6
    assert_files_as_read(recordings, found, tmp_path / "memory")


def test_a_long_pipeline_without_steps_is_no_longer_refused(recordings, monkeypatch, tmp_path):
    monkeypatch.setattr(memory_need, "memory_bytes", lambda: 100 * memory_need.LEAST_SPAN_BYTES)
    _, found = stored(recordings, tmp_path / "run", monkeypatch, (10**9, 40))
    assert found.manifest.span_count > 100


def test_no_more_than_the_spans_of_a_rank_and_a_slice_are_in_memory_together(
    recordings, monkeypatch, tmp_path
):
    heights = []
    write = run_parts.write_stepless

    def noted(partition, pieces, directory):
        def listed():
            for piece in pieces:
                heights.append(piece.height)
                yield piece

        return write(partition, listed(), directory)

    monkeypatch.setattr(run_parts, "write_stepless", noted)
    _, found = stored(recordings, tmp_path / "run", monkeypatch, (10**9, 40))
    assert sum(heights) == found.manifest.span_count
    assert max(heights) < 40


def test_storing_goes_on_where_it_was_interrupted(recordings, monkeypatch, tmp_path):
    monkeypatch.setattr(storing_parts, "SPANS_OF_SLICE", 40)
    monkeypatch.setattr(storing_parts, "SPANS_OF_PART", 1)
    expected = store(recordings, out=tmp_path / "whole")
    with interrupted_after_spans(monkeypatch):
        store(recordings, out=tmp_path / "run")
    again = store(recordings, out=tmp_path / "run")
    assert again.manifest.parts == expected.manifest.parts
    assert again.kept > 0
