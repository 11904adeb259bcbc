"""The page that is saved beside a stored run: used while it is that of the run, and made in the cache otherwise."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from urllib.parse import urlsplit

import polars as pl
import pytest
from filelock import FileLock

import stagescope
from places import DATA
from running_server import Visitor
from stagescope.api import load_report, run_views, save_page, save_report, saved_reports, store, view_run
from stagescope.api.run_views import RunFiles, view_compared
from stagescope.cli import main
from stagescope.exporters.stored_run import pages
from stagescope.ingest.stored_run.pages import EDGE_BYTES, checksum_of_edges
from stagescope.model.stored_run import LOCK, MANIFEST, PAGE_INDEX, PAGES, manifest_text
from stagescope.viewer.tiles import stored
from stagescope.vocabulary.errors import InputError, OutputError, UsageError

RECORDINGS = DATA / "recordings" / "v1"
STEPS = DATA / "public_runs" / "primus-pp8.parquet"
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="has no pipes, and links need a privilege")
LEFT = pages.UNFINISHED + "0123"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Return the directory of the cache, which does not exist yet."""
    monkeypatch.setenv("STAGESCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    place = tmp_path_factory.mktemp("prepared") / "run.stagescope"
    store(RECORDINGS, out=place)
    assert save_page(place).is_new
    return place


@pytest.fixture
def run(prepared, tmp_path):
    """Return a stored run with its page, which a test may change."""
    return shutil.copytree(prepared, tmp_path / "copied" / "run.stagescope", symlinks=True)


@pytest.fixture
def large(tmp_path, monkeypatch):
    """Return a stored run that is shown a file at a time, without a report and a page."""
    monkeypatch.setattr(stored, "LARGE", 100)
    store(STEPS, out=tmp_path / "large.stagescope")
    return tmp_path / "large.stagescope"


def page_of(run):
    (folder,) = (run / PAGES).iterdir()
    return folder


def state_of(run):
    return {
        path: (path.lstat().st_ino, path.lstat().st_mtime_ns, path.lstat().st_size) for path in run.rglob("*")
    }


def content_of(view):
    meta = {name: value for name, value in view.meta.items() if name != "version"}
    return meta, dict(view.sections), view.levels.spans.read(0, view.levels.spans.count).tobytes()


def test_it_is_that_of_the_cache_and_used_where_it_was_moved(run, prepared, cache):
    view = view_run(run)
    assert view.version == page_of(run).name
    assert not cache.exists()
    shutil.rmtree(run / PAGES)
    made = view_run(run)
    assert list(cache.rglob("meta.json"))
    assert content_of(made) == content_of(view) == content_of(view_run(prepared))


def test_the_server_shows_it_and_keeps_nothing(run, cache):
    before = state_of(run)
    with stagescope.open(run, browser=False) as viewer:
        visitor = Visitor(urlsplit(viewer.link).port, viewer.link, page_of(run).name).enter()
        assert visitor.json("meta")["span_count"] == 378
        assert "findings" in visitor.json("section", name="verdict")
        assert visitor.api("tile", level=0, start=0, end=1, rows="0-3")[0] == 200
    assert state_of(run) == before
    assert not cache.exists()


def test_a_comparison_uses_it(run, cache):
    view = view_compared(RunFiles([run], {}), RunFiles([RECORDINGS], {}))
    assert content_of(view)[2] == content_of(view_run(run))[2]
    assert [folder.name for folder in (cache / "levels").iterdir()] == [view.version]


def make_read_only(place):
    for path in (*place.rglob("*"), place):
        path.chmod(0o555 if path.is_dir() else 0o444)


def make_writable(place):
    for path in (place, *place.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.mark.parametrize("has_page", [True, False])
def test_nothing_is_written_into_a_directory_that_is_read_only(has_page, run, cache):
    if not has_page:
        (page_of(run) / "meta.json").unlink()
    before = state_of(run)
    make_read_only(run)
    try:
        assert view_run(run).meta["span_count"] == 378
        assert state_of(run) == before
    finally:
        make_writable(run)
    assert cache.exists() is not has_page


def cut(file):
    file.write_bytes(file.read_bytes()[:-1])


def change(file):
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def link(file):
    other = shutil.move(file, file.parents[2] / "elsewhere")
    file.symlink_to(other)


def replace_by_pipe(file):
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((name, change) for name in ("spans", "facts", "level-26", "spans.index", "idle.parquet")),
        ("section-verdict.json", change),
        ("spans", cut),
        ("section-verdict.json", cut),
        ("spans", os.unlink),
        ("section-verdict.json", os.unlink),
        pytest.param("spans", link, marks=POSIX),
        pytest.param("spans", replace_by_pipe, marks=POSIX),
    ],
)
def test_a_damaged_one_is_not_used_and_made_again(damage, name, run, cache):
    whole = content_of(view_run(run))
    damage(page_of(run) / name)
    assert content_of(view_run(run)) == whole
    assert cache.exists()
    assert save_page(run).is_new
    shutil.rmtree(cache)
    assert content_of(view_run(run)) == whole
    assert not cache.exists()


def without_checksum(index):
    index.write_text(index.read_text().replace('"section-', '"sectien-', 1))


def of_another_format(index):
    facts = {name: value for name, value in json.loads(index.read_text()).items() if name != "checksum"}
    index.write_text(manifest_text({**facts, "format": "stagescope page 2"}))


def lead_outside(index):
    facts = {name: value for name, value in json.loads(index.read_text()).items() if name != "checksum"}
    facts["files"]["../../stored-run.json"] = facts["files"].pop("facts")
    index.write_text(manifest_text(facts))


def add_section(index):
    (index.parent / "section-notes.json").write_text("{}")


@pytest.mark.parametrize(
    "damage", [cut, os.unlink, without_checksum, of_another_format, lead_outside, add_section]
)
def test_one_with_another_index_is_not_used_and_made_again(damage, run, cache):
    version = view_run(run).version
    damage(page_of(run) / PAGE_INDEX)
    assert view_run(run).version != version
    assert cache.exists()
    assert save_page(run).is_new
    assert view_run(run).version == version


def shape_of(**changes):
    return lambda folder: {**json.loads((folder / "shape.json").read_text()), **changes}


@pytest.mark.parametrize(
    "shape",
    [
        shape_of(exponents=[]),
        shape_of(span_count=9),
        shape_of(row_count="4"),
        shape_of(names=3),
        lambda _: [],
    ],
)
def test_one_that_was_not_written_by_stagescope_is_not_used(shape, run, cache):
    folder = page_of(run)
    version = view_run(run).version
    content = json.dumps(shape(folder))
    (folder / "shape.json").write_text(content)
    facts = {
        name: value
        for name, value in json.loads((folder / PAGE_INDEX).read_text()).items()
        if name != "checksum"
    }
    facts["files"]["shape.json"] = {
        "size_bytes": len(content),
        "checksum": checksum_of_edges(folder / "shape.json"),
    }
    (folder / PAGE_INDEX).write_text(manifest_text(facts))
    view = view_run(run)
    assert view.meta["span_count"] == 378
    assert (view.version == version) is (not cache.exists())


def test_the_middle_of_large_files_is_not_read(tmp_path):
    path = tmp_path / "file"
    sums = []
    for at in (0, EDGE_BYTES, EDGE_BYTES + 1, 2 * EDGE_BYTES + 1):
        content = bytearray(2 * EDGE_BYTES + 2)
        content[at] = 1
        path.write_bytes(content)
        sums.append(checksum_of_edges(path))
    assert len(set(sums)) == 3
    assert sums[1] == sums[2]


@pytest.mark.parametrize("size", [1, EDGE_BYTES - 1, EDGE_BYTES, EDGE_BYTES + 1, 2 * EDGE_BYTES])
def test_every_byte_of_other_files_is_read(size, tmp_path):
    path = tmp_path / "file"
    sums = set()
    for at in {0, size // 3, size // 2, size - 1}:
        content = bytearray(size)
        content[at] = 1
        path.write_bytes(content)
        sums.add(checksum_of_edges(path))
    assert len(sums) == len({0, size // 3, size // 2, size - 1})


def test_that_of_another_version_is_not_used_and_replaced(run, cache, monkeypatch):
    before = page_of(run)
    monkeypatch.setattr(run_views, "__version__", "99.0")
    assert view_run(run).version != before.name
    assert cache.exists()
    assert save_page(run).is_new
    assert page_of(run).name != before.name
    assert not save_page(run).is_new


def test_steps_and_limits_are_those_of_the_call(tmp_path):
    run = tmp_path / "run"
    store(STEPS, out=run)
    save_page(run)
    assert [step["step"] for step in view_run(run, steps="2:4").meta["steps"]] == [2, 3]
    assert len(view_run(run).meta["steps"]) > 2
    with pytest.raises(InputError, match="the number of spans is"):
        view_run(run, limits={"spans": 100})


def test_it_is_made_with_the_clocks_of_the_run(run, tmp_path, cache):
    with pytest.raises(UsageError, match="were aligned when it was stored"):
        view_run(run, align=False)
    with pytest.raises(UsageError, match="were aligned when it was stored"):
        save_page(run, align=False)
    assert view_run(run).version == page_of(run).name
    plain = tmp_path / "plain"
    store(RECORDINGS, out=plain, align=False)
    shutil.rmtree(cache, ignore_errors=True)
    save_page(plain, align=False)
    version = view_run(plain, align=False).version
    assert not cache.exists()
    assert view_run(plain).version != version
    assert cache.exists()
    save_page(plain)
    assert view_run(plain).version == page_of(plain).name


def test_it_is_kept_with_the_run_and_removed_with_it(run, tmp_path):
    before = state_of(run / PAGES)
    store(RECORDINGS, out=run)
    assert state_of(run / PAGES) == before
    next(run.glob("spans/**/part.parquet")).unlink()
    store(RECORDINGS, out=run)
    assert state_of(run / PAGES) == before
    fewer = tmp_path / "fewer"
    shutil.copytree(RECORDINGS, fewer)
    min(fewer.iterdir()).unlink()
    store(fewer, out=run, force=True)
    assert not (run / PAGES).exists()


def test_that_of_another_run_is_not_used(run, tmp_path, cache):
    other = tmp_path / "other"
    store(STEPS, out=other)
    shutil.copytree(run / PAGES, other / PAGES)
    assert view_run(other).meta["span_count"] == 5120
    assert cache.exists()
    assert save_page(other).is_new
    name = page_of(other).name
    shutil.rmtree(other / PAGES)
    shutil.copytree(page_of(run), other / PAGES / name)
    assert view_run(other).meta["span_count"] == 5120


@pytest.mark.parametrize("table", ["spans", "ranks"])
def test_it_does_not_hide_what_the_run_has_lost(table, run, cache):
    next(run.glob(f"{table}*/**/part.parquet" if table == "spans" else "ranks.parquet")).unlink()
    if table == "spans":
        with pytest.raises(InputError, match="none of its 1 files"):
            view_run(run)
    else:
        codes = [each["code"] for each in view_run(run).meta["diagnostics"]]
        assert "store.damaged" in codes
    assert cache.exists()
    with pytest.raises(InputError):
        save_page(run)


def test_it_is_not_made_of_a_run_that_is_damaged_and_may_be_repaired(run):
    steps = next(run.glob("steps/**/part.parquet"))
    content = steps.read_bytes()
    change(steps)
    shutil.rmtree(run / PAGES)
    with pytest.raises(InputError, match="has changed since it was stored"):
        save_page(run)
    assert not (run / PAGES).exists()
    steps.write_bytes(content)
    assert save_page(run).is_new


def test_it_does_not_hide_that_sources_have_changed(tmp_path, cache):
    recordings = shutil.copytree(RECORDINGS, tmp_path / "recordings")
    store(recordings, out=tmp_path / "run")
    save_page(tmp_path / "run")
    changed = min(recordings.iterdir())
    changed.write_bytes(changed.read_bytes()[:-1])
    codes = [each["code"] for each in view_run(tmp_path / "run").meta["diagnostics"]]
    assert "store.source_changed" in codes
    assert cache.exists()
    with pytest.raises(InputError, match="changed after the run was stored"):
        save_page(tmp_path / "run")


def test_what_stops_it_leaves_nothing(run, monkeypatch):
    shutil.rmtree(run / PAGES)

    def stop(*_):
        raise KeyboardInterrupt

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pages.os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        save_page(run)
    assert not (run / PAGES).exists()
    monkeypatch.setattr(pages.os, "fsync", refuse)
    with pytest.raises(OutputError, match=r"cannot store into .*: No space left on device"):
        save_page(run)
    assert not (run / PAGES).exists()
    monkeypatch.undo()


@pytest.mark.parametrize("call", [save_page, lambda run: store(RECORDINGS, out=run)], ids=["page", "store"])
def test_what_a_killed_process_had_begun_is_removed(call, run, cache):
    (page_of(run) / PAGE_INDEX).unlink()
    begun = page_of(run).rename(run / PAGES / LEFT)
    (run / PAGES / "notes").mkdir()
    view_run(run)
    assert cache.exists()
    assert begun.exists()
    call(run)
    assert not begun.exists()
    assert (run / PAGES / "notes").exists()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="has no such signal")
def test_a_killed_process_leaves_no_page(run, cache):
    shutil.rmtree(run / PAGES)
    program = (
        "import os, signal, sys\n"
        "from stagescope.api import save_page\n"
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "save_page(sys.argv[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(run)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert page_of(run).name.startswith(pages.UNFINISHED)
    view_run(run)
    assert cache.exists()
    assert save_page(run).is_new
    assert view_run(run).version == page_of(run).name


def test_one_process_at_a_time_makes_it(run):
    shutil.rmtree(run / PAGES)
    with FileLock(run / LOCK), pytest.raises(OutputError, match="another process is storing into"):
        save_page(run)
    assert not (run / PAGES).exists()


def test_it_is_not_made_of_another_run_than_that_which_was_looked_at(run, monkeypatch):
    shutil.rmtree(run / PAGES)
    find = run_views.find_large_run

    def replaced(inputs):
        store(STEPS, out=run, force=True)
        return find(inputs)

    monkeypatch.setattr(run_views, "find_large_run", replaced)
    with pytest.raises(OutputError, match="another process is storing into"):
        save_page(run)


def test_a_path_that_is_no_stored_run_is_an_error(tmp_path):
    with pytest.raises(InputError):
        save_page(tmp_path)
    with pytest.raises(InputError):
        save_page(RECORDINGS)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="has no permission bits")
def test_who_may_read_the_run_may_read_its_page(tmp_path, monkeypatch):
    monkeypatch.setenv("STAGESCOPE_FILE_MODE", "644")
    store(RECORDINGS, out=tmp_path / "run")
    save_page(tmp_path / "run")
    modes = {
        (path.is_dir(), stat.S_IMODE(path.stat().st_mode))
        for path in (tmp_path / "run" / PAGES, *(tmp_path / "run" / PAGES).rglob("*"))
    }
    assert modes == {(True, 0o755), (False, 0o644)}


@pytest.mark.parametrize(
    "words",
    [
        ["report"],
        ["show"],
        ["clocks"],
        ["sql", "select count(*), sum(end_ns - start_ns) from spans"],
        ["export", "-o", "-", "--to", "csv"],
    ],
    ids=lambda words: words[0],
)
def test_commands_print_the_same_with_a_page(words, run, capsys):
    outputs = []
    for _ in range(2):
        assert main([words[0], str(run), *words[1:]]) == 0
        outputs.append(capsys.readouterr())
        shutil.rmtree(run / PAGES, ignore_errors=True)
    assert outputs[0] == outputs[1]


def test_other_programs_read_the_same_with_a_page(run):
    found = pl.scan_parquet(run / "spans" / "**" / "*.parquet", hive_partitioning=True).collect()
    assert found.height == 378


def test_a_directory_above_has_the_run_alone(run, capsys):
    assert main(["report", str(run.parent)]) == 1
    assert str(run) in capsys.readouterr().err


def test_an_incomplete_copy_is_stated_with_a_page(run, capsys):
    (run / MANIFEST).unlink()
    assert main(["report", str(run)]) == 1
    assert "is an incomplete copy of a stored run" in capsys.readouterr().err


def test_a_large_run_is_analyzed_before_its_page_is_made(large, cache):
    assert load_report(large) is None
    assert save_page(large).is_new
    assert load_report(large) is not None
    view = view_run(large)
    assert {"verdict", "ledger"} <= view.sections.keys()
    assert not cache.exists()


def test_that_of_a_large_run_names_no_place_that_others_do_not_have(large, tmp_path):
    save_page(large)
    view = view_run(shutil.copytree(large, tmp_path / "elsewhere" / large.name))
    (note,) = [each for each in view.meta["diagnostics"] if each["code"] == "viewer.layers_omitted"]
    assert "stagescope open large.stagescope --steps 1:2" in note["message"]
    assert str(tmp_path) not in json.dumps(view.meta["diagnostics"])


def test_that_of_a_large_run_is_not_used_with_a_report_of_other_steps(large, cache, monkeypatch):
    save_page(large)
    version = view_run(large).version
    assert not cache.exists()
    monkeypatch.setattr(saved_reports, "_steps_that_fit", lambda *_: saved_reports.StepRange(2, 4))
    shutil.rmtree(large / "analysis")
    assert save_report(large).steps == "2:4"
    assert view_run(large).version != version
    assert cache.exists()
    assert save_page(large).is_new
