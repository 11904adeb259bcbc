"""Steps that are read alone: what is read of them equals what a call without the option reads of them."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import recorded_runs
from planted_runs import Shape, random_times, run
from stagescope.api import analyze, read, store
from stagescope.ingest.step_selection import select_steps
from stagescope.model import COUNTERS, SPANS, STEPS
from stagescope.model.implied import implied_steps
from stagescope.model.validate import conform
from stagescope.record.buffers import RECORD_BYTES
from stagescope.record.format import NONE
from stagescope.record.recording import Recording
from stagescope.record.records import pack_span
from stagescope.record.retention import MIN_MAX_BYTES
from stagescope.vocabulary.errors import InputError, UsageError
from stagescope.vocabulary.steps import StepRange

RUN = run(random_times(Shape(pipelines=1, steps=8)))
CHOSEN = pl.col("step").is_between(3, 5)
FACTS = {"version": 2, "rank": 3, "host": "h", "boot": "b", "pid": 7, "recording": "r"}


def checkpoints():
    """Return a span without a step on every rank, 1 ms after each step has ended there."""
    steps = RUN.spans.group_by("rank", "step").agg(start_ns=pl.max("end_ns") + 1_000_000)
    rows = steps.drop("step").with_columns(end_ns=pl.col("start_ns") + 500_000)
    return rows.with_columns(lane=pl.lit("host"), kind=pl.lit("other"), name=pl.lit("save"))


def records(step, count=1000):
    data = bytearray(RECORD_BYTES * count)
    for at in range(count):
        moment_ns = step * count + at
        pack_span(data, at * RECORD_BYTES, moment_ns, moment_ns + 1, NONE, NONE, NONE, step, 1, 0, NONE, NONE, 0, NONE,
                  0, 1, 0)  # fmt: skip
    return bytes(data)


@pytest.fixture
def recordings(tmp_path):
    spans = conform(pl.concat([RUN.spans, checkpoints()], how="diagonal_relaxed"), SPANS)
    recorded_runs.write_recordings(RUN.with_spans(spans), tmp_path / "recordings", stages=4)
    return tmp_path / "recordings"


def test_the_rows_of_the_steps_are_read(recordings):
    every, some = read(recordings), read(recordings, steps="3:6")
    assert_frame_equal(some.spans.drop_nulls("step"), every.spans.filter(CHOSEN))
    assert_frame_equal(some.steps, every.steps.filter(CHOSEN))
    assert not some.is_partial
    (note,) = (note for note in some.diagnostics.iter_rows(named=True) if note["code"] == "steps.selected")
    assert note["message"] == "only steps 3:6 were read, as --steps states: 3 steps"


def test_what_has_no_step_belongs_to_the_steps_around_it(recordings):
    every, some = (read(recordings, steps=steps).spans for steps in (None, StepRange(3, 6)))
    saves = every.filter(pl.col("step").is_null()).with_columns(number=pl.int_range(pl.len()).over("rank"))
    after_steps = saves.filter(pl.col("number").is_between(2, 5)).drop("number")
    assert_frame_equal(some.filter(pl.col("step").is_null()), after_steps)


@pytest.mark.parametrize("steps", ["3:6", "6:", ":1", "7:100"])
def test_a_stored_run_has_the_same_steps(recordings, steps, tmp_path):
    store(recordings, out=tmp_path / "run")
    some, stored = read(recordings, steps=steps), read(tmp_path / "run", steps=steps)
    for table in (SPANS, STEPS, COUNTERS):
        assert_frame_equal(getattr(stored, table.name), getattr(some, table.name))
    assert analyze(stored).steps.equals(analyze(some).steps)


def test_only_the_steps_are_stored(recordings, tmp_path):
    store(recordings, out=tmp_path / "run", steps="3:6")
    assert_frame_equal(read(tmp_path / "run").spans, read(recordings, steps="3:6").spans)
    assert read(tmp_path / "run", steps="4:5").steps["step"].unique().to_list() == [4]


def test_spans_without_markers_of_steps_are_selected_by_their_own(tmp_path):
    RUN.spans.write_parquet(tmp_path / "run.parquet")
    some = read(tmp_path / "run.parquet", steps="3:6")
    assert_frame_equal(some.spans, read(tmp_path / "run.parquet").spans.filter(CHOSEN))


def test_steps_that_no_file_has_are_an_error(recordings, tmp_path):
    RUN.spans.write_parquet(tmp_path / "run.parquet")
    store(recordings, out=tmp_path / "stored")
    for place in (recordings, tmp_path / "run.parquet", tmp_path / "stored"):
        with pytest.raises(InputError, match=r"no step in 8:9: the run has steps 0 to 7"):
            read(place, steps="8:9")


def test_a_rank_without_steps_has_the_widest_window_of_the_others():
    steps = implied_steps(RUN.spans.filter(pl.col("rank") != 2))
    spans = RUN.spans.with_columns(step=pl.when(pl.col("rank") != 2).then("step"))
    some = select_steps(replace(RUN, spans=spans, steps=steps), StepRange(3, 6))
    others = steps.group_by("rank")
    first_ns, last_ns = (
        others.agg(pl.col("end_ns").filter(pl.col("step") < 3).max())["end_ns"].min(),
        others.agg(pl.col("start_ns").filter(pl.col("step") >= 6).min())["start_ns"].max(),
    )
    expected = spans.filter(pl.col("rank") == 2, pl.col("start_ns") >= first_ns, pl.col("start_ns") < last_ns)
    assert_frame_equal(some.spans.filter(pl.col("rank") == 2), expected)
    assert 0 < expected.height < spans.filter(pl.col("rank") == 2).height


def test_unknown_steps_cannot_be_selected():
    unknown = RUN.with_spans(RUN.spans.with_columns(step=pl.lit(None, pl.Int32)))
    with pytest.raises(InputError, match="nothing states the steps"):
        select_steps(unknown, StepRange(0, 1))


@pytest.mark.usefixtures("just_booted")
@pytest.mark.parametrize("max_bytes", [0, MIN_MAX_BYTES])
def test_records_of_other_steps_are_not_missing(max_bytes, tmp_path):
    recording = Recording(str(tmp_path), max_bytes)
    recording.describe(FACTS)
    for step in range(40):
        recording.write_spans(records(step))
    recording.finish("exit")
    every, some = read(tmp_path), read(tmp_path, steps="38:40")
    assert some.spans.equals(every.spans.filter(pl.col("step") >= 38))
    codes = set(some.diagnostics["code"]) - {"steps.selected"}
    assert codes == set(every.diagnostics["code"]) == ({"spans.discarded"} if max_bytes else set())


@pytest.mark.parametrize(("steps", "error"), [("3", UsageError), ("5:3", UsageError), (3, TypeError)])
def test_the_range_is_checked(recordings, steps, error):
    with pytest.raises(error):
        read(recordings, steps=steps)
