"""stagescope report."""

import json
import os
import subprocess
import sys

import pytest

from drawing import timeline_from_text
from stagescope.analysis import build_explained_report, to_json
from stagescope.api import read
from stagescope.cli import main
from stagescope.cli.fail_if import EXIT_CONDITION
from stagescope.model.bubbles import DENOMINATOR


@pytest.fixture
def spans(tmp_path):
    path = tmp_path / "spans.csv"
    timeline_from_text("F0 F1 . B0 - B1 -\n. F0 B0 - F1 B1 -").spans.write_csv(path)
    return path


def test_prints_the_verdict_first_and_states_the_denominator(spans, capsys):
    assert main(["report", str(spans)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("1f1b, 2 stages x 2 micro-batches, 14.3 % idle: ")
    assert f"Fractions divide by the {DENOMINATOR}." in text
    assert "rank stages busy" not in text


def test_full_prints_the_times_of_steps_and_ranks(spans, capsys):
    assert main(["report", str(spans), "--full"]) == 0
    assert "rank stages busy idle bubble" in " ".join(capsys.readouterr().out.split())


def test_prints_only_markdown(spans, capsys):
    assert main(["report", str(spans), "--markdown"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("**1f1b, 2 stages x 2 micro-batches")
    assert err == ""


def test_rejects_markdown_and_json_on_standard_output_together(spans, capsys):
    assert main(["report", str(spans), "--markdown", "--json", "-"]) == 2
    assert "expected one of --markdown, --json -" in capsys.readouterr().err


def test_writes_a_page(spans, tmp_path, capsys):
    out = tmp_path / "report.html"
    assert main(["report", str(spans), "--html", str(out)]) == 0
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert capsys.readouterr().out.endswith(f"\nwrote {out}\n")


def test_a_condition_that_holds_exits_with_3(spans, capsys):
    assert (
        main(["report", str(spans), "--fail-if", "bubble>0.1", "--fail-if", "bubble>0.9"]) == EXIT_CONDITION
    )
    assert capsys.readouterr().err.splitlines() == [
        "stagescope: bubble>0.1 holds: bubble is 0.1429 of the pipeline window",
        "stagescope: bubble>0.9 does not hold: bubble is 0.1429 of the pipeline window",
    ]
    assert main(["report", str(spans), "--fail-if", "bubble>0.9"]) == 0


def test_rejects_a_malformed_condition_before_reading(tmp_path, capsys):
    assert main(["report", str(tmp_path / "missing"), "--fail-if", "bubbles>1"]) == 2
    assert "bubbles>1" in capsys.readouterr().err


def test_writes_json_in_addition_to_the_text(spans, tmp_path, capsys):
    out = tmp_path / "report.json"
    assert main(["report", str(spans), "--json", str(out)]) == 0
    whole = json.loads(out.read_text())
    assert whole.pop("clocks")["machines"] == []
    expected = json.loads(json.dumps(to_json(build_explained_report(read(spans)))))
    assert whole | {"clocks": None} == expected
    assert capsys.readouterr().out.endswith(f"\nwrote {out}\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "spans.csv"]


def test_a_dash_prints_only_json(spans, capsys):
    assert main(["report", str(spans), "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["bubble"]["fraction"] == 1 / 7
    assert err == ""


def test_replaces_an_existing_file_only_with_force(spans, tmp_path, capsys):
    out = tmp_path / "report.json"
    out.write_text("mine")
    assert main(["report", str(spans), "--json", str(out)]) == 1
    assert out.read_text() == "mine"
    assert capsys.readouterr().err.startswith(f"stagescope: {out} already exists\n")
    assert main(["report", str(spans), "--json", str(out), "--force"]) == 0
    assert json.loads(out.read_text())["schema"] == 2


def test_reports_a_file_that_cannot_be_written(spans, tmp_path, capsys):
    out = tmp_path / "missing" / "report.json"
    assert main(["report", str(spans), "--json", str(out)]) == 1
    assert capsys.readouterr().err == f"stagescope: cannot write {out}: No such file or directory\n"


def test_partial_data_are_in_the_json_and_exit_with_1(spans, capsys):
    spans.write_text(spans.read_text() + "0,compute,forward,0,0,0,9,,,,5000,4000,,,\n")
    assert main(["report", str(spans), "--json", "-"]) == 1
    out, err = capsys.readouterr()
    severities = [row["severity"] for row in json.loads(out)["diagnostics"]]
    assert severities[0] == "error"
    assert severities.count("error") == 1
    assert err.startswith("stagescope: partial data: ")


def test_prints_us_if_the_output_encoding_has_no_micro_sign(spans):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    call = [sys.executable, "-m", "stagescope", "report", spans]
    done = subprocess.run(call, capture_output=True, env=environment, check=True)
    assert b"idle for 1.000 us" in done.stdout


def test_replicas_that_cannot_be_separated_are_an_error(tmp_path, capsys):
    rows = ["rank,lane,kind,step,stage,microbatch,start_ns,end_ns"]
    for rank, stage in ((0, 0), (1, 1), (2, 0)):
        rows += [f"{rank},compute,{kind},0,{stage},{m},{20 * m + 5 * stage},{20 * m + 5 * stage + 4}"
                 for m in range(2) for kind in ("forward", "backward")]  # fmt: skip
    path = tmp_path / "spans.csv"
    path.write_text("\n".join(rows))
    assert main(["report", str(path)]) == 1
    assert "pass --pp, --dp and --tp" in capsys.readouterr().out


def test_bubble_of_another_definition_is_printed_and_judged(spans, capsys):
    arguments = ["report", str(spans), "--bubble", "ideal-ratio", "--fail-if", "bubble>0.15"]
    assert main(arguments) == EXIT_CONDITION
    printed = capsys.readouterr()
    assert "The bubble is 16.7 % of the compute time" in printed.out
    assert printed.err == "stagescope: bubble>0.15 holds: bubble is 0.1667 of the compute time\n"
    assert main(["show", str(spans), "--bubble", "ideal-ratio"]) == 0
    shown = capsys.readouterr().out
    assert "16.7 %" in shown
    assert "bubble: idle time over compute time: time in which" in shown
