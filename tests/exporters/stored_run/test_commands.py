"""Commands that print a stored run without reading all spans of it: the same as of what it was stored from."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import polars as pl
import pytest

from machines import record_machines, record_strangers
from places import DATA
from stagescope.api import export, load_report, read, save_report, saved_reports
from stagescope.cli import main
from stagescope.execution.executor import InThisProcess
from stagescope.exporters.stored_run import WriteOptions, write_stored_run
from stagescope.model.stored_run import FORMAT, VERSION, Manifest
from stagescope.vocabulary.steps import StepRange

RECORDINGS = DATA / "recordings" / "v1"


def record_without_a_stage(folder):
    """Copy recordings without that of one rank."""
    for file in sorted(RECORDINGS.iterdir())[:-1]:
        shutil.copy(file, folder)


def write_one_rank(folder):
    """Write a table of one rank with one micro-batch per step: it is no pipeline, which only an explanation states."""
    timeline = read(RECORDINGS)
    is_alone = (pl.col("rank") == 0) & (pl.col("stage") == 0) & (pl.col("microbatch") == 0)
    own = timeline.spans.filter(is_alone & pl.col("peer").is_null())
    export(timeline.with_spans(own.with_columns(chunk=pl.lit(None, pl.Int32))), folder / "run.parquet")


SOURCES = {
    "one machine": lambda folder: shutil.copytree(RECORDINGS, folder, dirs_exist_ok=True),
    "aligned": record_machines,
    "not aligned": record_strangers,
    "a missing stage": record_without_a_stage,
    "no pipeline": write_one_rank,
}


@pytest.fixture(params=SOURCES)
def source(request, tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    SOURCES[request.param](folder)
    return folder


@pytest.fixture
def run(source, tmp_path):
    place = tmp_path / "run.stagescope"
    main(["store", str(source), "-o", str(place)])
    return place


def printed(capsys, *words):
    """Return the exit code, and what a command printed."""
    capsys.readouterr()
    return main([*map(str, words)]), *capsys.readouterr()


@pytest.mark.parametrize("words", [[], ["--json"]], ids=["text", "json"])
def test_clocks_are_printed_without_reading_spans(words, source, run, capsys, request):
    expected = printed(capsys, "clocks", source, *words)
    assert load_report(run) is not None
    steps_read = request.getfixturevalue("steps_read")
    assert printed(capsys, "clocks", run, *words) == expected
    assert steps_read == []


@pytest.mark.parametrize("source", ["aligned"], indirect=True)
def test_clocks_of_a_large_run_without_a_report_are_printed_after_analyzing_it(run, capsys, monkeypatch):
    expected = printed(capsys, "clocks", run)
    shutil.rmtree(run / "analysis")
    assert printed(capsys, "clocks", run) == expected
    assert load_report(run) is None, "a small run is read"
    monkeypatch.setattr(saved_reports, "STORING_BYTES", 0)
    assert printed(capsys, "clocks", run) == expected
    assert load_report(run) is not None


def step_of(chart):
    return int(re.search(r" step ([0-9]+)", chart)[1])


@pytest.mark.parametrize(
    "words", [[], ["--step", "1"], ["--ascii", "--width", "100"], ["--bubble", "iteration"]], ids=str
)
def test_one_step_is_read_to_show_it(words, source, run, capsys, request):
    code, out, err = printed(capsys, "show", source, *words)
    assert load_report(run) is not None
    steps_read = request.getfixturevalue("steps_read")
    assert printed(capsys, "show", run, *words) == (code, out, err)
    step = step_of(out)
    assert steps_read == [StepRange(step, step + 1)]


def test_a_step_that_was_not_recorded_is_an_error(source, run, capsys):
    code, _, err = printed(capsys, "show", source, "--step", "77")
    found = printed(capsys, "show", run, "--step", "77")
    assert code == found[0] == 1
    assert err.splitlines()[-1] == found[2].splitlines()[-1]
    assert "step 77 was not recorded; recorded: " in err


@pytest.fixture
def damaged(run):
    """Change a byte of a file with spans, and return its path in the run."""
    part = next((run / "spans").rglob("part.parquet"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    return part.relative_to(run)


@pytest.mark.parametrize("source", ["not aligned"], indirect=True)
def test_damage_of_the_files_with_the_step_is_an_error(run, damaged, capsys):
    code, out, err = printed(capsys, "show", run)
    assert code == 1
    assert err.startswith(f"stagescope: partial data: {damaged} has changed since it was stored")
    assert out.count(f"error: {damaged} has changed since it was stored") == 1
    assert len(re.findall(r"^ *[0-3] .*node-[01]$", out, re.MULTILINE)) == 4, "the metrics are of all ranks"
    again = printed(capsys, "show", run, "--step", str(step_of(out)))
    assert again == (code, out, err)


def test_a_run_without_steps_is_shown_as_a_whole(tmp_path, capsys):
    timeline = read(RECORDINGS)
    without = timeline.with_spans(timeline.spans.with_columns(step=pl.lit(None, pl.Int32)))
    manifest = Manifest(FORMAT, VERSION, "planted", (), {}, aligned=True)
    options = WriteOptions(executor=InThisProcess())
    write_stored_run(replace(without, steps=timeline.steps.clear()), tmp_path, manifest, options)
    expected = printed(capsys, "show", tmp_path)
    save_report(tmp_path)
    assert load_report(tmp_path) is not None
    assert printed(capsys, "show", tmp_path) == expected
