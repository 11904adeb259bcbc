"""`stagescope demo` goes the whole way; what it writes can be read by the other commands."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from stagescope import api as workflow
from stagescope.cli import main
from stagescope.cli.demo import theory_sentence
from stagescope.demo.names import SCHEDULES


@pytest.mark.slow
def test_trains_records_reports_and_draws(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "stagescope", "demo", "-o", str(tmp_path / "demo")],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "stagescope demo: training" in done.stderr
    assert "The bubble is" in done.stdout
    assert "The schedule alone would make it 27.3 %: so much 1F1B idles on 4 ranks" in done.stdout
    assert "Open it:" in done.stdout
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == [
        "demo.html",
        "demo.json",
        "demo.pftrace",
        "demo.svg",
        "recording",
        "report.json",
        "training.log",
    ]
    timeline = workflow.read(tmp_path / "demo" / "recording")
    assert timeline.steps["step"].unique().to_list() == [1, 2, 3, 4]
    assert timeline.diagnostics.is_empty()
    report = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert report["bubble"]["fraction"] == workflow.analyze(timeline).bubble.fraction
    ET.parse(tmp_path / "demo" / "demo.svg")
    assert json.loads((tmp_path / "demo" / "demo.json").read_text())["traceEvents"]
    assert "loss" in (tmp_path / "demo" / "training.log").read_text()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_theory_of_every_schedule_is_told(schedule):
    assert theory_sentence(schedule, 8).startswith("The schedule alone would make it ")


def test_what_exists_is_not_overwritten_without_force(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["demo", "-o", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith(f"stagescope: {tmp_path} already exists")


def test_without_torch_one_sentence_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("stagescope.cli.demo.find_spec", lambda name: None)
    assert main(["demo", "-o", str(tmp_path / "demo")]) == 1
    assert capsys.readouterr().err == (
        "stagescope: the demo needs torch, which is not installed\n"
        "  install it with: pip install 'stagescope[demo]'\n"
    )
    assert not (tmp_path / "demo").exists()


def test_a_training_that_fails_is_shown_with_its_own_exit_code(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(
        "stagescope.cli.demo.launch_command", lambda script, options: ["sh", "-c", "echo why; exit 5"]
    )
    assert main(["demo", "-o", str(tmp_path / "demo")]) == 5
    said = capfd.readouterr().err
    assert "why" in said
    assert "stagescope: the training failed with exit code 5" in said


def test_the_seven_schedules_of_torch_are_offered(capsys):
    assert main(["demo", "--help"]) == 0
    said = capsys.readouterr().out
    assert len(SCHEDULES) == 7
    assert all(name in said for name in SCHEDULES)
