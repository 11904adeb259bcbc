"""stagescope compare."""

import base64
import json
import re
import shutil

import polars as pl
import pytest

from column_blobs import read_blob
from places import DATA
from planted_runs import Shape, random_times, run
from stagescope.cli import main


@pytest.fixture
def runs(tmp_path):
    after = random_times(Shape(pipelines=1), 2)
    after.action_ns[1, :, :, 2] *= 1.1
    for name, times in (("before", random_times(Shape(pipelines=1), 1)), ("after", after)):
        run(times).spans.write_parquet(tmp_path / f"{name}.parquet")
    return str(tmp_path / "before.parquet"), str(tmp_path / "after.parquet")


def test_prints_what_got_slower_and_where(runs, capsys):
    assert main(["compare", *runs]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("The iteration got 3.")
    assert "backward of stage 2 changed most" in lines[2]
    assert any(line.startswith("info: first run: ") for line in lines)


def test_a_dash_prints_only_json(runs, capsys):
    assert main(["compare", *runs, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["differences"][0]["is_claimed"]


def test_writes_json_in_addition_to_markdown(runs, tmp_path, capsys):
    out = tmp_path / "out.json"
    assert main(["compare", *runs, "--json", str(out), "--markdown"]) == 0
    printed = capsys.readouterr().out
    assert "| backward of stage 2 |" in printed
    assert printed.endswith(f"\nwrote {out}\n")
    assert json.loads(out.read_text())["schema"] == 2
    assert main(["compare", *runs, "--json", str(out)]) == 1


def blocks_of(page):
    """Return the text of a page's data blocks by id."""
    return dict(re.findall(r'<script type="[^"]*" id="stagescope-([^"]*)"[^>]*>([^<]*)</script>', page))


def test_writes_both_runs_as_one_page(runs, tmp_path, capsys):
    out = tmp_path / "comparison.html"
    assert main(["compare", *runs, "--html", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.endswith(f"\nwrote {out}\n")
    blocks = blocks_of(out.read_text(encoding="utf-8"))
    for block, path in (("spans", runs[1]), ("other-spans", runs[0])):
        columns, _ = read_blob(base64.b64decode(blocks[block]))
        spans = pl.read_parquet(path)
        assert sorted(columns["duration"]) == sorted(spans["end_ns"] - spans["start_ns"]), block
    compared = json.loads(blocks["comparison"])
    assert compared["sentences"] == printed.splitlines()[:3]
    assert compared["diagnostics"]
    for one in compared["diagnostics"]:
        assert any(line.startswith(f"{one['severity']}: {one['message']}") for line in printed.splitlines())
    assert "comparison" in json.loads(blocks["meta"])["sections"]
    assert json.loads(blocks["other-meta"])["sections"] == []
    assert {name for name in blocks if name.startswith("other-")} == {"other-meta", "other-spans"}


def test_replaces_an_existing_page_only_with_force(runs, tmp_path, capsys):
    out = tmp_path / "comparison.html"
    out.write_text("mine", encoding="utf-8")
    assert main(["compare", *runs, "--html", str(out)]) == 1
    failed = capsys.readouterr()
    assert (failed.out, str(out) in failed.err, out.read_text(encoding="utf-8")) == ("", True, "mine")
    assert main(["compare", *runs, "--html", str(out), "--force", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == 2
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_page_states_that_the_runs_have_nothing_in_common(runs, tmp_path, capsys):
    (tmp_path / "none.csv").write_text(
        "rank,lane,kind,start_ns,end_ns\n0,compute,other,0,5\n", encoding="utf-8"
    )
    out = tmp_path / "comparison.html"
    assert main(["compare", str(tmp_path / "none.csv"), runs[1], "--html", str(out)]) == 0
    words = "The runs have nothing in common that could be compared."
    assert capsys.readouterr().out.splitlines()[0] == words
    compared = json.loads(blocks_of(out.read_text(encoding="utf-8"))["comparison"])
    because = (
        "The bubble of the first run is unknown: no step with a forward or backward action was recorded."
    )
    assert compared["sentences"] == [words, because]


def test_a_missing_run_is_an_error(runs, capsys):
    assert main(["compare", runs[0], "nowhere"]) == 1
    assert capsys.readouterr().err == "stagescope: no such file or directory: nowhere\n"


@pytest.mark.parametrize(("order", "name"), [((0, 1), "second"), ((1, 0), "first")])
def test_missing_data_are_reported_with_the_run_that_lacks_them(tmp_path, capsys, order, name):
    whole = DATA / "recordings" / "v1"
    partial = tmp_path / "partial"
    partial.mkdir()
    for path in whole.glob("*.sscope"):
        if not path.name.startswith("rank00002"):
            shutil.copy(path, partial)
    assert main(["compare", *(str((whole, partial)[each]) for each in order)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(f"stagescope: {name} run: partial data: no recording of rank 2")
    errors = [line for line in lines if line.startswith("error: ")]
    assert errors
    assert all(line.startswith(f"error: {name} run: ") for line in errors)
