"""stagescope report."""

import json
import os
import subprocess
import sys

import pytest

from drawing import timeline_from_text
from stagescope.analyze import build_report, to_json
from stagescope.cli import main
from stagescope.cli.report import bubble_sentence
from stagescope.timeline import empty_timeline
from stagescope.timeline.bubbles import DENOMINATOR
from stagescope.workflow import read


@pytest.fixture
def spans(tmp_path):
    path = tmp_path / "spans.csv"
    timeline_from_text("F0 F1 . B0 - B1 -\n. F0 B0 - F1 B1 -").spans.write_csv(path)
    return path


def test_figures_and_a_sentence_with_its_denominator_are_printed(spans, capsys):
    assert main(["report", str(spans)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "The bubble is 14.3 % of the pipeline window over step 0: "
        "on average a rank was idle for 1.000 µs per step, all ranks alike."
    )
    assert lines[1] == f"Fractions divide by the {DENOMINATOR}."
    assert [line.split()[0] for line in lines[3:] if line] == ["step", "0", "rank", "0", "1", "all"]


def test_the_rank_with_most_of_the_bubble_is_named():
    report = build_report(timeline_from_text("F0 F1 B0 B1\nF0 . . B0"))
    assert bubble_sentence(report).endswith(
        "idle for 1.000 µs per step, rank 1 most of all: 50.0 % of its window."
    )


def test_several_steps_are_named_as_ranges():
    timeline = timeline_from_text("F0 B0", step=3)
    other = timeline_from_text("F0 B0", step=4, origin_ns=9_000)
    report = build_report(timeline.with_spans(timeline.spans.vstack(other.spans)))
    assert "over 2 steps (3-4)" in bubble_sentence(report)


def test_without_steps_there_is_no_bubble_to_speak_of():
    assert bubble_sentence(build_report(empty_timeline())).startswith(
        "No step with a forward or backward job"
    )


def test_json_is_written_beside_the_printed_figures(spans, tmp_path, capsys):
    out = tmp_path / "report.json"
    assert main(["report", str(spans), "--json", str(out)]) == 0
    assert json.loads(out.read_text()) == json.loads(json.dumps(to_json(build_report(read(spans)))))
    assert capsys.readouterr().out.endswith(f"\nwrote {out}\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "spans.csv"]


def test_a_dash_writes_json_and_nothing_else_to_standard_output(spans, capsys):
    assert main(["report", str(spans), "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["bubble"]["fraction"] == 1 / 7
    assert err == ""


def test_an_existing_file_is_replaced_with_force_only(spans, tmp_path, capsys):
    out = tmp_path / "report.json"
    out.write_text("mine")
    assert main(["report", str(spans), "--json", str(out)]) == 1
    assert out.read_text() == "mine"
    assert capsys.readouterr().err.startswith(f"stagescope: {out} already exists\n")
    assert main(["report", str(spans), "--json", str(out), "--force"]) == 0
    assert json.loads(out.read_text())["schema"] == 1


def test_a_place_that_cannot_be_written_is_an_error(spans, tmp_path, capsys):
    out = tmp_path / "missing" / "report.json"
    assert main(["report", str(spans), "--json", str(out)]) == 1
    assert capsys.readouterr().err == f"stagescope: cannot write {out}: No such file or directory\n"


def test_partial_data_are_in_the_json_and_make_the_exit_code_1(spans, capsys):
    spans.write_text(spans.read_text() + "0,compute,forward,0,0,0,9,,,,5000,4000,,,\n")
    assert main(["report", str(spans), "--json", "-"]) == 1
    out, err = capsys.readouterr()
    assert [row["severity"] for row in json.loads(out)["diagnostics"]] == ["error"]
    assert err.startswith("stagescope: partial data: ")


def test_output_that_cannot_carry_the_micro_sign_gets_a_u(spans):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    call = [sys.executable, "-m", "stagescope", "report", spans]
    done = subprocess.run(call, capture_output=True, env=environment, check=True)
    assert b"idle for 1.000 us per step" in done.stdout
