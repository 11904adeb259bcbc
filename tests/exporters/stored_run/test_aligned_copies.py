"""A run that was stored without alignment is stored with aligned clocks, a file at a time, as if read at once."""

from __future__ import annotations

import os
from dataclasses import replace

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from machines import record_machines
from planted_clocks import ClockStep, Plan
from recorded_runs import write_recordings
from stagescope.api import (
    Shown,
    aligned_copies,
    cached_input,
    load_report,
    range_reports,
    read,
    save_report,
    saved_reports,
    store,
    view_run,
)
from stagescope.api.aligned_copies import store_aligned
from stagescope.api.run_cache import Input
from stagescope.cli import main
from stagescope.clocks import thinning
from stagescope.exporters.stored_run import WriteOptions, write_stored_run, writer
from stagescope.ingest.stored_run import read_manifest
from stagescope.model import COUNTERS, SPANS, TABLES
from stagescope.model.stored_run import FORMAT, VERSION, Manifest
from stagescope.model.validate import conform
from stagescope.storage.cache_directory import keep_nothing
from stagescope.viewer.analysis_data import saved_report_extras
from stagescope.viewer.tiles import stored as stored_tiles
from stagescope.vocabulary.errors import InputError, OutputError
from stored_parts import SHAPE

SPANS_OF_PIPELINE = 1_056
SOME_SPANS = SPANS_OF_PIPELINE // 3


def store_unaligned(timeline, place, most_spans=SOME_SPANS):
    """Store a timeline as it is, with ranges of steps of so many spans, and return the directory."""
    place.mkdir()
    manifest = Manifest(FORMAT, VERSION, "planted", (), {}, aligned=False)
    write_stored_run(timeline, place, manifest, WriteOptions(most_spans))
    return place


def contents(directory):
    """Return the content and the time of modification of every file below a directory."""
    files = [file for file in directory.rglob("*") if file.is_file()]
    return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


def assert_as_at_once(unaligned, tmp_path, most_spans=SOME_SPANS):
    """Assert that a copy has the files of the run that is read and aligned at once; return that run."""
    before = contents(unaligned)
    copy = store_aligned(unaligned, out=tmp_path / "copy", workers=1)
    timeline = read(unaligned)
    again = read(copy.path)
    for table in TABLES:
        assert_frame_equal(getattr(again, table.name), getattr(timeline, table.name))
    assert again.alignment == timeline.alignment
    (tmp_path / "memory").mkdir()
    empty = Manifest(FORMAT, VERSION, "planted", (), {}, aligned=True)
    expected = write_stored_run(timeline, tmp_path / "memory", empty, WriteOptions(most_spans))
    assert sorted(copy.manifest.parts, key=str) == sorted(expected.manifest.parts, key=str)
    assert copy.manifest.parts == expected.manifest.parts
    assert contents(unaligned) == before
    return timeline


@pytest.mark.parametrize("most_spans", [10**6, SOME_SPANS, 1], ids=["one range", "ranges", "steps"])
def test_the_copy_of_a_run_on_several_machines_is_that_of_memory(recordings, most_spans, tmp_path):
    place = store_unaligned(read(recordings, align=False), tmp_path / "run", most_spans)
    timeline = assert_as_at_once(place, tmp_path, most_spans)
    assert len(timeline.alignment.machines) == 8
    assert not timeline.diagnostics.filter(code="clocks.wall").height


def test_the_copy_is_what_storing_the_recordings_makes(recordings, tmp_path):
    store(recordings, out=tmp_path / "run", align=False)
    copy = store_aligned(tmp_path / "run", out=tmp_path / "copy", workers=1)
    expected = store(recordings, out=tmp_path / "expected").manifest
    assert copy.manifest.parts == expected.parts
    assert copy.manifest.alignment == expected.alignment
    *sources, own = copy.manifest.sources
    assert tuple(sources) == expected.sources
    assert own.path == str(tmp_path / "run" / "stored-run.json")


def test_workers_change_nothing(recordings, tmp_path):
    place = store_unaligned(read(recordings, align=False), tmp_path / "run")
    one, two = (store_aligned(place, out=tmp_path / f"{count}", workers=count) for count in (1, 2))
    assert one.manifest == two.manifest


@pytest.mark.parametrize(
    "plan",
    [
        Plan(ranks=4, microbatches=4, steps=8, clock_steps=(ClockStep(1, 0.5, 3_000_000),)),
        Plan(ranks=4, microbatches=4, steps=8, actions_only=True),
        Plan(ranks=4, replicas=2, ranks_per_machine=2, microbatches=4, steps=8, collectives=2),
    ],
    ids=["a clock that was set", "without messages", "collectives"],
)
def test_whatever_shows_the_clocks_does_so_in_files(plan, tmp_path):
    record_machines(tmp_path, plan)
    place = store_unaligned(read(tmp_path, align=False), tmp_path / "run", 40)
    timeline = assert_as_at_once(place, tmp_path, 40)
    assert len(timeline.alignment.machines) > 1
    assert len(timeline.alignment.adjustments) == len(plan.clock_steps)


def test_messages_of_ranks_without_actions_are_found_in_other_files(planted, tmp_path):
    write_recordings(planted, tmp_path / "recordings", SHAPE.stages, ranks_per_machine=2)
    timeline = read(tmp_path / "recordings", align=False)
    is_action = (pl.col("lane") == "compute") & pl.col("rank").is_in([2, 3])
    place = store_unaligned(timeline.with_spans(timeline.spans.filter(~is_action)), tmp_path / "run")
    assert {-1, 0} <= {part.pipeline for part in read_manifest(place).parts}
    assert_as_at_once(place, tmp_path)


def test_rows_without_a_step_and_counters_are_moved(recordings, tmp_path):
    timeline = read(recordings, align=False)
    is_first = (pl.col("step") == timeline.spans["step"].min()) & (pl.col("kind") != "grad_reduce")
    step = pl.when(is_first).then(None).otherwise("step").cast(pl.Int32)
    counters = timeline.spans.group_by("rank").agg(time_ns=pl.min("end_ns"))
    readings = conform(counters.with_columns(name=pl.lit("memory"), value=1.0), COUNTERS)
    spans = conform(timeline.spans.with_columns(step=step), SPANS)
    place = store_unaligned(replace(timeline.with_spans(spans), counters=readings), tmp_path / "run")
    assert_as_at_once(place, tmp_path)


def test_a_run_on_one_clock_is_copied_as_it_is(planted, tmp_path):
    write_recordings(planted, tmp_path / "recordings", SHAPE.stages, ranks_per_machine=16)
    place = store_unaligned(read(tmp_path / "recordings", align=False), tmp_path / "run")
    assert not assert_as_at_once(place, tmp_path).alignment.machines


def test_a_long_run_has_about_as_many_observations_as_at_once(recordings, monkeypatch, tmp_path):
    monkeypatch.setattr(thinning, "OF_RUN", 0)
    monkeypatch.setattr(thinning, "LEAST_OF_PAIR", 24)
    monkeypatch.setattr(thinning, "OUTERMOST", 1)
    place = store_unaligned(read(recordings, align=False), tmp_path / "run")
    copy = read(store_aligned(place, out=tmp_path / "copy", workers=1).path)
    timeline = read(place)
    counts = [sum(each.observation_count for each in one.alignment.machines) for one in (timeline, copy)]
    assert counts[0] / 2 < counts[1] < counts[0] * 2
    differs_ns = (copy.spans["start_ns"] - timeline.spans["start_ns"]).abs().max()
    assert differs_ns < 10_000


def test_copying_goes_on_where_it_was_interrupted(recordings, monkeypatch, tmp_path):
    place = store_unaligned(read(recordings, align=False), tmp_path / "run")
    add, seen = writer.Store.add, []

    def interrupted(self, part):
        add(self, part)
        seen.append(part.path)
        if len(seen) == 6:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writer.Store, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store_aligned(place, out=tmp_path / "copy", workers=1)
    kept = set((tmp_path / "copy").rglob("part.parquet"))
    before = {file: file.stat().st_ino for file in kept}
    store_aligned(place, out=tmp_path / "copy", workers=1)
    assert kept
    assert {file: file.stat().st_ino for file in kept} == before
    assert not (tmp_path / "copy" / "unencoded").exists()


@pytest.fixture
def unaligned(recordings, tmp_path, monkeypatch):
    """Return a run without alignment that counts as large, as every run does, and that cannot be written to."""
    monkeypatch.setenv("STAGESCOPE_CACHE", str(tmp_path / "cache"))
    keep_nothing(is_wanted=False)  # a command of an earlier test may have wanted that
    monkeypatch.setattr(aligned_copies, "core_count", lambda: 1)
    monkeypatch.setattr(saved_reports, "STORING_BYTES", 0)
    monkeypatch.setattr(range_reports, "SPANS_OF_RANGE", 1_000)
    place = store_unaligned(read(recordings, align=False), tmp_path / "run.stagescope")
    for folder in (place, *(path for path in place.rglob("*") if path.is_dir())):
        folder.chmod(0o500)
    yield place
    for folder in (place, *(path for path in place.rglob("*") if path.is_dir())):
        folder.chmod(0o700)


def through(*paths, facts=None, **keywords):
    """Return what to read, and the sentences about it."""
    notices = []
    return cached_input(paths, facts or {}, Shown(notices.append), **keywords), notices


def copies(tmp_path):
    return sorted(tmp_path.glob("cache/runs/*/run.stagescope"))


def test_the_report_is_saved_beside_the_copy(unaligned, tmp_path):
    before = contents(unaligned)
    source, notices = through(unaligned)
    assert list(source.paths) == copies(tmp_path), notices
    assert len(notices) == 1
    assert save_report(*source.paths, workers=1).is_new
    assert load_report(*through(unaligned)[0].paths) is not None
    assert contents(unaligned) == before


@pytest.mark.parametrize(
    "words",
    [["report", "--json", "-"], ["clocks", "--json"], ["what-if", "--balanced"], ["show"]],
    ids=lambda words: words[0],
)
def test_commands_print_what_they_print_at_once(words, unaligned, tmp_path, capsys):
    outputs = []
    for more in (["--no-cache"], [], []):
        assert main([words[0], str(unaligned), *words[1:], *more]) == 0
        outputs.append(capsys.readouterr().out)
        assert bool(copies(tmp_path)) == (not more)
    assert outputs[1] == outputs[2]
    if words[0] != "report":  # rows of spans are null in that of ranges, whatever is analyzed
        assert outputs[0] == outputs[1]


def test_the_page_has_the_results_of_the_report(unaligned, monkeypatch, tmp_path):
    notices = []
    view = view_run(unaligned, on_notice=notices.append)
    saved = saved_report_extras(load_report(*copies(tmp_path)))
    assert view.sections["verdict"].data
    assert saved.objects["verdict"] is not None
    assert "storing" in notices[0]
    monkeypatch.setattr(stored_tiles, "LARGE", 0)
    large = view_run(unaligned, on_notice=str, limits={"query": "100"})
    assert large.meta["span_count"] == view.meta["span_count"]
    assert large.sections["verdict"].data == view.sections["verdict"].data


def test_what_is_read_directly_is_not_copied(unaligned, recordings, tmp_path, monkeypatch):
    aligned = store(recordings, out=tmp_path / "aligned.stagescope").path
    steps = {"steps": "1:3"}
    assert through(aligned) == (Input((aligned,), {}), [])
    assert through(unaligned, align=False) == (Input((unaligned,), {}), [])
    assert through(unaligned, facts=steps) == (Input((unaligned,), steps), [])
    assert through(unaligned, facts={"schedule": "gpipe"})[1] == []
    monkeypatch.setattr(saved_reports, "STORING_BYTES", 10**9)
    assert through(unaligned) == (Input((unaligned,), {}), [])
    monkeypatch.setattr(saved_reports, "STORING_BYTES", 0)
    monkeypatch.setenv("STAGESCOPE_CACHE", "off")
    assert through(unaligned) == (Input((unaligned,), {}), [])
    assert not copies(tmp_path)


def test_a_fact_with_which_a_run_was_not_stored_is_an_error(unaligned, capsys):
    assert main(["report", str(unaligned), "--schedule", "gpipe"]) == 2
    assert str(unaligned) in capsys.readouterr().err


def test_a_run_that_was_stored_again_is_aligned_again(unaligned, tmp_path):
    through(unaligned)
    assert "no file has changed" in through(unaligned)[1][0]
    (manifest, *_) = unaligned.glob("*.json")
    os.utime(manifest, ns=(1, 1))
    assert "storing" in through(unaligned)[1][0]
    assert len(copies(tmp_path)) == 1


def spoilt(unaligned, how):
    file = sorted(unaligned.glob("spans/*/*/part.parquet"))[1]
    content = bytearray(file.read_bytes())
    file.parent.chmod(0o700)
    if how == "changed":
        content[len(content) // 2] ^= 255
    file.unlink()
    if how != "missing":
        file.write_bytes(content[:100] if how == "cut" else content)
    return file


@pytest.mark.parametrize("how", ["changed", "cut", "missing"])
def test_a_damaged_file_is_stated_as_at_once(how, unaligned, tmp_path, capsys):
    file = spoilt(unaligned, how)
    assert main(["report", str(unaligned), "--no-cache"]) == 1
    at_once = capsys.readouterr()
    assert main(["report", str(unaligned)]) == 1
    found = capsys.readouterr()
    assert found.out == at_once.out
    lines = found.err.splitlines()
    notes = [line for line in lines if "storing" in line or "read without the cache" in line]
    assert [line for line in lines if line not in notes] == at_once.err.splitlines()
    assert len(notes) == (2 if how == "changed" else 0)
    assert str(file.relative_to(unaligned)) in found.err
    assert not copies(tmp_path)


def test_damage_is_an_error_of_the_function(unaligned, tmp_path):
    spoilt(unaligned, "changed")
    with pytest.raises(InputError, match="has changed since it was stored"):
        store_aligned(unaligned, out=tmp_path / "copy", workers=1)


def test_a_full_disk_is_a_note_and_leaves_nothing(unaligned, tmp_path, monkeypatch, capsys):
    def full(*_, **keywords):
        keywords["out"].mkdir()
        raise OutputError.not_stored(keywords["out"], OSError(28, "No space left on device"))

    monkeypatch.setattr("stagescope.api.run_cache.store_aligned", full)
    assert main(["report", str(unaligned)]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("read without the cache") == 1
    assert "No space left on device" in shown.err
    assert not copies(tmp_path)


def test_progress_counts_files_up_to_all_of_them(unaligned, tmp_path):
    seen = []
    store_aligned(
        unaligned, out=tmp_path / "copy", workers=1, on_progress=lambda *counts: seen.append(counts)
    )
    count = len(read_manifest(unaligned).parts)
    assert seen[0] == (0, count)
    assert seen[-1] == (count, count)
    assert seen == sorted(set(seen))
