"""stagescope demo, and that other commands can read the files it writes."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from stagescope import api
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
    assert "The bubble of an ideal 1F1B on 4 ranks with 8 micro-batches is 27.3 %" in done.stdout
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
    timeline = api.read(tmp_path / "demo" / "recording")
    assert timeline.steps["step"].unique().to_list() == [1, 2, 3, 4]
    assert timeline.diagnostics.is_empty()
    report = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert report["bubble"]["fraction"] == api.analyze(timeline).bubble.fraction
    ET.parse(tmp_path / "demo" / "demo.svg")
    assert json.loads((tmp_path / "demo" / "demo.json").read_text())["traceEvents"]
    assert "loss" in (tmp_path / "demo" / "training.log").read_text()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_states_the_schedule_bubble_of_every_schedule(schedule):
    assert theory_sentence(schedule, 8).startswith("The bubble of an ideal ")


def test_overwrites_nothing_without_force(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["demo", "-o", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith(f"stagescope: {tmp_path} already exists")


def test_without_torch_one_sentence_names_the_package_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("stagescope.cli.demo.find_spec", lambda name: None)
    assert main(["demo", "-o", str(tmp_path / "demo")]) == 1
    assert capsys.readouterr().err == (
        "stagescope: the demo needs torch, which is not installed\n"
        "  install it with: pip install 'stagescope[demo]'\n"
    )
    assert not (tmp_path / "demo").exists()


def test_returns_the_exit_code_of_a_failing_training_and_prints_its_log(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(
        "stagescope.cli.demo.launch_command", lambda script, options: ["sh", "-c", "echo why; exit 5"]
    )
    assert main(["demo", "-o", str(tmp_path / "demo")]) == 5
    error = capfd.readouterr().err
    assert "why" in error
    assert "stagescope: the training failed with exit code 5" in error


def test_offers_the_seven_schedules_of_torch(capsys):
    assert main(["demo", "--help"]) == 0
    text = capsys.readouterr().out
    assert len(SCHEDULES) == 7
    assert all(name in text for name in SCHEDULES)
