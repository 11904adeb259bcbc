"""Comparisons of stored runs that are too large to be read as a whole: the same as those of what is read at once."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from machines import on_machines
from planted_runs import Shape, random_times, run
from stagescope.analysis import sampled_steps
from stagescope.analysis.statistics import compared_spans
from stagescope.api import (
    compare_gathered,
    comparison_json,
    gather_stored_run,
    gather_timeline,
    load_report,
    read,
    save_report,
    saved_reports,
    units,
)
from stagescope.cli import main
from stagescope.execution import choice
from stagescope.exporters.stored_run import WriteOptions, write_stored_run
from stagescope.model.implied import implied_steps
from stagescope.model.stored_run import FORMAT, VERSION, Manifest
from stagescope.vocabulary.steps import StepRange
from truth.engine import simulate
from truth.plan import Costs, make_plan
from truth.plan import Shape as TruthShape
from truth.spans import timeline_of

SHAPE = Shape(pipelines=3, stages=4, microbatches=6, steps=12, noise=0.01)


def planted(seed, *, slower=1.0, shape=SHAPE):
    """Return a run whose stage 1 and the link to it are slower, and whose first step is left out of the totals."""
    times = random_times(shape, seed=seed)
    times.action_ns[:, :, :, 1] *= slower
    times.message_ns[0, :, :, 1] *= slower**20
    times.action_ns[:, :, 0] *= 3
    return run(replace(times, action_ns=np.rint(times.action_ns), reduces=True))


def overlapping(cost):
    """Return a run of ZB-V, whose steps overlap."""
    shape = TruthShape("zb-v", ranks=4, chunks=2, microbatches=8, steps=6)
    return timeline_of(simulate(make_plan(shape, Costs(forward=cost))))


def store_parts(timeline, place):
    """Store a timeline in files of few spans."""
    if not timeline.steps.height:
        timeline = replace(timeline, steps=implied_steps(timeline.spans))
    place.mkdir()
    manifest = Manifest(FORMAT, VERSION, "planted", (), {}, aligned=True)
    write_stored_run(timeline, place, manifest, WriteOptions(most_spans=timeline.spans.height // 7))
    return place


def store_both(before, after, folder):
    """Store two timelines and their reports."""
    places = [store_parts(before, folder / "before"), store_parts(after, folder / "after")]
    for place in places:
        save_report(place, workers=1)
    return places


@pytest.fixture(autouse=True)
def are_large(monkeypatch):
    """Let runs count as large: they are analyzed in ranges of steps, and predictions are those of a sample."""
    monkeypatch.setattr(saved_reports, "STORING_BYTES", 0)
    monkeypatch.setattr(sampled_steps, "MOST_SPANS", 1)
    monkeypatch.setattr(sampled_steps, "SAMPLE_SPANS", 1_000)
    monkeypatch.setattr(units, "SPANS_OF_UNIT", 700)


@pytest.fixture
def in_this_process(monkeypatch):
    """Start no workers, which takes seconds."""
    monkeypatch.setattr(choice, "can_spawn", lambda: False)


def assert_compared_equally(places):
    gathered = [gather_stored_run(place) for place in places]
    whole = [gather_timeline(read(place)) for place in places]
    for parts, at_once in zip(gathered, whole, strict=True):
        assert parts.steps == at_once.steps
        assert parts.excluded == at_once.excluded
        assert parts.configuration == at_once.configuration
        assert_frame_equal(parts.report.step_losses, at_once.report.step_losses)
    found, expected = compare_gathered(*gathered), compare_gathered(*whole)
    assert_frame_equal(found.table, expected.table)
    assert comparison_json(found)["diagnostics"] == comparison_json(expected)["diagnostics"]
    assert (found.changes, found.per) == (expected.changes, expected.per)
    return found.table


def test_workers_measure_what_is_found_at_once(tmp_path):
    places = store_both(planted(1), planted(2, slower=1.1), tmp_path)
    table = assert_compared_equally(places)
    assert table.height > 40


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    "shape",
    [replace(SHAPE, microbatches=4, steps=9), replace(SHAPE, stages=2)],
    ids=["fewer micro-batches", "fewer stages"],
)
def test_different_runs_are_compared_as_when_they_are_read(shape, tmp_path):
    places = store_both(planted(1), planted(2, shape=shape), tmp_path)
    table = assert_compared_equally(places)
    assert table.height > 10


@pytest.mark.usefixtures("in_this_process")
def test_actions_and_messages_of_long_runs_are_compared_in_some_steps(tmp_path, monkeypatch):
    places = store_both(planted(1), planted(2, slower=1.1), tmp_path)
    every = assert_compared_equally(places)
    monkeypatch.setattr(compared_spans, "MOST_COMPARED", 6 * SHAPE.pipelines * SHAPE.stages)
    some = assert_compared_equally(places)
    is_whole = pl.col("subject").is_in(["iteration", "step", "part"])
    assert_frame_equal(some.filter(is_whole).drop("is_claimed"), every.filter(is_whole).drop("is_claimed"))
    assert set(every.filter(subject="rank")["steps_before"]) == {SHAPE.steps - 1}
    assert set(some.filter(subject="rank")["steps_before"]) == {SHAPE.steps // 2}
    found = compare_gathered(*(gather_stored_run(place) for place in places))
    text = "first run: actions, ranks and links are compared in 6 of 11 steps, evenly over the run"
    assert text in [each.message for each in found.diagnostics]


@pytest.mark.usefixtures("in_this_process")
def test_planted_differences_are_claimed_without_reading_a_run_as_a_whole(tmp_path, steps_read, capsys):
    places = store_both(planted(1), planted(2, slower=1.1), tmp_path)
    assert main(["compare", *map(str, places), "--json", "-"]) == 0
    assert steps_read == []
    found = json.loads(capsys.readouterr().out)
    claimed = [each for each in found["differences"] if each["is_claimed"]]
    assert {each["stage"] for each in claimed if each["subject"] == "actions"} == {1}
    links = {(each["rank"], each["peer"]) for each in claimed if each["subject"] == "link"}
    assert links == {(0, 1), (4, 5), (8, 9)}


@pytest.mark.usefixtures("in_this_process")
def test_a_run_without_a_report_is_analyzed_first(tmp_path, steps_read):
    place = store_parts(planted(1), tmp_path / "run")
    assert main(["compare", str(place), str(place)]) == 0
    assert steps_read == []
    assert load_report(place) is not None


@pytest.mark.usefixtures("in_this_process")
def test_steps_that_overlap_are_compared_as_the_sample_shows_them(tmp_path):
    places = store_both(overlapping(10_000_000), overlapping(11_000_000), tmp_path)
    assert_compared_equally(places)


@pytest.mark.usefixtures("in_this_process")
def test_pipelines_that_are_not_on_one_clock_are_left_out(tmp_path):
    machines = {rank: "2" if rank > 3 else f"{rank % 2}" for rank in range(SHAPE.pipelines * SHAPE.stages)}
    timeline = planted(1)
    timeline = replace(timeline, steps=implied_steps(timeline.spans))
    other = on_machines(timeline, machines, dict.fromkeys("012"))
    places = store_both(timeline, other, tmp_path)
    table = assert_compared_equally(places)
    assert set(table["rank"].drop_nulls()) == set(range(4, 12))


@pytest.mark.usefixtures("in_this_process")
def test_a_file_that_is_damaged_now_is_an_error(tmp_path, capsys):
    places = store_both(planted(1), planted(2), tmp_path)
    damaged = min((places[1] / "spans").rglob("*.parquet"))
    damaged.write_bytes(damaged.read_bytes()[:-100])
    assert main(["compare", *map(str, places)]) == 1
    captured = capsys.readouterr()
    assert "second run" in captured.err
    assert damaged.name in captured.err


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("option", "steps"), [(["--skip-steps", "2"], None), (["--steps", "3:9"], StepRange(3, 9))]
)
def test_other_totals_and_steps_are_read(option, steps, tmp_path, steps_read):
    place = store_parts(planted(1), tmp_path / "run")
    save_report(place, workers=1)
    steps_read.clear()
    assert main(["compare", str(place), str(place), *option]) == 0
    assert steps_read == [steps, steps]
