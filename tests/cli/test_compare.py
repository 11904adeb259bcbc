"""stagescope compare."""

import json

import pytest

from planted_runs import Shape, random_times, run
from stagescope.cli import main


@pytest.fixture
def runs(tmp_path):
    after = random_times(Shape(pipelines=1), 2)
    after.job_ns[1, :, :, 2] *= 1.1
    for name, times in (("before", random_times(Shape(pipelines=1), 1)), ("after", after)):
        run(times).spans.write_parquet(tmp_path / f"{name}.parquet")
    return str(tmp_path / "before.parquet"), str(tmp_path / "after.parquet")


def test_it_says_what_got_slower_and_where(runs, capsys):
    assert main(["compare", *runs]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("The step got 3.")
    assert lines[1].startswith("Most of it: backward of stage 2")
    assert any(line.startswith("info: first run: ") for line in lines)


def test_a_dash_writes_json_and_nothing_else_to_standard_output(runs, capsys):
    assert main(["compare", *runs, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["differences"][0]["is_claimed"]


def test_json_is_written_beside_markdown(runs, tmp_path, capsys):
    out = tmp_path / "out.json"
    assert main(["compare", *runs, "--json", str(out), "--markdown"]) == 0
    printed = capsys.readouterr().out
    assert "| backward of stage 2 |" in printed
    assert printed.endswith(f"\nwrote {out}\n")
    assert json.loads(out.read_text())["schema"] == 1
    assert main(["compare", *runs, "--json", str(out)]) == 1


def test_a_run_that_is_not_there_is_an_error(runs, capsys):
    assert main(["compare", runs[0], "nowhere"]) == 1
    assert capsys.readouterr().err == "stagescope: no such file or directory: nowhere\n"
