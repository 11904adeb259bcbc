"""The report that is saved beside a stored run: used while it is that of the run, and computed again otherwise."""

from __future__ import annotations

import json
import os
import shutil
import sys

import msgspec
import pytest
from filelock import FileLock
from polars.testing import assert_frame_equal

from places import DATA
from stagescope.analysis.saved.facts import ReportFacts
from stagescope.api import analyze, load_report, read, report_json, save_report, saved_reports, store
from stagescope.api.joined_tables import JOINED
from stagescope.api.range_files import FOLDER
from stagescope.cli import main
from stagescope.ingest import memory_need
from stagescope.ingest.stored_run import reader
from stagescope.model.stored_run import MANIFEST, manifest_text
from stagescope.vocabulary.errors import InputError, OutputError

RECORDINGS = DATA / "recordings" / "v1"


@pytest.fixture(scope="module")
def analyzed(tmp_path_factory):
    place = tmp_path_factory.mktemp("analyzed") / "run.stagescope"
    store(RECORDINGS, out=place)
    assert save_report(place).is_new
    return place


@pytest.fixture
def run(analyzed, tmp_path):
    """Return a stored run with a report, which a test may change."""
    return shutil.copytree(analyzed, tmp_path / "run.stagescope", symlinks=True)


@pytest.fixture
def no_spans(monkeypatch):
    def refuse(*_):
        raise AssertionError("the spans were read")

    monkeypatch.setattr(reader, "read_stored_run", refuse)


@pytest.mark.usefixtures("no_spans")
@pytest.mark.parametrize(
    "words", [[], ["--full"], ["--markdown"], ["--bubble", "iteration"], ["--json", "-"]]
)
def test_it_is_printed_without_reading_spans(words, analyzed, capsys):
    assert main(["report", str(analyzed), *words]) == 0
    found = capsys.readouterr()
    assert main(["report", str(RECORDINGS), *words]) == 0
    assert found == capsys.readouterr()


@pytest.mark.usefixtures("no_spans")
def test_conditions_are_judged_without_reading_spans(analyzed, capsys):
    assert main(["report", str(analyzed), "--fail-if", "bubble>0.01"]) == 3
    assert "bubble" in capsys.readouterr().err


def test_everything_else_is_computed_from_the_spans(run, tmp_path):
    found, computed = load_report(run), analyze(read(run))
    assert_frame_equal(found.timeline.spans, computed.timeline.spans)
    assert_frame_equal(found.slack, computed.slack)
    assert main(["report", str(run), "--html", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").stat().st_size > 100_000


@pytest.mark.parametrize(
    "words", [["--skip-steps", "1"], ["--layers", "32"], ["--steps", "1:2"]], ids=lambda words: words[0]
)
def test_other_requests_are_analyzed(words, run, capsys):
    assert main(["report", str(run), *words, "--json", "-"]) == main(
        ["report", str(RECORDINGS), *words, "--json", "-"]
    )
    first, second = capsys.readouterr().out.split("\n}\n")[:2]
    # Alignment with some steps is that of the whole stored run, so only what does not depend on it is compared.
    for key in ("schedule", "microbatches"):
        assert json.loads(first + "}")[key] == json.loads(second + "}")[key]


def test_what_is_saved_has_the_same_bytes_in_every_process():
    """Sets would be written in the order of hashes, which differs between processes."""
    assert "SetType" not in repr(msgspec.inspect.type_info(ReportFacts))


def test_it_is_saved_once(run):
    assert not save_report(run).is_new
    (run / "analysis" / "losses.parquet").write_bytes(b"")
    assert save_report(run).is_new
    assert not save_report(run).is_new


def test_tables_of_a_killed_analysis_are_not_used(run):
    """They may be those of a run that was in the same directory before."""
    expected = load_report(run).culprits
    left = run / FOLDER / JOINED
    left.mkdir(parents=True)
    shutil.copy(run / "analysis" / "steps.parquet", left / "culprits.parquet")
    shutil.rmtree(run / "analysis")
    assert save_report(run).is_new
    assert_frame_equal(load_report(run).culprits, expected)


@pytest.mark.parametrize("name", ["culprits", "explanation.stage_work", "steps"])
@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"PAR1"), lambda path: path.unlink()])
def test_a_damaged_table_is_an_error(name, damage, run, capsys):
    damage(run / "analysis" / f"{name}.parquet")
    assert main(["report", str(run), "--full", "--json", str(run.parent / "report.json")]) == 1
    assert "it is missing or has changed since it was written" in capsys.readouterr().err
    assert main(["store", str(RECORDINGS), "-o", str(run)]) == 0
    assert main(["report", str(run)]) == 0


INDEXES = {
    "no JSON": lambda _: "{",
    "deep": lambda _: "[" * 100_000,
    "a list": lambda _: "[]",
    "other bytes": lambda text: text.replace("stagescope 0", "stagescope 9"),
    "a path outside": lambda text: signed(text, "losses.parquet", "../losses.parquet"),
    "no report": lambda text: signed(text, '\\"verdict\\"', '\\"other\\"'),
    "another version": lambda text: signed(text, "stagescope 0", "stagescope 9"),
}


def signed(text, before, after):
    assert before in text
    facts = json.loads(text.replace(before, after))
    return manifest_text({name: value for name, value in facts.items() if name != "checksum"})


@pytest.mark.parametrize("name", INDEXES)
def test_a_damaged_index_is_not_used(name, run, capsys):
    index = run / "analysis" / "report.json"
    index.write_text(INDEXES[name](index.read_text(encoding="utf-8")), encoding="utf-8")
    assert load_report(run) is None
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().err == ""
    assert load_report(run) is not None
    assert not save_report(run).is_new


def test_a_table_with_other_columns_is_an_error(run):
    index = run / "analysis" / "report.json"
    facts = json.loads(index.read_text(encoding="utf-8"))
    facts["tables"]["losses"] = facts["tables"]["ledger"]
    del facts["checksum"]
    index.write_text(manifest_text(facts), encoding="utf-8")
    with pytest.raises(InputError, match="its columns or rows are not those of the results"):
        load_report(run).losses.height  # noqa: B018
    del facts["tables"]["losses"]
    index.write_text(manifest_text(facts), encoding="utf-8")
    with pytest.raises(InputError, match="not among the results of analysis"):
        load_report(run).losses.height  # noqa: B018


def test_it_is_not_used_for_another_run(run, tmp_path):
    other = tmp_path / "other"
    store(DATA / "public_runs" / "bytedance-ST.parquet", out=other)
    shutil.copytree(run / "analysis", other / "analysis")
    assert load_report(other) is None
    assert load_report(run, pp=2) is None
    assert load_report(RECORDINGS) is None


def test_damage_of_the_run_is_reported(run, capsys):
    part = next((run / "spans").rglob("part.parquet"))
    part.write_bytes(part.read_bytes()[:-1])
    assert load_report(run) is None
    assert main(["report", str(run)]) == 1
    assert "can be read" in capsys.readouterr().err


def test_damage_that_keeps_the_size_is_found_when_spans_are_read(run):
    part = next((run / "spans").rglob("part.parquet"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    report = load_report(run)
    assert report.ranks.height == 4
    with pytest.raises(InputError, match="can be read"):
        report.timeline.spans.height  # noqa: B018


def test_a_changed_source_is_reported(tmp_path, capsys):
    sources = shutil.copytree(RECORDINGS, tmp_path / "recordings")
    run = tmp_path / "run"
    assert main(["store", str(sources), "-o", str(run)]) == 0
    assert load_report(run) is not None
    os.utime(next(sources.iterdir()), ns=(1, 1))
    assert load_report(run) is None
    assert main(["report", str(run)]) == 0
    assert "changed after the run was stored" in "".join(capsys.readouterr())


def test_the_first_report_of_a_large_run_saves_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(saved_reports, "STORING_BYTES", 1000)
    run = tmp_path / "run"
    assert main(["store", str(RECORDINGS), "-o", str(run), "--no-analysis"]) == 0
    assert "analyzed" not in capsys.readouterr().out
    assert load_report(run) is None
    assert main(["report", str(run)]) == 0
    first = capsys.readouterr()
    assert load_report(run) is not None
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr() == first
    assert main(["store", str(RECORDINGS), "-o", str(tmp_path / "other")]) == 0
    assert "analyzed all steps" in capsys.readouterr().out


def test_a_report_is_printed_even_if_it_cannot_be_saved(run, capsys):
    shutil.rmtree(run / "analysis")
    with FileLock(run / "lock"):
        assert main(["report", str(run)]) == 0
    assert "stages x 8 micro-batches" in capsys.readouterr().out
    assert load_report(run) is None


def test_a_report_needs_nothing_of_the_extra_for_storing(run, capsys, monkeypatch):
    shutil.rmtree(run / "analysis")
    monkeypatch.setitem(sys.modules, "filelock", None)
    assert main(["report", str(run)]) == 0
    assert "stages x 8 micro-batches" in capsys.readouterr().out
    assert load_report(run) is None


def test_the_first_report_obeys_the_limits_of_the_caller(run, monkeypatch):
    shutil.rmtree(run / "analysis")
    monkeypatch.setattr(saved_reports, "memory_bytes", lambda: 1000)
    assert main(["report", str(run)]) == 1
    assert main(["report", str(run), "--limit", "spans=1000"]) == 0


@pytest.mark.parametrize("limit", ["ranks=2", "spans=10", "stages=1", "names=1"])
def test_a_saved_report_obeys_the_limits_of_the_caller(run, capsys, limit):
    name = {"names": "different names of spans"}.get(limit.split("=")[0], limit.split("=")[0])
    assert load_report(run) is not None
    assert main(["report", str(run), "--limit", limit]) == 1
    assert f"the number of {name} is " in capsys.readouterr().err


def test_a_raised_limit_needs_no_spans(run):
    assert load_report(run, limits={"ranks": 200_000, "stages": 20_000, "names": 0}) is not None


def test_storing_analyzes_unless_it_is_asked_not_to(tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["store", str(RECORDINGS), "-o", str(run), "--no-analysis"]) == 0
    assert load_report(run) is None
    assert "analyzed" not in capsys.readouterr().out
    assert main(["store", str(RECORDINGS), "-o", str(run)]) == 0
    assert f"analyzed all steps: `stagescope report {run}` prints the report" in capsys.readouterr().out
    assert load_report(run) is not None
    assert main(["store", str(RECORDINGS), "-o", str(tmp_path / "raw"), "--no-align"]) == 0
    assert load_report(tmp_path / "raw") is None


def test_a_run_that_does_not_fit_into_memory_is_stored_all_the_same(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(saved_reports, "memory_bytes", lambda: 1000)
    assert main(["store", str(RECORDINGS), "-o", str(tmp_path / "run")]) == 0
    found = capsys.readouterr()
    assert "was not analyzed: its 378 spans need about" in found.err
    assert "stagescope report --steps" in found.err
    assert "stored 378 spans" in found.out


def test_of_a_larger_run_the_steps_in_the_middle_are_analyzed(tmp_path, capsys, monkeypatch):
    source, run = DATA / "public_runs" / "bytedance-ST.parquet", tmp_path / "run"
    spans = store(source, out=run).manifest.span_count
    need_bytes = spans * saved_reports.SPAN_BYTES / saved_reports.MEMORY_SHARE
    monkeypatch.setattr(saved_reports, "memory_bytes", lambda: need_bytes / 3.9)
    every = read(source).steps["step"].unique().sort()
    steps = f"{every[12]}:{every[19] + 1}"
    assert main(["store", str(source), "-o", str(run)]) == 0
    assert f"analyzed steps {steps}, as many as fit into memory" in capsys.readouterr().out
    assert main(["report", str(run), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["report", str(run), "--steps", steps, "--json", "-"]) == 0
    asked = json.loads(capsys.readouterr().out)
    (note,) = [each for each in found.pop("diagnostics") if each["code"] == "steps.too_many"]
    assert note["message"].startswith(f"only 8 of 32 steps were analyzed ({steps})")
    del asked["diagnostics"]
    assert found == asked
    assert_frame_equal(load_report(run).slack, analyze(read(run, steps=steps)).slack)
    monkeypatch.setattr(saved_reports, "memory_bytes", lambda: need_bytes)
    assert save_report(run) == (True, None)
    monkeypatch.setattr(saved_reports, "memory_bytes", lambda: need_bytes / 3.9)
    assert save_report(run) == (False, None)


def test_reading_more_than_fits_into_memory_is_refused(run, monkeypatch):
    monkeypatch.setattr(memory_need, "memory_bytes", lambda: 1000)
    with pytest.raises(InputError, match="which need at least"):
        read(run)
    assert read(run, steps="1:2").spans.height
    assert load_report(run).ranks.height


def test_one_process_at_a_time_writes_it(run):
    (run / "analysis" / "report.json").unlink()
    with FileLock(run / "lock"), pytest.raises(OutputError, match="another process"):
        save_report(run)


def test_the_report_is_that_of_analyze(analyzed):
    assert json.dumps(report_json(load_report(analyzed))) == json.dumps(report_json(analyze(read(analyzed))))
    assert (analyzed / MANIFEST).is_file()
