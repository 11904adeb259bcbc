"""stagescope store: what it prints, and that every command reads what it stored."""

from __future__ import annotations

import json
import os
import shutil
import sys

import pytest

from places import DATA
from stagescope.api import view_run
from stagescope.cli import main
from stagescope.model.stored_run import PAGE_INDEX
from stagescope.vocabulary.sizes import size_text

RECORDINGS = DATA / "recordings" / "v1"


@pytest.fixture
def run(tmp_path, capsys):
    assert main(["store", str(RECORDINGS), "-o", str(tmp_path / "run.stagescope")]) == 0
    capsys.readouterr()
    return tmp_path / "run.stagescope"


def test_it_prints_what_was_stored(tmp_path, capsys):
    words = ["store", str(RECORDINGS), "-o", str(tmp_path / "run")]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith(f"stored 378 spans in {tmp_path / 'run'}: ")
    assert main(words) == 0
    assert "0 files written, 5 were there already" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [["report", "--json", "-"], ["clocks", "--json"], ["what-if", "--balanced"], ["show"]],
    ids=lambda words: words[0],
)
def test_commands_print_the_same_for_a_stored_run(words, run, capsys):
    outputs = []
    for path in (RECORDINGS, run):
        assert main([words[0], str(path), *words[1:]]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


def test_the_page_can_be_prepared_with_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("STAGESCOPE_CACHE", str(tmp_path / "cache"))
    run = tmp_path / "run"
    store = ["store", str(RECORDINGS), "-o", str(run), "--page"]
    assert main(store) == 0
    size = size_text(sum(file.stat().st_size for file in run.glob("page/*/*") if file.name != PAGE_INDEX))
    what = f"of 378 spans ({size} in {run / 'page'}): `stagescope open {run}` shows it"
    assert f"prepared the page {what}" in capsys.readouterr().out
    prepared = {path: path.stat().st_ino for path in (run / "page").rglob("*")}
    assert main(store) == 0
    assert f"kept the prepared page {what}" in capsys.readouterr().out
    view_run(run)  # as `stagescope open` does
    assert prepared == {path: path.stat().st_ino for path in (run / "page").rglob("*")}
    assert not (tmp_path / "cache").exists()


def test_the_page_of_a_run_with_recorded_clocks_is_prepared_for_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("STAGESCOPE_CACHE", str(tmp_path / "cache"))
    run = tmp_path / "run"
    assert main(["store", str(RECORDINGS), "-o", str(run), "--page", "--no-align"]) == 0
    assert f"`stagescope open {run} --no-align` shows it" in capsys.readouterr().out
    view_run(run, align=False)
    assert not (tmp_path / "cache").exists()
    view_run(run)
    assert (tmp_path / "cache" / "levels").is_dir()


def test_a_stored_run_is_compared_and_exported(run, tmp_path, capsys):
    assert main(["compare", str(RECORDINGS), str(run), "--json", "-"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert table
    assert main(["export", str(run), "-o", str(tmp_path / "run.csv")]) == 0
    assert main(["export", str(RECORDINGS), "-o", str(tmp_path / "recordings.csv")]) == 0
    assert (tmp_path / "run.csv").read_bytes() == (tmp_path / "recordings.csv").read_bytes()


def test_a_stage_that_analysis_finds_missing_is_an_error(tmp_path, capsys):
    recordings = tmp_path / "recordings"
    shutil.copytree(RECORDINGS, recordings)
    first = min(recordings.iterdir())
    first.write_bytes(first.read_bytes()[:900])
    assert main(["store", str(recordings), "-o", str(tmp_path / "run")]) == 1
    assert capsys.readouterr().out.count("error: stage 0 missing: no recorded rank runs it") == 1
    assert main(["store", str(recordings), "-o", str(tmp_path / "other"), "--no-analysis"]) == 0


def test_partial_data_are_stored_as_such(tmp_path, capsys):
    for file in sorted(RECORDINGS.iterdir())[1:]:
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert main(["store", str(tmp_path), "-o", str(tmp_path / "run")]) == 1
    assert "no recording of rank 0" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "run")]) == 1


def test_damage_is_printed_as_the_report_prints_it(tmp_path, capsys):
    directory = tmp_path / "recordings"
    directory.mkdir()
    for file in RECORDINGS.iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    cut = min(directory.iterdir())
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size * 2 // 3])
    assert main(["store", str(directory), "-o", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert main(["report", str(tmp_path / "run")]) == 0
    warnings = [line for line in printed if line.startswith("warning: ")]
    assert [line.split(":")[1] for line in warnings] == [" the last frame is truncated", " no end frame"]
    assert set(warnings) < set(capsys.readouterr().out.splitlines())


def test_a_mistake_is_one_sentence(run, capsys):
    assert main(["store", str(RECORDINGS), "-o", ""]) == 1
    assert "the path of the stored run is empty" in capsys.readouterr().err
    assert main(["report", str(run), "--pp", "2"]) == 2
    assert main(["store", str(run), "-o", str(run)]) == 1
    errors = capsys.readouterr().err
    assert "--pp cannot change" in errors
    assert "is a stored run already" in errors


@pytest.mark.skipif(sys.platform in {"darwin", "win32"}, reason="their file systems have no such names")
def test_a_name_that_is_not_text_is_refused(tmp_path, capsys):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    assert main(["store", str(RECORDINGS), "-o", path]) == 1
    assert "its name is not valid UTF-8" in capsys.readouterr().err
    assert not os.path.lexists(path)
