"""Large runs are stored once in the user's cache, and read from there while their files are unchanged."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading

import pytest

import stagescope as ss
from places import DATA
from stagescope.api import run_cache, run_views
from stagescope.api.run_cache import Input, Shown, cached_input
from stagescope.cli import main
from stagescope.storage import cache_directory
from stagescope.viewer.tiles import stored as stored_tiles
from stagescope.vocabulary.errors import InputError, OutputError

RECORDINGS = DATA / "recordings" / "v1"
pytest.importorskip("pyarrow")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return the directory of a cache into which every run belongs."""
    monkeypatch.setenv("STAGESCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(run_cache, "LARGE_BYTES", 1)
    yield tmp_path / "cache"
    cache_directory.keep_nothing(is_wanted=False)


@pytest.fixture
def recordings(tmp_path):
    return shutil.copytree(RECORDINGS, tmp_path / "recordings")


def through(paths, facts=None, **keywords):
    """Return what to read, and the sentences about it."""
    notices = []
    found = cached_input(paths, facts or {}, Shown(notices.append), **keywords)
    return found, notices


def runs(cache):
    return sorted(cache.glob("runs/*/run.stagescope"))


def test_a_large_run_is_stored_once_and_read_from_the_cache(cache, recordings):
    first, notices = through([recordings], {"steps": "1:2"})
    assert list(first.paths) == runs(cache)
    assert first.facts == {"steps": "1:2", "limits": None}
    assert "storing 4 files of" in notices[0]
    second, notices = through([recordings])
    assert list(second.paths) == runs(cache)
    assert "no file has changed" in notices[0]
    assert ss.read(*second.paths).spans.equals(ss.read(recordings).spans)


@pytest.mark.parametrize(
    "words",
    [["report", "--json", "-"], ["clocks", "--json"], ["what-if", "--balanced"], ["show"]],
    ids=lambda words: words[0],
)
def test_commands_print_the_same_through_the_cache(words, cache, recordings, capsys):
    outputs = []
    for more in (["--no-cache"], [], []):
        assert main([words[0], str(recordings), *words[1:], *more]) == 0
        outputs.append(capsys.readouterr().out)
        assert bool(runs(cache)) == (not more)
    assert outputs[0] == outputs[1] == outputs[2]


def test_a_changed_file_is_noticed_without_reading_it(cache, recordings):
    through([recordings])
    (file, *_) = sorted(recordings.iterdir())
    os.utime(file, ns=(0, 1))
    assert "storing" in through([recordings])[1][0]
    copy = recordings / "copy"
    shutil.copy2(file, copy)
    copy.replace(file)  # the same size and time, another inode
    assert "storing" in through([recordings])[1][0]
    (recordings / file.name).unlink()
    with_three, notices = through([recordings])
    assert "storing 3 files" in notices[0]
    assert ss.read(*with_three.paths).is_partial
    assert len(runs(cache)) == 2


def test_runs_read_another_way_are_other_entries(cache, recordings):
    for facts, align in (({}, True), ({}, False), ({"schedule": "gpipe"}, True)):
        (run,) = through([recordings], facts, align=align)[0].paths
        assert run in runs(cache)
    assert len(runs(cache)) == 3


def test_a_damaged_run_is_stored_again(cache, recordings):
    through([recordings])
    (run,) = runs(cache)
    next(run.rglob("part.parquet")).unlink()
    assert "storing" in through([recordings])[1][0]
    assert not ss.read(run).is_partial


def test_small_runs_are_read_directly(cache, recordings, monkeypatch):
    monkeypatch.setattr(run_cache, "LARGE_BYTES", 10**9)
    monkeypatch.setattr(run_cache, "inputs_of", None)  # not even recognized twice
    assert through([recordings]) == (Input([recordings], {}), [])
    assert not cache.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_links_that_lead_back_are_followed_once(cache, recordings, monkeypatch):
    for name in "abc":
        (recordings / name).symlink_to(recordings, target_is_directory=True)
    size_bytes = sum(file.stat().st_size for file in recordings.iterdir() if file.is_file())
    monkeypatch.setattr(run_cache, "LARGE_BYTES", size_bytes + 1)
    assert through([recordings]) == (Input([recordings], {}), [])
    monkeypatch.setattr(run_cache, "LARGE_BYTES", size_bytes)
    assert "storing 4 files" in through([recordings])[1][0]
    assert runs(cache)


def test_compressed_files_count_as_what_they_expand_to(cache, recordings, monkeypatch):
    size_bytes = sum(file.stat().st_size for file in recordings.iterdir())
    monkeypatch.setattr(run_cache, "LARGE_BYTES", 2 * size_bytes)
    assert not through([recordings])[1]
    for file in recordings.iterdir():
        file.rename(file.with_name(f"{file.name}.zst"))
    assert "storing" in through([recordings])[1][0]
    assert runs(cache)


def test_stored_runs_and_tables_are_read_directly(cache, recordings, tmp_path):
    ss.store(recordings, out=tmp_path / "run")
    ss.export(ss.read(recordings), tmp_path / "run.parquet")
    for path in (tmp_path / "run", tmp_path / "run.parquet"):
        assert through([path]) == (Input([path], {}), [])
    assert not runs(cache)


def test_a_training_that_is_running_is_read_directly(cache, recordings, monkeypatch):
    monkeypatch.setattr(run_cache, "is_running", lambda *_: True)
    assert through([recordings]) == (Input([recordings], {}), [])
    assert not cache.exists()


@pytest.mark.parametrize("value", ["off", "OFF"])
def test_the_cache_can_be_off(value, cache, recordings, monkeypatch):
    monkeypatch.setenv("STAGESCOPE_CACHE", value)
    assert through([recordings]) == (Input([recordings], {}), [])
    assert not cache.exists()


def test_without_the_extra_for_storing_runs_are_read_directly(cache, recordings, monkeypatch):
    monkeypatch.setattr(run_cache, "find_spec", lambda name: None)
    assert through([recordings]) == (Input([recordings], {}), [])
    assert not cache.exists()


def test_a_directory_that_cannot_be_written_to_is_a_note(recordings, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run_cache, "LARGE_BYTES", 1)
    (tmp_path / "file").touch()
    monkeypatch.setenv("STAGESCOPE_CACHE", str(tmp_path / "file" / "cache"))
    assert main(["show", str(recordings)]) == 0
    assert "stagescope: read without the cache: Not a directory" in capsys.readouterr().err


def test_a_full_disk_is_a_note_and_leaves_nothing(cache, recordings, monkeypatch, capsys):
    def full(*_, **keywords):
        (keywords["out"]).mkdir()
        raise OutputError.not_stored(keywords["out"], OSError(28, "No space left on device"))

    monkeypatch.setattr(run_cache, "store", full)
    assert main(["show", str(recordings)]) == 0
    shown = capsys.readouterr()
    assert "read without the cache" in shown.err
    assert "No space left on device" in shown.err
    assert "DualPipeV" in shown.out
    assert not runs(cache)


def test_a_run_that_would_not_fit_is_not_begun(cache, recordings, monkeypatch):
    monkeypatch.setattr(run_cache, "most_bytes", lambda kept_bytes: 10)
    found, notices = through([recordings])
    assert list(found.paths) == [recordings]
    assert "read without the cache: the run may need" in notices[0]
    assert not runs(cache)


def test_the_run_used_least_recently_makes_space(cache, recordings, tmp_path, monkeypatch):
    other = shutil.copytree(recordings, tmp_path / "other")
    through([other])
    (old,) = (cache / "runs").iterdir()
    os.utime(old, (0, 0))
    monkeypatch.setattr(cache_directory, "MOST_BYTES", 1)
    monkeypatch.setattr(run_cache, "most_bytes", lambda kept_bytes: 10**9)
    through([recordings])
    assert not old.exists()
    assert len(runs(cache)) == 1


def test_errors_of_the_input_are_those_of_reading(cache, recordings):
    with pytest.raises(InputError, match="more than the limit of 10"):
        through([recordings], {"limits": {"spans": 10}})
    with pytest.raises(InputError, match="no such file or directory"):
        through([recordings / "none"])
    assert not [run for run in runs(cache) if (run / "stored-run.json").exists()]


def test_ctrl_c_keeps_what_is_complete(cache, recordings, monkeypatch):
    store = run_cache.store

    def interrupted(*paths, **keywords):
        store(*paths, **keywords)
        raise KeyboardInterrupt

    monkeypatch.setattr(run_cache, "store", interrupted)
    assert main(["show", str(recordings)]) == 130
    monkeypatch.setattr(run_cache, "store", store)
    (run,) = runs(cache)
    before = {file: file.stat().st_mtime_ns for file in run.rglob("part.parquet")}
    assert "storing" in through([recordings])[1][0]
    assert {file: file.stat().st_mtime_ns for file in run.rglob("part.parquet")} == before


def test_a_second_process_waits_for_the_first(cache, recordings, monkeypatch):
    store = run_cache.store
    begun, waiting = threading.Event(), threading.Event()
    calls = []

    def slow(*paths, **keywords):
        calls.append(paths)
        begun.set()
        assert waiting.wait(60)
        return store(*paths, **keywords)

    def on_notice(text):
        notices.append(text)
        if "waiting" in text:
            waiting.set()

    monkeypatch.setattr(run_cache, "store", slow)
    notices = []
    first = threading.Thread(target=cached_input, args=([recordings], {}, Shown(lambda _: None)))
    first.start()
    assert begun.wait(60)
    found = cached_input([recordings], {}, Shown(on_notice))
    first.join(60)
    assert list(found.paths) == runs(cache)
    assert ["waiting" in notices[0], "no file has changed" in notices[1]] == [True, True]
    assert len(calls) == 1


def test_a_killed_process_does_not_lock_the_cache(cache, recordings):
    code = (
        "import os; from stagescope.api import run_cache as cache; cache.LARGE_BYTES = 1; "
        "cache.store = lambda *_, **__: os._exit(9); "
        f"cache.cached_input([{str(recordings)!r}], {{}}, cache.Shown(print))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 9
    assert "storing" in through([recordings])[1][0]
    assert runs(cache)


def test_the_page_is_made_from_the_run_in_the_cache(cache, recordings):
    notices = []
    view = ss.api.view_run(recordings, on_notice=notices.append)
    assert view.meta["span_count"] == 378
    assert "storing" in notices[0]
    assert runs(cache)


def test_the_page_of_a_large_run_is_made_a_file_at_a_time(cache, recordings, monkeypatch):
    whole = ss.api.view_run(recordings)
    monkeypatch.setattr(stored_tiles, "LARGE", 0)
    monkeypatch.setattr(run_views, "read", None)
    large = ss.api.view_run(recordings, on_notice=str, limits={"query": "100"})
    assert runs(cache)
    assert large.meta["span_count"] == whole.meta["span_count"]
    assert large.meta["title"] == whole.meta["title"]
    assert large.sections["verdict"].data == whole.sections["verdict"].data
    (note,) = [row for row in large.meta["diagnostics"] if row["code"] == "viewer.layers_omitted"]
    assert f"stagescope open {recordings} --steps" in note["message"]


def test_the_cache_is_listed_and_cleared(cache, recordings, capsys):
    assert main(["cache"]) == 0
    assert capsys.readouterr().out == f"{cache}: empty\n"
    through([recordings])
    assert main(["cache"]) == 0
    (place, headings, line) = capsys.readouterr().out.splitlines()
    assert place.startswith(f"{cache}: ")
    assert headings.split()[:2] == ["kind", "size"]
    assert line.startswith("stored run")
    assert line.endswith(str(recordings))
    assert main(["cache", "--clear"]) == 0
    assert capsys.readouterr().out.startswith("removed ")
    assert not runs(cache)
    assert "storing" in through([recordings])[1][0]


LOWERED = ["spans=10", "names=1", "name-length=2", "spans=200"]


@pytest.mark.parametrize("command", ["report", "show"])
@pytest.mark.parametrize("limit", LOWERED)
def test_limits_hold_for_a_run_that_is_in_the_cache(command, limit, cache, recordings, capsys):
    assert main([command, str(recordings)]) == 0
    assert len(runs(cache)) == 1
    assert main([command, str(recordings), "--limit", limit]) == 1
    assert f"more than the limit of {limit.partition('=')[2]}" in capsys.readouterr().err
    assert main([command, str(recordings), "--limit", limit, "--no-cache"]) == 1


@pytest.mark.usefixtures("cache")
def test_a_run_that_is_read_differently_with_a_limit_is_so_from_the_cache(recordings, capsys):
    assert main(["show", str(recordings)]) == 0
    for more in ([], ["--no-cache"]):
        capsys.readouterr()
        assert main(["show", str(recordings), "--limit", "ranks=4", *more]) == 1
        assert "expected 0 to less than 4" in capsys.readouterr().out


def test_a_limit_on_queries_does_not_store_a_run_again(cache, recordings):
    assert main(["sql", str(recordings), "select count(*) from spans"]) == 0
    assert main(["sql", str(recordings), "select count(*) from spans", "--limit", "query=600"]) == 0
    assert len(runs(cache)) == 1


def test_a_limit_on_spans_holds_for_a_saved_report(recordings, tmp_path, capsys):
    stored = tmp_path / "run.stagescope"
    assert main(["store", str(recordings), "-o", str(stored)]) == 0
    assert main(["report", str(stored)]) == 0
    assert main(["report", str(stored), "--limit", "spans=10"]) == 1
    assert "more than the limit of 10" in capsys.readouterr().err
