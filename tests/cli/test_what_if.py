"""stagescope what-if."""

import json

import pytest

from delayed_runs import run
from random_pipelines import one_f_one_b
from stagescope.cli import main

MS = 1_000_000


@pytest.fixture
def spans(tmp_path):
    """Four stages, the third 30 % slower, with transfers and launch overhead."""
    timeline = run(
        one_f_one_b(4, 8),
        lambda action, rank: (10 if action.kind == "F" else 20) * MS * (1.3 if rank == 2 else 1),
        hop_ns=MS // 2,
        launch_delay_ns=MS // 10,
        steps=2,
    )
    path = tmp_path / "spans.parquet"
    timeline.spans.write_parquet(path)
    return str(path)


def printed(capsys):
    return capsys.readouterr().out.splitlines()


def test_without_options_predicts_equal_stages_and_free_transfers(spans, capsys):
    assert main(["what-if", spans]) == 0
    assert printed(capsys) == [
        "Measured step: 399.1 ms, the mean window of the slowest pipeline. Gains are fractions of it.",
        "",
        "if                          step      gain  of measured  by",
        "all stages equal        364.9 ms  34.25 ms        8.6 %  replay",
        "transfers take no time  395.1 ms  4.000 ms        1.0 %  replay",
    ]


def test_predicts_every_option_separately(spans, capsys):
    asked = ["--faster", "stage=2:23%", "--slower", "rank=1,kind=backward:5%", "--to-schedule", "ZBH1"]
    assert main(["what-if", spans, *asked]) == 0
    lines = printed(capsys)
    assert [line.split("  ")[0] for line in lines[3:6]] == [
        "stage 2 23 % faster",
        "rank 1 kind backward 5 % slower",
        "schedule zb-h1",
    ]
    assert lines[4].split()[-5:] == ["-1.000", "ms", "-0.3", "%", "replay"]
    assert lines[7].startswith(
        "  schedule zb-h1: if half of a full backward is its weight gradient; simulated "
    )


def test_together_adds_one_prediction_per_schedule(spans, capsys):
    asked = [
        "--balanced",
        "--no-communication",
        "--to-schedule",
        "zb-h1",
        "--to-schedule",
        "gpipe",
        "--together",
    ]
    assert main(["what-if", spans, *asked, "--json", "-"]) == 0
    names = [row["change"] for row in json.loads(capsys.readouterr().out)["predictions"]]
    assert names[4:] == [
        f"all stages equal; transfers take no time; schedule {name}" for name in ("zb-h1", "gpipe")
    ]
    assert main(["what-if", spans, *asked]) == 0
    lines = printed(capsys)
    assert lines[7].startswith("together (5) ")
    assert any(line.startswith("  together (5): all stages equal; transfers take no time;") for line in lines)
    assert max(map(len, lines)) <= 100


def test_together_adds_nothing_to_a_single_change(spans, capsys):
    assert main(["what-if", spans, "--balanced", "--together", "--json", "-"]) == 0
    assert len(json.loads(capsys.readouterr().out)["predictions"]) == 1


def test_json_has_nanoseconds_and_fractions(spans, tmp_path, capsys):
    out = tmp_path / "what-if.json"
    assert main(["what-if", spans, "--faster", "10%", "--json", str(out)]) == 0
    assert capsys.readouterr().out.endswith(f"\nwrote {out}\n")
    (row,) = json.loads(out.read_text())["predictions"]
    assert row["change"] == "everything 10 % faster"
    assert row["gain_ns"] == row["measured_step_ns"] - row["predicted_step_ns"]
    assert row["gain_fraction"] == row["gain_ns"] / row["measured_step_ns"]
    assert main(["what-if", spans, "--json", str(out)]) == 1
    assert main(["what-if", spans, "--json", str(out), "--force"]) == 0


@pytest.mark.parametrize(
    "text", ["120%", "10", "stage=3", "stage=x:10%", "stage=1,stage=2:5%", "kind=optimizer:5%", "-5%", ""]
)
def test_rejects_a_malformed_change_with_examples(spans, text, capsys):
    assert main(["what-if", spans, "--faster", text]) == 2
    error = capsys.readouterr().err
    assert f"--faster {text!r}: expected a percentage, optionally preceded by what it applies to" in error
    assert "--faster rank=2,kind=backward:5%" in error


def test_rejects_an_unknown_schedule_and_lists_the_known_ones(spans, capsys):
    assert main(["what-if", spans, "--to-schedule", "nonsense"]) == 1
    error = capsys.readouterr().err
    assert "unknown schedule 'nonsense'" in error
    assert "zb-h1" in error


def test_an_impossible_prediction_is_a_question_mark_with_the_reason(spans, capsys):
    assert main(["what-if", spans, "--faster", "stage=9:10%"]) == 1
    lines = printed(capsys)
    assert lines[3].split() == [*["stage", "9", "10", "%", "faster"], "?", "?", "?", "replay"]
    assert lines[5] == "  stage 9 10 % faster: no counted action has that stage, rank or kind"


def test_reports_that_there_is_nothing_to_predict(tmp_path, capsys):
    path = tmp_path / "spans.csv"
    path.write_text("rank,lane,kind,start_ns,end_ns\n0,compute,optimizer,0,5\n")
    assert main(["what-if", str(path)]) == 0
    assert "Nothing to predict" in capsys.readouterr().out


def test_the_help_has_examples(capsys):
    assert main(["what-if", "--help"]) == 0
    assert "stagescope what-if recordings --to-schedule zb-h1" in capsys.readouterr().out
