"""Runs as the local server shows them: what the cache distinguishes, and comparisons."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from column_blobs import read_blob
from stagescope.api import code_checksums, compare, store, view_run
from stagescope.api.run_views import RunFiles, state_of, view_compared
from stagescope.model import Timeline
from stagescope.reports.comparison_sentences import comparison_sentences
from stagescope.viewer.run_data import viewer_spans_alone
from synthetic import Shape, pipeline_timeline


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def run() -> Timeline:
    return pipeline_timeline(Shape(ranks=2, microbatches=4, steps=6))


def written(run, path):
    run.spans.write_parquet(path)
    return path


def steps_of(view):
    return [step["step"] for step in view.meta["steps"]]


def test_other_steps_of_a_cached_run_are_not_those_of_the_cache(run, tmp_path):
    path = written(run, tmp_path / "run.parquet")
    assert steps_of(view_run(path)) == [0, 1, 2, 3, 4, 5]
    assert steps_of(view_run(path, steps="0:2")) == [0, 1]
    assert steps_of(view_run(path, steps="2:4")) == [2, 3]


def test_a_run_that_other_code_kept_is_read_again(run, tmp_path, monkeypatch):
    path = written(run, tmp_path / "run.parquet")
    version = view_run(path).version
    assert view_run(path).version == version
    package = tmp_path / "stagescope"
    shutil.copytree(Path(code_checksums.__file__).parents[1], package)
    monkeypatch.setattr(code_checksums, "__file__", str(package / "api" / "code_checksums.py"))
    code_checksums.checksum_of_code.cache_clear()
    assert view_run(path).version == version
    for part in ("viewer/run_data.py", "reports/live_status.py", "analysis/report.py", "ingest/merge.py"):
        with (package / part).open("a", encoding="utf-8") as file:
            file.write("# changed\n")
        code_checksums.checksum_of_code.cache_clear()
        changed = view_run(path).version
        assert changed != version
        version = changed
    code_checksums.checksum_of_code.cache_clear()


def test_a_changed_mapping_is_read_again(tmp_path):
    trace, mapping = tmp_path / "trace.json", tmp_path / "mapping.toml"
    names = [("fwd 0", 0), ("fwd 1", 10), ("bwd 0", 20), ("bwd 1", 30)]
    events = [{"ph": "X", "pid": 0, "tid": 0, "name": name, "ts": at, "dur": 5} for name, at in names]
    trace.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    found = []
    for rule in ("name = '{kind} {microbatch}'", "name = 'fwd {microbatch}'\nkind = 'forward'"):
        mapping.write_text(f"[[rules]]\n{rule}\n", encoding="utf-8")
        files = RunFiles([trace], {"mapping": mapping})
        found.append((view_run(trace, mapping=mapping).meta["span_count"], state_of(files)))
    assert [count for count, _ in found] == [4, 2]
    assert found[0][1] != found[1][1]


def test_the_cached_page_of_a_stored_run_states_that_its_sources_have_changed(run, tmp_path):
    path = written(run, tmp_path / "run.parquet")
    store(path, out=tmp_path / "stored")
    before = view_run(tmp_path / "stored")
    assert view_run(tmp_path / "stored").version == before.version
    with path.open("ab") as file:
        file.write(b"changed")
    after = view_run(tmp_path / "stored")
    assert after.version != before.version
    codes = [[note["code"] for note in view.meta["diagnostics"]] for view in (before, after)]
    assert ["store.source_changed" in each for each in codes] == [False, True]
    assert view_run(tmp_path / "stored").version == after.version


def test_a_comparison_has_the_sentences_of_compare_and_the_other_runs_spans(run, tmp_path):
    longer = run.with_spans(run.spans.with_columns(end_ns=pl.col("end_ns") + 100_000))
    before, after = written(run, tmp_path / "before.parquet"), written(longer, tmp_path / "after.parquet")
    view = view_compared(RunFiles([after], {}), RunFiles([before], {}))
    words = json.loads(view.sections["comparison"].data)
    timelines = [RunFiles([path], {}).timeline for path in (before, after)]
    assert words["sentences"] == comparison_sentences(compare(*timelines))
    assert view.meta["sections"] == list(view.sections)
    assert (view.meta["version"], view.other.meta["version"]) == (view.version, view.version)
    meta = viewer_spans_alone(timelines[0]).meta
    assert {name: view.other.meta[name] for name in ("title", "base_ns", "steps", "ranks")} == {
        name: meta[name] for name in ("title", "base_ns", "steps", "ranks")
    }


def test_a_comparison_has_another_version_if_one_of_its_runs_changes(run, tmp_path):
    before, after = written(run, tmp_path / "before.parquet"), written(run, tmp_path / "after.parquet")

    def look():
        runs = RunFiles([after], {}), RunFiles([before], {})
        return view_compared(*runs).version, state_of(*runs)

    first = look()
    assert look() == first
    written(run.with_spans(run.spans.filter(pl.col("step") < 5)), before)
    second = look()
    assert second[0] != first[0]
    assert second[1] != first[1]
    assert view_run(after).version not in (first[0], second[0])


def test_a_damaged_comparison_in_the_cache_is_made_again(run, tmp_path):
    path = written(run, tmp_path / "run.parquet")

    def look():
        return view_compared(RunFiles([path], {}), RunFiles([path], {}))

    view = look()
    place = tmp_path / "cache" / "stagescope" / "levels" / view.version / "comparison.json"
    place.write_bytes(b"{")
    assert look().sections["comparison"] == view.sections["comparison"]


def test_chinese_sentences_of_both_are_kept(run, tmp_path):
    path = written(run, tmp_path / "run.parquet")
    plain = json.loads(view_run(path).sections["translations"].data)["zh"]
    view = view_compared(RunFiles([path], {}), RunFiles([path], {}))
    known = json.loads(view.sections["translations"].data)["zh"]
    assert plain.items() <= known.items()
    sentences = json.loads(view.sections["comparison"].data)["sentences"]
    assert any(sentence in known for sentence in sentences)


def test_spans_of_the_other_run_are_those_of_a_page(run, tmp_path):
    path = written(run, tmp_path / "run.parquet")
    view = view_compared(RunFiles([path], {}), RunFiles([path], {}))
    page, _ = read_blob(viewer_spans_alone(RunFiles([path], {}).timeline).tables["spans"])
    assert view.other.levels.shape.span_count == len(page["row"])
