"""A part that is read in slices of its steps is stored the same to the byte as one that is read at once."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from planted_runs import Shape, random_times, run
from recorded_runs import small_frames, write_recordings
from recordings import encode
from stagescope.api import part_slices, read, run_division, store, storing_parts
from stagescope.clocks import thinning
from stagescope.ingest import memory_need
from stagescope.ingest.recording import long_spans, survey
from stagescope.vocabulary import limits
from stagescope.vocabulary.errors import InputError

SHAPE = Shape(pipelines=2, stages=4, microbatches=4, steps=12)


@pytest.fixture(scope="module")
def planted():
    """Return a run of 2 pipelines on 4 machines, with a checkpoint of every rank after each third step."""
    timeline = run(replace(random_times(SHAPE), reduces=True))
    last = timeline.spans.filter(pl.col("step") % 3 == 2).group_by("rank", "step").agg(pl.max("end_ns"))
    saves = last.select(
        "rank", kind=pl.lit("other"), lane=pl.lit("host"), start_ns="end_ns",
        end_ns=pl.col("end_ns") + 40_000,
    )  # fmt: skip
    saves = saves.cast({name: timeline.spans.schema[name] for name in saves.columns})
    return timeline.with_spans(pl.concat([timeline.spans, saves], how="diagonal"))


@pytest.fixture
def recordings(planted, tmp_path):
    write_recordings(planted, tmp_path / "recordings", SHAPE.stages, ranks_per_machine=2)
    return tmp_path / "recordings"


def stored_in_slices(recordings, out, monkeypatch, spans_of_slice: int, **where):
    """Store recordings with slices of about this size; return what was stored, and the parts that were written."""
    written = []
    divide = run_division.parts_to_store

    def listed(*arguments):
        found = divide(*arguments)
        written.extend(found)
        return found

    monkeypatch.setattr(storing_parts, "SPANS_OF_SLICE", spans_of_slice)
    monkeypatch.setattr(storing_parts, "MOST_SPANS", 300)
    monkeypatch.setattr(storing_parts, "parts_to_store", listed)
    return store(recordings, out=out, **where), written


@pytest.mark.parametrize("spans_of_slice", [1, 80, 300])
def test_slices_change_nothing(recordings, spans_of_slice, monkeypatch, tmp_path):
    stored, written = stored_in_slices(recordings, tmp_path / "run", monkeypatch, spans_of_slice)
    assert {group.only for group in written} > {-1, 0, 1}
    timeline = read(recordings)
    again = read(stored.path)
    assert again.spans.equals(timeline.spans)
    assert again.steps.equals(timeline.steps)
    assert again.counters.equals(timeline.counters)
    assert again.diagnostics.equals(timeline.diagnostics)
    assert again.alignment == timeline.alignment
    monkeypatch.setattr(storing_parts, "SPANS_OF_SLICE", 10**9)
    assert store(recordings, out=tmp_path / "at-once").manifest.parts == stored.manifest.parts
    assert again.spans.filter(pl.col("kind") == "other", pl.col("step").is_null()).height == 32


def test_workers_that_read_slices_change_nothing(recordings, monkeypatch, tmp_path):
    stored, _ = stored_in_slices(recordings, tmp_path / "run", monkeypatch, 80, workers=2)
    assert read(stored.path).spans.equals(read(recordings).spans)


def test_a_part_that_would_have_two_slices_is_read_at_once(recordings, monkeypatch, tmp_path):
    _, written = stored_in_slices(recordings, tmp_path / "run", monkeypatch, 500)
    assert [group.only for group in written] == [None]


def test_recordings_that_stay_in_their_files_change_nothing(recordings, monkeypatch, tmp_path):
    monkeypatch.setattr(survey, "SPANS_IN_MEMORY", 20)
    monkeypatch.setattr(part_slices, "SPANS_IN_MEMORY", 20)
    monkeypatch.setattr(long_spans, "SPANS_OF_BLOCK", 30)
    for path in recordings.glob("*.sscope"):
        path.write_bytes(encode(small_frames(path.read_bytes(), spans=20)))
    stored, _ = stored_in_slices(recordings, tmp_path / "run", monkeypatch, 80)
    monkeypatch.setattr(survey, "SPANS_IN_MEMORY", 10**9)
    monkeypatch.setattr(storing_parts, "SPANS_OF_SLICE", 10**9)
    assert store(recordings, out=tmp_path / "at-once").manifest.parts == stored.manifest.parts
    again, timeline = read(stored.path), read(recordings)
    assert again.spans.equals(timeline.spans)
    assert again.steps.equals(timeline.steps)
    assert again.counters.equals(timeline.counters)
    assert again.diagnostics.equals(timeline.diagnostics)


@pytest.mark.parametrize("is_sliced", [True, False])
def test_a_run_whose_spans_have_to_be_in_memory_together_is_refused_if_it_is_larger(
    is_sliced, recordings, monkeypatch, tmp_path
):
    monkeypatch.setattr(memory_need, "memory_bytes", lambda: 200 * memory_need.LEAST_SPAN_BYTES)
    if is_sliced:
        stored, _ = stored_in_slices(recordings, tmp_path / "run", monkeypatch, 80)
        assert stored.manifest.span_count > 200
        return
    with pytest.raises(InputError, match=r"the run has about [\d,]+ spans, which need at least"):
        store(recordings, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_spans_of_a_run_that_is_stored_in_parts_have_no_limit_unless_one_is_stated(
    recordings, monkeypatch, tmp_path
):
    monkeypatch.setitem(limits.BY_NAME, "spans", limits.BY_NAME["spans"]._replace(default=100))
    with pytest.raises(InputError, match="the number of spans"):
        store(recordings, out=tmp_path / "limited", limits={"spans": 100})
    with pytest.raises(InputError, match="the number of spans"):
        read(recordings)
    assert store(recordings, out=tmp_path / "run").manifest.span_count > 100


def test_slices_together_keep_as_many_observations_of_clocks_as_a_part(recordings, monkeypatch, tmp_path):
    monkeypatch.setattr(thinning, "OF_RUN", 0)
    monkeypatch.setattr(thinning, "LEAST_OF_PAIR", 12)
    stored, _ = stored_in_slices(recordings, tmp_path / "run", monkeypatch, 80)
    sliced, whole = (read(place).alignment.machines for place in (stored.path, recordings))
    assert all(
        each.observation_count >= other.observation_count for each, other in zip(sliced, whole, strict=True)
    )
    assert all(
        abs(each.offset_ns - other.offset_ns) < 20_000 for each, other in zip(sliced, whole, strict=True)
    )
