"""A stored run is the same run: its tables, its alignment and its report, whatever was interrupted or damaged."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from contextlib import nullcontext
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import polars as pl
import pytest
from filelock import FileLock
from polars.testing import assert_frame_equal

from machines import record_machines
from places import DATA
from stagescope.api import analyze, read, report_json, store, storing
from stagescope.execution.processes import Processes
from stagescope.exporters.stored_run import WriteOptions, partition_files, write_stored_run
from stagescope.exporters.stored_run.partitions import divide
from stagescope.ingest import processes
from stagescope.ingest.stored_run import read_manifest
from stagescope.model import TABLES
from stagescope.model.stored_run import FORMAT, JOURNAL, LOCK, MANIFEST, VERSION, Manifest, manifest_text
from stagescope.vocabulary.errors import CommandError, InputError, OutputError, UsageError

ONE_MACHINE = DATA / "recordings" / "v1"
REPLICAS = DATA / "public_runs" / "bytedance-ST.parquet"


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """Return a directory with recordings that a test may change."""
    return shutil.copytree(ONE_MACHINE, tmp_path / "recordings")


def assert_same(stored, timeline):
    for table in TABLES:
        assert_frame_equal(getattr(stored, table.name), getattr(timeline, table.name))
    assert stored.alignment == timeline.alignment


@pytest.mark.parametrize("source", [ONE_MACHINE, REPLICAS], ids=["recordings", "replicas"])
def test_a_stored_run_is_read_as_it_was(source, tmp_path):
    stored = store(source, out=tmp_path / "run")
    assert_same(read(tmp_path / "run"), read(source))
    assert stored.manifest.span_count == read(source).spans.height


@pytest.mark.parametrize(
    "where",
    [{"workers": 2}, pytest.param({"cluster": "local:2"}, marks=pytest.mark.exhaustive)],
    ids=["processes", "cluster"],
)
@pytest.mark.filterwarnings("default")  # of the libraries of a cluster
def test_the_files_do_not_depend_on_who_writes_them(where, tmp_path):
    if "cluster" in where:
        pytest.importorskip("distributed")
    notices: list[str] = []
    alone = store(REPLICAS, out=tmp_path / "alone", workers=1)
    others = store(REPLICAS, out=tmp_path / "others", on_notice=notices.append, **where)
    assert others.manifest == alone.manifest
    assert not list((tmp_path / "others").rglob("*.arrow"))
    assert bool(notices) == ("cluster" in where)
    again = store(REPLICAS, out=tmp_path / "others", **where)
    assert (again.written, again.kept) == (0, alone.written)


def test_one_worker_stores_large_files_in_another_process(monkeypatch, tmp_path):
    alone = store(ONE_MACHINE, out=tmp_path / "alone", workers=1)
    monkeypatch.setattr(storing, "LARGE_FOR_ONE_BYTES", 0)
    started = []
    monkeypatch.setattr(Processes, "_start_one", noted(Processes._start_one, started))
    other = store(ONE_MACHINE, out=tmp_path / "other", workers=1)
    assert len(started) == 1
    assert other.manifest == alone.manifest


def noted(function, calls):
    """Return a function that does the same, and adds its arguments to a list."""

    def call(*arguments):
        calls.append(arguments)
        return function(*arguments)

    return call


def test_a_worker_that_cannot_write_is_an_error(tmp_path):
    tmp_path.joinpath("run").mkdir()
    tmp_path.joinpath("run", "lock").touch()
    tmp_path.joinpath("run", "spans").touch()  # where a directory belongs
    with pytest.raises(OutputError, match=r"cannot store into .*: File exists"):
        store(ONE_MACHINE, out=tmp_path / "run", workers=2)


@pytest.mark.parametrize(("workers", "error"), [(0, ValueError), ("2", TypeError)])
def test_the_number_of_workers_is_checked(workers, error, tmp_path):
    with pytest.raises(error, match="workers must be"):
        store(ONE_MACHINE, out=tmp_path / "run", workers=workers)


@pytest.mark.parametrize("cluster", ["nowhere", "local:0"])
def test_an_unknown_cluster_leaves_nothing_behind(cluster, tmp_path):
    with pytest.raises(UsageError, match=cluster):
        store(ONE_MACHINE, out=tmp_path / "run", cluster=cluster)
    assert list(tmp_path.iterdir()) == []


def test_the_alignment_of_several_machines_is_stored(tmp_path):
    tmp_path.joinpath("recordings").mkdir()
    record_machines(tmp_path / "recordings")
    store(tmp_path / "recordings", out=tmp_path / "run")
    timeline = read(tmp_path / "run")
    assert len(timeline.alignment.machines) == 2
    assert_same(timeline, read(tmp_path / "recordings"))


def test_a_run_that_was_stored_as_recorded_is_aligned_when_it_is_read(tmp_path):
    tmp_path.joinpath("recordings").mkdir()
    record_machines(tmp_path / "recordings")
    store(tmp_path / "recordings", out=tmp_path / "run", align=False)
    assert_same(read(tmp_path / "run", align=False), read(tmp_path / "recordings", align=False))
    assert_same(read(tmp_path / "run"), read(tmp_path / "recordings"))


@pytest.mark.parametrize("most_spans", [1_000_000, 2500, pytest.param(50, marks=pytest.mark.exhaustive)])
def test_reports_do_not_depend_on_the_partitions(most_spans, tmp_path):
    timeline = read(REPLICAS)
    empty = Manifest(FORMAT, VERSION, "stagescope", (), {}, aligned=False)
    tmp_path.joinpath("run").mkdir()
    written = write_stored_run(timeline, tmp_path / "run", empty, WriteOptions(most_spans))
    ranges = {part.step_range for part in written.manifest.parts if part.table == "spans"}
    assert (len(ranges) > 1) == (most_spans < 1_000_000)
    assert report_json(analyze(read(tmp_path / "run"))) == report_json(analyze(timeline))


def test_partitions_contain_every_row_once_and_no_more_spans_than_allowed():
    timeline = read(REPLICAS)
    parts = [each for each in divide(timeline, 2000) if each.table.name == "spans"]
    assert sum(each.rows.height for each in parts) == timeline.spans.height
    assert max(each.rows.height for each in parts) <= 2000
    for each in parts:
        assert each.rows["rank"].min() == each.pipeline or each.pipeline == -1


def test_other_programs_read_the_partitions_without_stagescope(tmp_path):
    store(REPLICAS, out=tmp_path / "run")
    found = pl.scan_parquet(tmp_path / "run" / "spans", hive_partitioning=True).collect()
    expected = read(REPLICAS).spans
    assert found.group_by("pipeline").len().height > 1
    assert (found["end_ns"] - found["start_ns"]).sum() == (expected["end_ns"] - expected["start_ns"]).sum()
    assert set(found["kind"]) == set(expected["kind"].cast(pl.String))


def test_storing_again_keeps_what_is_there(recordings, tmp_path):
    first = store(recordings, out=tmp_path / "run")
    again = store(recordings, out=tmp_path / "run")
    assert (first.kept, again.written) == (0, 0)
    assert again.kept == first.written


def test_an_interrupted_store_goes_on_where_it_stopped(recordings, tmp_path):
    seen = []

    def interrupt(part):
        seen.append(part.path)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store(recordings, out=tmp_path / "run", on_written=interrupt)
    with pytest.raises(InputError, match="storing it was interrupted"):
        read(tmp_path / "run")
    resumed = store(recordings, out=tmp_path / "run")
    assert resumed.kept == 3
    assert_same(read(tmp_path / "run"), read(recordings))
    assert not (tmp_path / "run" / JOURNAL).exists()


def test_a_store_that_was_killed_before_it_wrote_anything_is_named_as_unfinished(recordings, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / LOCK).touch()
    with pytest.raises(InputError, match="storing it was interrupted"):
        read(out)
    store(recordings, out=out)
    assert read(out).spans.height


@pytest.mark.parametrize("is_complete", [True, False], ids=["complete", "interrupted"])
def test_files_that_other_code_stored_are_written_again(is_complete, recordings, tmp_path, monkeypatch):
    def interrupt(part):
        if not is_complete and part.table == "spans":
            raise KeyboardInterrupt

    monkeypatch.setattr(storing, "checksum_of_code", lambda _: "other code")
    with nullcontext() if is_complete else pytest.raises(KeyboardInterrupt):
        store(recordings, out=tmp_path / "run", on_written=interrupt)
    monkeypatch.undo()
    assert store(recordings, out=tmp_path / "run").kept == 0
    assert store(recordings, out=tmp_path / "run").written == 0


def test_a_run_stored_before_code_and_other_checksums_were_noted_is_read_and_stored_again(
    recordings, tmp_path
):
    store(recordings, out=tmp_path / "run")
    manifest = tmp_path / "run" / MANIFEST
    facts = json.loads(manifest.read_text())
    del facts["code"]
    for source in facts["sources"]:
        source["checksum"] = blake2b(Path(source["path"]).read_bytes(), digest_size=16).hexdigest()
    manifest.write_text(manifest_text(facts))
    assert_same(read(tmp_path / "run"), read(recordings))
    assert store(recordings, out=tmp_path / "run").kept == 0
    manifest.write_text(manifest_text(facts))
    changed = min(recordings.iterdir())
    changed.write_bytes(changed.read_bytes()[:-30])
    with pytest.raises(OutputError, match="1 file is changed"):
        store(recordings, out=tmp_path / "run")


def test_a_journal_that_was_cut_off_costs_its_last_line(recordings, tmp_path):
    def interrupt(part):
        if part.table == "spans":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store(recordings, out=tmp_path / "run", on_written=interrupt)
    journal = tmp_path / "run" / JOURNAL
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines)[:-20])
    assert store(recordings, out=tmp_path / "run").kept == len(lines) - 2


@pytest.mark.parametrize("damage", ["changed", "cut", "gone"])
def test_a_damaged_file_is_named_and_written_again(damage, recordings, tmp_path):
    stored = store(recordings, out=tmp_path / "run")
    part = next(part for part in stored.manifest.parts if part.table == "steps")
    file = tmp_path / "run" / part.path
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(content[:-9] if damage == "cut" else content[:40] + b"?" + content[41:])
    timeline = read(tmp_path / "run")
    (note,) = timeline.diagnostics.filter(pl.col("code") == "store.damaged").to_dicts()
    assert (timeline.is_partial, note["count"], timeline.steps.height) == (True, part.rows, 0)
    assert part.path in note["message"]
    assert store(recordings, out=tmp_path / "run").written == 1
    assert not read(tmp_path / "run").is_partial


def test_a_run_without_any_spans_left_is_an_error(recordings, tmp_path):
    store(recordings, out=tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "spans")
    with pytest.raises(InputError, match="none of its 1 files with spans can be read"):
        read(tmp_path / "run")


def test_a_pipe_in_place_of_a_file_is_damage(recordings, tmp_path):
    stored = store(recordings, out=tmp_path / "run")
    (file,) = (tmp_path / "run" / part.path for part in stored.manifest.parts if part.table == "steps")
    file.unlink()
    os.mkfifo(file)
    (note,) = read(tmp_path / "run").diagnostics.filter(pl.col("code") == "store.damaged").to_dicts()
    assert "it is a pipe" in note["message"]


def test_a_table_with_other_rows_than_its_manifest_states_is_not_used(recordings, tmp_path):
    store(recordings, out=tmp_path / "run")
    path = tmp_path / "run" / MANIFEST
    facts = json.loads(path.read_text())
    next(part for part in facts["parts"] if part["table"] == "steps")["rows"] += 1
    path.write_text(manifest_text(facts))
    (note,) = read(tmp_path / "run").diagnostics.filter(pl.col("code") == "store.damaged").to_dicts()
    assert "rows instead of" in note["message"]


def test_a_journal_that_is_a_link_is_not_followed(recordings, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "precious").write_text("content")
    (tmp_path / "run" / JOURNAL).symlink_to(tmp_path / "precious")
    with pytest.raises(OutputError):
        store(recordings, out=tmp_path / "run")
    assert (tmp_path / "precious").read_text() == "content"


def test_changed_sources_are_noticed(recordings, tmp_path):
    store(recordings, out=tmp_path / "run")
    changed = min(recordings.iterdir())
    changed.write_bytes(changed.read_bytes()[:-30])
    (note,) = read(tmp_path / "run").diagnostics.filter(pl.col("code") == "store.source_changed").to_dicts()
    assert changed.name in note["message"]
    with pytest.raises(OutputError, match="1 file is changed"):
        store(recordings, out=tmp_path / "run")
    store(recordings, out=tmp_path / "run", force=True)
    assert_same(read(tmp_path / "run"), read(recordings))


def test_sources_that_are_gone_are_no_problem(recordings, tmp_path):
    store(recordings, out=tmp_path / "run")
    before = read(recordings)
    shutil.rmtree(recordings)
    assert_same(read(tmp_path / "run"), before)


def test_other_options_are_another_run(tmp_path):
    store(REPLICAS, out=tmp_path / "run")
    with pytest.raises(OutputError, match="stored with other options"):
        store(REPLICAS, out=tmp_path / "run", schedule="1f1b")
    store(REPLICAS, out=tmp_path / "run", schedule="1f1b", force=True)
    assert set(read(tmp_path / "run").ranks["schedule"]) == {"1f1b"}


def test_the_keywords_of_the_first_read_are_those_of_a_stored_run(tmp_path):
    store(REPLICAS, out=tmp_path / "run", schedule="1f1b")
    assert_same(read(tmp_path / "run", schedule="1f1b"), read(tmp_path / "run"))
    with pytest.raises(UsageError, match="--schedule cannot change"):
        read(tmp_path / "run", schedule="gpipe")


def test_a_replaced_run_leaves_none_of_its_files(tmp_path):
    store(REPLICAS, out=tmp_path / "run")
    store(ONE_MACHINE, out=tmp_path / "run", force=True)
    files = {str(file.relative_to(tmp_path / "run")) for file in (tmp_path / "run").rglob("*.parquet")}
    assert files == {part.path for part in read_manifest(tmp_path / "run").parts}


def test_what_a_killed_process_had_begun_to_write_is_removed(recordings, tmp_path):
    part = next(
        part for part in store(recordings, out=tmp_path / "run").manifest.parts if part.table == "spans"
    )
    complete = sorted((tmp_path / "run").rglob("*"))
    for folder in (tmp_path / "run", (tmp_path / "run" / part.path).parent):
        folder.joinpath(".part.parquet.0123456789abcdef.unfinished").touch()
    begun = tmp_path / "run" / "spans" / "pipeline=8" / "step_range=0"
    begun.mkdir(parents=True)
    begun.joinpath(".part.parquet.0123456789abcdef.unfinished").touch()
    assert store(recordings, out=tmp_path / "run").written == 0
    assert sorted((tmp_path / "run").rglob("*")) == complete


def test_the_facts_of_a_stored_run_cannot_be_changed(recordings, tmp_path):
    store(recordings, out=tmp_path / "run")
    with pytest.raises(UsageError, match="--pp cannot change"):
        read(tmp_path / "run", pp=4)
    with pytest.raises(UsageError, match="were aligned when it was stored"):
        read(tmp_path / "run", align=False)
    with pytest.raises(InputError, match="read alone"):
        read(tmp_path / "run", recordings)


def test_a_stored_run_beside_recordings_is_not_read_with_them(recordings):
    store(recordings, out=recordings / "run.stagescope")
    timeline = read(recordings)
    assert timeline.ranks.height == 4
    (note,) = timeline.diagnostics.filter(pl.col("code") == "input.not_read").to_dicts()
    assert "is a stored run" in note["message"]


def test_a_copy_without_a_manifest_is_not_read_as_other_files(recordings, tmp_path):
    store(recordings, out=tmp_path / "run")
    (tmp_path / "run" / MANIFEST).unlink()
    with pytest.raises(InputError, match=r"incomplete copy of a stored run: its manifest, .* is missing"):
        read(tmp_path / "run")
    shutil.copytree(tmp_path / "run", recordings / "copy")
    timeline = read(recordings)
    assert timeline.ranks.height == 4
    (note,) = timeline.diagnostics.filter(pl.col("code") == "input.not_read").to_dicts()
    assert f"{recordings / 'copy'} is a stored run" in note["message"]


def test_a_directory_with_a_stored_run_alone_names_it(recordings, tmp_path):
    store(recordings, out=tmp_path / "all" / "run.stagescope")
    with pytest.raises(InputError) as error:
        read(tmp_path / "all")
    assert error.value.hint == f"name it: {tmp_path / 'all' / 'run.stagescope'}"


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"version": VERSION + 1}, "of version 2; this stagescope reads versions up to 1"),
        ({"version": 0}, "its version is 0"),
        ({"version": None}, "its version is None"),
        ({"format": "another"}, "not a recording or trace"),
        ({"parts": 7}, "Expected `array`, got `int` - at `$.parts`"),
        ({"alignment": {"machines": [{}]}}, "the alignment in its manifest is damaged"),
    ],
    ids=["newer", "version", "unversioned", "format", "parts", "alignment"],
)
def test_a_manifest_of_another_kind_is_refused(facts, message, recordings, tmp_path):
    store(recordings, out=tmp_path / "run")
    manifest = tmp_path / "run" / MANIFEST
    manifest.write_text(manifest_text({**json.loads(manifest.read_text()), **facts}))
    with pytest.raises(InputError) as error:
        read(tmp_path / "run")
    assert message in str(error.value)


@pytest.mark.parametrize("kind", ["damaged", "newer"])
def test_a_run_whose_manifest_cannot_be_read_is_replaced_by_force_as_hints_state(kind, recordings, tmp_path):
    store(recordings, out=tmp_path / "run")
    manifest = tmp_path / "run" / MANIFEST
    facts = {**json.loads(manifest.read_text()), "version": VERSION + 1}
    manifest.write_text(manifest_text(facts) if kind == "newer" else manifest.read_text()[:200])
    with pytest.raises(InputError) as reading:
        read_manifest(tmp_path / "run")
    with pytest.raises(OutputError) as storing_again:
        store(recordings, out=tmp_path / "run")
    assert str(storing_again.value) == str(reading.value)
    assert all("--force" in error.value.hint for error in (reading, storing_again))
    store(recordings, out=tmp_path / "run", force=True)
    assert_same(read(tmp_path / "run"), read(recordings))


@pytest.mark.parametrize(
    "path", ["../../secret.parquet", "/etc/passwd", "spans/../../x.parquet", "spans.parquet/x"]
)
def test_a_manifest_cannot_lead_out_of_the_directory(path, recordings, tmp_path):
    stored = store(recordings, out=tmp_path / "run")
    manifest = tmp_path / "run" / MANIFEST
    content = json.loads(manifest.read_text())
    content["parts"][0]["path"] = path
    manifest.write_text(manifest_text(content))
    with pytest.raises(InputError, match="is not a file of a stored run"):
        read(stored.path)


@pytest.mark.parametrize("name", ["rows", "size_bytes"])
@pytest.mark.parametrize("number", [-1, 2**63, 2**70])
def test_a_manifest_with_impossible_numbers_is_refused(name, number, recordings, tmp_path):
    stored = store(recordings, out=tmp_path / "run")
    manifest = tmp_path / "run" / MANIFEST
    content = json.loads(manifest.read_text())
    content["parts"][0][name] = number
    manifest.write_text(manifest_text(content))
    with pytest.raises(InputError, match="which is impossible"):
        read(stored.path)


def test_a_part_that_is_no_longer_listed_is_noticed(recordings, tmp_path):
    store(recordings, out=tmp_path / "run")
    manifest = tmp_path / "run" / MANIFEST
    content = json.loads(manifest.read_text())
    del content["parts"][-1]
    manifest.write_text(json.dumps(content))
    with pytest.raises(InputError, match="its checksum does not match its content"):
        read(tmp_path / "run")


def test_a_manifest_of_other_bytes_is_refused(recordings, tmp_path):
    store(recordings, out=tmp_path / "run")
    manifest = tmp_path / "run" / MANIFEST
    manifest.write_bytes(manifest.read_bytes().replace(b"rank0", b"r\xffnk0", 1))
    with pytest.raises(InputError, match="is damaged"):
        read(tmp_path / "run")


def test_two_processes_do_not_store_into_one_directory(recordings, tmp_path):
    (tmp_path / "run").mkdir()
    with FileLock(tmp_path / "run" / "lock"), pytest.raises(OutputError, match="another process is storing"):
        store(recordings, out=tmp_path / "run")


def test_a_full_disk_leaves_what_was_complete(recordings, tmp_path, monkeypatch):
    write = partition_files.write_parquet

    def full(rows, path):
        if "spans" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(rows, path)

    monkeypatch.setattr(partition_files, "write_parquet", full)
    with pytest.raises(OutputError) as error:
        store(recordings, out=tmp_path / "run")
    assert "No space left on device" in str(error.value)
    assert not list((tmp_path / "run").rglob("*.unfinished"))
    monkeypatch.undo()
    assert store(recordings, out=tmp_path / "run").kept == 3


def test_nothing_else_is_overwritten(recordings, tmp_path):
    (tmp_path / "file").touch()
    tmp_path.joinpath("other", "work").mkdir(parents=True)
    (tmp_path / "link").symlink_to("nowhere")
    for place in (tmp_path / "file", tmp_path / "other", tmp_path / "link"):
        with pytest.raises(OutputError, match="is not a stored run"):
            store(recordings, out=place)
    store(recordings, out=tmp_path / "run")
    with pytest.raises(InputError, match="is a stored run already"):
        store(tmp_path / "run", out=tmp_path / "another")
    with pytest.raises(InputError, match="where the run is to be stored"):
        store(recordings, out=recordings)


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "empty"])
def test_a_run_that_cannot_be_stored_leaves_no_directory_behind(is_new, recordings, tmp_path):
    if not is_new:
        (tmp_path / "run").mkdir()
    with pytest.raises(InputError):
        store(recordings, out=tmp_path / "run", steps="900:901")
    assert (tmp_path / "run").exists() != is_new
    assert is_new or not list((tmp_path / "run").iterdir())


def test_an_empty_path_is_not_the_current_directory(recordings, tmp_path, monkeypatch):
    tmp_path.joinpath("empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(OutputError, match="the path of the stored run is empty"):
        store(recordings, out="")
    assert not list(Path().iterdir())


@pytest.mark.parametrize("library", ["pyarrow", "filelock"])
def test_a_missing_library_is_named(library, recordings, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(CommandError) as error:
        store(recordings, out=tmp_path / "run")
    assert (library in str(error.value), "stagescope[store]" in error.value.hint) == (True, True)


def test_a_manifest_lists_sources_with_checksums(recordings, tmp_path):
    manifest = store(recordings, out=tmp_path / "run").manifest
    assert [Path(source.path).name for source in manifest.sources] == sorted(
        file.name for file in recordings.iterdir()
    )
    assert read_manifest(tmp_path / "run") == replace(manifest)


@pytest.mark.parametrize(("size_bytes", "workers"), [(None, 64), (200 << 20, 1), (1 << 30, 3)])
def test_by_default_no_more_workers_store_a_run_than_fit_into_memory(
    monkeypatch, tmp_path, size_bytes, workers
):
    path = tmp_path / "trace.json"
    path.write_bytes(b" " * 100)
    monkeypatch.setattr(storing, "LARGE_BYTES", 50)
    monkeypatch.setattr(storing, "core_count", lambda: 64)
    monkeypatch.setattr(processes, "memory_bytes", lambda: size_bytes)
    assert storing._worker_count([path]) == workers
