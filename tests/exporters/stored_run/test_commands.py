"""Commands that print a stored run without reading all spans of it: the same as of what it was stored from."""

from __future__ import annotations

import shutil

import polars as pl
import pytest

from machines import record_machines, record_strangers
from places import DATA
from stagescope.api import export, load_report, read, saved_reports, stored_runs
from stagescope.cli import main
from stagescope.ingest.stored_run import reader

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


@pytest.fixture
def no_spans(run, monkeypatch):
    """Fail where the spans of the stored run are read."""

    def refuse(*_):
        raise AssertionError("the spans were read")

    assert load_report(run) is not None
    for module in (reader, stored_runs):
        monkeypatch.setattr(module, "read_stored_run", refuse)


def printed(capsys, *words):
    """Return the exit code, and what a command printed."""
    capsys.readouterr()
    return main([*map(str, words)]), *capsys.readouterr()


@pytest.mark.parametrize("words", [[], ["--json"]], ids=["text", "json"])
def test_clocks_are_printed_without_reading_spans(words, source, run, capsys, request):
    expected = printed(capsys, "clocks", source, *words)
    request.getfixturevalue("no_spans")
    assert printed(capsys, "clocks", run, *words) == expected


@pytest.mark.parametrize("source", ["aligned"], indirect=True)
def test_clocks_of_a_large_run_without_a_report_are_printed_after_analyzing_it(run, capsys, monkeypatch):
    expected = printed(capsys, "clocks", run)
    shutil.rmtree(run / "analysis")
    assert printed(capsys, "clocks", run) == expected
    assert load_report(run) is None, "a small run is read"
    monkeypatch.setattr(saved_reports, "STORING_BYTES", 0)
    assert printed(capsys, "clocks", run) == expected
    assert load_report(run) is not None
