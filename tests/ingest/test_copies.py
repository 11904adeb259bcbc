"""Copies of files in the same tree: a backup folder, a compressed file beside the original."""

import gzip
import shutil
import sqlite3
from pathlib import Path

import pytest

from fuzz.formats import FORMATS
from stagescope.api import read
from stagescope.api.reading import inputs_of
from stagescope.ingest.copies import without_copies

CODE = "recording.copy"
COPIED = {"nsight, parquet": "*.parquetdir", "primus": "pp_rank_*", "stored run": "nothing"}
"""What is read of formats that are not one file per rank."""


def write_run(one, folder: Path) -> Path:
    folder.mkdir()
    one.write(folder)
    return folder


def back_up(run: Path) -> None:
    files = list(run.iterdir())
    for path in files:
        target = run / "backup" / path.name
        target.parent.mkdir(exist_ok=True)
        (shutil.copytree if path.is_dir() else shutil.copy2)(path, target)


@pytest.mark.parametrize("one", FORMATS, ids=lambda one: one.name)
def test_a_backup_of_any_format_changes_nothing_and_is_named(tmp_path, one):
    run = write_run(one, tmp_path / "run")
    before = read(run)
    pattern = COPIED.get(one.name, "*")
    copies = [path for path in run.rglob(pattern) if path.is_file() or one.name in COPIED]
    back_up(run)
    after = read(run)
    assert after.spans.equals(before.spans)
    assert after.ranks.drop("source").equals(before.ranks.drop("source"))
    assert after.diagnostics.filter(code=CODE).height == len(copies)


def test_the_file_that_is_fewest_directories_deep_is_read(tmp_path):
    (one,) = (one for one in FORMATS if one.name == "nsight")
    run = write_run(one, tmp_path / "run")
    back_up(run)
    timeline = read(run)
    assert timeline.ranks["source"].to_list() == [str(run / f"rank{rank}.sqlite") for rank in range(2)]
    notes = timeline.diagnostics.filter(code=CODE)
    assert notes.select("severity", "message", "source").row(0) == (
        "info",
        f"a copy of {run / 'rank0.sqlite'}: ignored",
        str(run / "backup" / "rank0.sqlite"),
    )


@pytest.mark.parametrize("name", ["kineto", "otlp", "paddle profiler"])
def test_a_compressed_copy_beside_the_original_is_ignored(tmp_path, name):
    (one,) = (one for one in FORMATS if one.name == name)
    run = write_run(one, tmp_path / "run")
    before = read(run)
    for path in list(run.iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    after = read(run)
    assert after.spans.equals(before.spans)
    assert after.diagnostics.filter(code=CODE).height == before.ranks["source"].n_unique()


def test_databases_that_differ_in_their_logs_of_changes_are_no_copies(tmp_path):
    (one,) = (one for one in FORMATS if one.name == "rocpd")
    run = write_run(one, tmp_path / "run")
    back_up(run)
    original = run / "rank0_results.db"
    connection = sqlite3.connect(original)
    connection.execute("PRAGMA journal_mode = WAL")
    shutil.copy2(original, run / "backup" / original.name)  # equal, but for the changes that follow
    connection.execute("CREATE TABLE further (number INTEGER)")
    connection.commit()
    found = copies_of(run)
    connection.close()
    assert found == [run / "backup" / "rank1_results.db"]


def copies_of(run: Path) -> list[Path]:
    return without_copies(inputs_of([run]).files)[1]


def test_files_that_begin_alike_and_differ_at_the_end_are_read(tmp_path):
    rows = "".join(f"0,compute,forward,{at},{at + 5}\n" for at in range(0, 40_000, 10))
    for rank in (1, 2):
        table = f"rank,lane,kind,start_ns,end_ns\n{rows}{rank},compute,forward,0,5\n"
        (tmp_path / f"spans{rank}.csv").write_text(table)
    assert copies_of(tmp_path) == []


def test_progress_counts_copies(tmp_path):
    (one,) = (one for one in FORMATS if one.name == "nsight")
    run = write_run(one, tmp_path / "run")
    back_up(run)
    seen = []
    read(run, on_progress=lambda done, every: seen.append((done, every)))
    assert seen[-1] == (4, 4)
