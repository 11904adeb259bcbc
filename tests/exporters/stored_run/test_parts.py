"""A run that is stored one part after the other is the same to the byte as one that is stored from memory."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from recorded_runs import write_recordings
from stagescope.api import read, run_division, store, storing_parts
from stagescope.clocks import thinning
from stagescope.exporters.stored_run import write_stored_run
from stagescope.model import TABLES
from stagescope.model.stored_run import FORMAT, VERSION, Manifest
from stagescope.vocabulary.errors import InputError
from stored_parts import SHAPE

if TYPE_CHECKING:
    from pathlib import Path

SPANS_OF_PIPELINE = 1_056


def stored_by_parts(
    recordings: Path, out: Path, monkeypatch, spans_of_part: int, **where
) -> tuple[int, object]:
    """Store recordings with parts of some size; return in how many parts, and what was stored."""
    parts = []
    divide = run_division.divide_run

    def counted(*arguments):
        divided = divide(*arguments)
        parts.extend(divided.parts)
        return divided

    monkeypatch.setattr(storing_parts, "SPANS_OF_PART", spans_of_part)
    monkeypatch.setattr(storing_parts, "divide_run", counted)
    stored = store(recordings, out=out, **where)
    return len(parts), stored


def assert_as_in_memory(recordings: Path, stored, tmp_path: Path) -> None:
    timeline = read(recordings)
    again = read(stored.path)
    for table in TABLES:
        assert_frame_equal(getattr(again, table.name), getattr(timeline, table.name))
    assert again.alignment == timeline.alignment
    tmp_path.joinpath("memory").mkdir()
    empty = Manifest(FORMAT, VERSION, "stagescope", (), {}, aligned=True)
    assert stored.manifest.parts == write_stored_run(timeline, tmp_path / "memory", empty).manifest.parts


@pytest.mark.parametrize(
    ("spans_of_part", "count"), [(10**9, 1), (2 * SPANS_OF_PIPELINE, 2), (1, 4)], ids=["one", "two", "four"]
)
def test_the_number_of_parts_changes_nothing(recordings, spans_of_part, count, monkeypatch, tmp_path):
    parts, stored = stored_by_parts(recordings, tmp_path / "run", monkeypatch, spans_of_part)
    assert parts == count
    assert_as_in_memory(recordings, stored, tmp_path)
    assert len(read(stored.path).alignment.machines) == 8


def test_thinned_observations_of_clocks_are_those_of_memory(recordings, monkeypatch, tmp_path):
    monkeypatch.setattr(thinning, "OF_RUN", 0)
    monkeypatch.setattr(thinning, "LEAST_OF_PAIR", 12)
    _, stored = stored_by_parts(recordings, tmp_path / "run", monkeypatch, 1)
    assert_as_in_memory(recordings, stored, tmp_path)
    counts = [machine.observation_count for machine in read(stored.path).alignment.machines]
    monkeypatch.undo()
    assert sum(counts) < sum(machine.observation_count for machine in read(recordings).alignment.machines)


def test_how_far_apart_ranks_leave_reductions_is_that_of_memory(planted, monkeypatch, tmp_path):
    later_ns = pl.Series(np.random.default_rng(4).integers(0, 300_000, planted.spans.height))
    skewed = planted.spans.with_columns(
        end_ns=pl.col("end_ns") + pl.when(pl.col("kind") == "grad_reduce").then(later_ns).otherwise(0)
    )
    write_recordings(planted.with_spans(skewed), tmp_path / "recordings", SHAPE.stages, ranks_per_machine=2)
    _, stored = stored_by_parts(tmp_path / "recordings", tmp_path / "run", monkeypatch, 1)
    assert_as_in_memory(tmp_path / "recordings", stored, tmp_path)
    exits = read(stored.path).alignment.exits
    assert [each.group for each in exits] == [f"gradient reductions of stage {stage}" for stage in range(4)]
    assert all(80_000 < each.scatter_ns < 250_000 for each in exits)


@pytest.mark.parametrize(
    "where",
    [{"workers": 2}, {"cluster": "local:2"}, pytest.param({"cluster": "ray"}, marks=pytest.mark.exhaustive)],
    ids=["processes", "dask", "ray"],
)
@pytest.mark.filterwarnings("default")  # of the libraries of a cluster
def test_workers_that_store_parts_change_nothing(recordings, where, monkeypatch, tmp_path):
    if "cluster" in where:
        pytest.importorskip("ray" if where["cluster"] == "ray" else "distributed")
    parts, stored = stored_by_parts(recordings, tmp_path / "run", monkeypatch, 1, **where)
    assert parts == 4
    assert_as_in_memory(recordings, stored, tmp_path)


def test_a_clock_that_was_set_is_found_in_parts_as_well(planted, monkeypatch, tmp_path):
    middle_ns = (planted.spans["start_ns"].min() + planted.spans["end_ns"].max()) // 2
    is_set = pl.col("rank").is_in([4, 5]) & (pl.col("start_ns") > middle_ns)
    moved = [
        pl.when(is_set).then(pl.col(name) + 3_000_000).otherwise(name).alias(name)
        for name in ("start_ns", "end_ns")
    ]
    recordings = tmp_path / "recordings"
    write_recordings(
        planted.with_spans(planted.spans.with_columns(moved)), recordings, SHAPE.stages, ranks_per_machine=2
    )
    _, stored = stored_by_parts(recordings, tmp_path / "run", monkeypatch, 1)
    assert_as_in_memory(recordings, stored, tmp_path)
    assert len(read(stored.path).alignment.adjustments) == 1


def test_stages_that_no_file_states_are_those_of_the_whole_run(planted, monkeypatch, tmp_path):
    spans = planted.spans.with_columns(stage=pl.lit(None, pl.Int32))
    recordings = tmp_path / "recordings"
    write_recordings(planted.with_spans(spans), recordings, SHAPE.stages, ranks_per_machine=2)
    _, stored = stored_by_parts(recordings, tmp_path / "run", monkeypatch, 1)
    assert_as_in_memory(recordings, stored, tmp_path)
    placed = read(stored.path).spans.filter(pl.col("kind") != "grad_reduce")
    assert not placed["stage"].null_count()


def _truncate(recordings: Path) -> None:
    file = recordings / "rank-00003.sscope"
    file.write_bytes(file.read_bytes()[:-20_000])


def _lose_half(recordings: Path) -> None:
    for file in sorted(recordings.iterdir())[::2]:
        file.unlink()


def _copy(recordings: Path) -> None:
    shutil.copytree(recordings, recordings / "backup")


def _make_unreadable(recordings: Path) -> None:
    recordings.joinpath("rank-00006.sscope").unlink()
    recordings.joinpath("rank-00006.sscope").symlink_to("nowhere")


def _damage(recordings: Path) -> None:
    file = recordings / "rank-00009.sscope"
    content = bytearray(file.read_bytes())
    content[10_000] ^= 255
    file.write_bytes(content)


@pytest.mark.parametrize("spoil", [_truncate, _lose_half, _copy, _make_unreadable, _damage])
def test_what_is_wrong_with_files_is_reported_in_parts_as_well(recordings, spoil, monkeypatch, tmp_path):
    spoil(recordings)
    parts, stored = stored_by_parts(recordings, tmp_path / "run", monkeypatch, 1)
    assert parts > 1
    assert_as_in_memory(recordings, stored, tmp_path)


def test_impossible_rows_are_counted_in_parts_as_well(planted, monkeypatch, tmp_path):
    is_late = pl.col("step") == 11
    ends = (
        pl.when(is_late & (pl.col("kind") == "send_forward")).then(pl.col("start_ns") - 7).otherwise("end_ns")
    )
    numbers = pl.when(is_late & (pl.col("kind") == "backward")).then(-5).otherwise("microbatch")
    spans = planted.spans.with_columns(end_ns=ends, microbatch=numbers.cast(pl.Int32))
    recordings = tmp_path / "recordings"
    write_recordings(planted.with_spans(spans), recordings, SHAPE.stages, ranks_per_machine=2)
    _, stored = stored_by_parts(recordings, tmp_path / "run", monkeypatch, 1)
    assert_as_in_memory(recordings, stored, tmp_path)
    assert set(stored.diagnostics["code"]) >= {"values.impossible", "spans.reversed"}


def test_files_of_another_run_with_the_same_ranks_are_refused(recordings, planted, tmp_path):
    other = tmp_path / "recordings" / "other"
    write_recordings(planted, other, SHAPE.stages, ranks_per_machine=2)
    for file in other.iterdir():
        file.write_bytes(file.read_bytes().replace(b'"run": "planted"', b'"run": "another"'))
    with pytest.raises(InputError):
        store(recordings, out=tmp_path / "run")


def test_storing_in_parts_goes_on_where_it_was_interrupted(recordings, monkeypatch, tmp_path):
    seen = []

    def interrupt(part):
        seen.append(part.path)
        if len(seen) == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stored_by_parts(recordings, tmp_path / "run", monkeypatch, 1, on_written=interrupt)
    monkeypatch.undo()
    _, resumed = stored_by_parts(recordings, tmp_path / "run", monkeypatch, 1)
    assert resumed.kept == 9
    assert_as_in_memory(recordings, resumed, tmp_path)


def test_files_with_other_rows_of_the_run_are_not_kept(recordings, monkeypatch, tmp_path):
    divide = storing_parts.ranges_of_counts
    monkeypatch.setattr(storing_parts, "ranges_of_counts", lambda counts, _: divide(counts, 1))
    narrow = store(recordings, out=tmp_path / "run")
    monkeypatch.undo()
    again = store(recordings, out=tmp_path / "run")
    assert again.manifest.parts != narrow.manifest.parts
    assert_as_in_memory(recordings, again, tmp_path)


def test_checksums_are_part_of_the_first_pass_and_of_its_progress(recordings, monkeypatch, tmp_path):
    events: list[object] = []
    source_of = storing_parts.source_of

    def noted(file):
        events.append(file)
        return source_of(file)

    monkeypatch.setattr(storing_parts, "source_of", noted)
    stored = store(recordings, out=tmp_path / "run", on_progress=lambda done, _: events.append(done))
    files = sorted(recordings.iterdir())
    assert events[0] == 0
    assert [event for event in events if not isinstance(event, int)] == files
    assert [source.path for source in stored.manifest.sources] == [str(file) for file in files]


def test_progress_counts_files_up_to_all_of_them(recordings, tmp_path):
    seen: list[tuple[int, int]] = []
    store(recordings, out=tmp_path / "run", on_progress=lambda *counts: seen.append(counts))
    assert seen[0] == (0, 16)
    assert seen[-1] == (16, 16)
    assert seen == sorted(set(seen))
