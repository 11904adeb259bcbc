"""ColossalAI's schedules, with a replacement that has the same names and arguments."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import polars as pl
import pytest

import fake_colossalai
import stagescope
from children import clean_environment
from stagescope import api as workflow
from stagescope.ingest.recording.frames import read_contents
from stagescope.record.frameworks import colossalai
from stagescope.record.patching import Patches
from stagescope.record.recorder import Recorder
from stagescope.vocabulary.kinds import ACTION_KINDS, label

SOURCE = Path(stagescope.__file__).parents[1]
NAMES = {
    "OneForwardOneBackwardSchedule": "1f1b",
    "InterleavedSchedule": "interleaved",
    "ZeroBubbleVPipeScheduler": "zb-v",
}


@pytest.fixture(autouse=True)
def transfers(monkeypatch):
    p2p = types.ModuleType(colossalai.P2P)
    p2p.PipelineP2PCommunication = fake_colossalai.PipelineP2PCommunication
    monkeypatch.setitem(sys.modules, colossalai.P2P, p2p)


def train(directory, name, *, package=None, steps=2, stage=1):
    """Record a training of one rank; return the timeline and its schedule."""
    package = package or fake_colossalai.make()
    recorder, patches = Recorder(str(directory)), Patches()
    colossalai.instrument(package, recorder, patches)
    schedule = getattr(package, name)(stage, 4, 8)
    for _ in range(steps):
        schedule.forward_backward_step("model", None, None, optimizer="optimizer")
    if name == "OneForwardOneBackwardSchedule":
        schedule.forward_backward_step("model", None, None)
    patches.undo()
    recorder.stop("test")
    return workflow.read(directory), schedule


def order_of(timeline, step):
    actions = timeline.spans.filter(pl.col("kind").is_in(ACTION_KINDS) & (pl.col("step") == step)).sort(
        "start_ns"
    )
    return [
        label(action["kind"], action["stage"], action["microbatch"])
        for action in actions.iter_rows(named=True)
    ]


@pytest.mark.parametrize("stage", [0, 1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_recorded_order_is_the_executed_order(tmp_path, name, stage):
    timeline, schedule = train(tmp_path, name, stage=stage)
    half = len(schedule.done) // 2
    assert [order_of(timeline, 0), order_of(timeline, 1)] == [schedule.done[:half], schedule.done[half:]]
    assert timeline.ranks["schedule"].to_list() == [NAMES[name]]
    assert timeline.ranks["pp"].to_list() == [stage]


def test_evaluation_belongs_to_no_step(tmp_path):
    timeline, _ = train(tmp_path, "OneForwardOneBackwardSchedule")
    assert timeline.steps["step"].to_list() == [0, 1]
    evaluated = timeline.spans.filter(pl.col("step").is_null() & (pl.col("lane") == "compute"))
    assert evaluated["kind"].to_list() == ["forward"] * 8
    assert evaluated["microbatch"].to_list() == list(range(8))


def test_transfers_have_the_place_of_their_pass(tmp_path):
    timeline, _ = train(tmp_path, "OneForwardOneBackwardSchedule", steps=1)
    transfers = timeline.spans.filter((pl.col("lane") == "comm") & (pl.col("step") == 0))
    found = transfers.group_by("kind", "peer", "bytes").len().sort("kind").rows()
    assert found == [
        ("send_forward", 2, 10, 8),
        ("recv_forward", 0, 10, 8),
        ("send_backward", 0, 10, 8),
        ("recv_backward", 2, 10, 8),
    ]
    for kind in ("send_forward", "recv_forward", "send_backward", "recv_backward"):
        assert transfers.filter(pl.col("kind") == kind)["microbatch"].to_list() == list(range(8))


def test_missing_functions_are_skipped_and_listed_in_the_header(tmp_path, monkeypatch):
    package = fake_colossalai.make()
    del package.InterleavedSchedule
    del package.OneForwardOneBackwardSchedule.backward_step
    package.OneForwardOneBackwardSchedule.backward_step_v2 = lambda *_: None
    monkeypatch.delitem(sys.modules, colossalai.P2P)
    recorder, patches = Recorder(str(tmp_path)), Patches()
    colossalai.instrument(package, recorder, patches)
    schedule = package.OneForwardOneBackwardSchedule(0, 4, 2)
    with pytest.raises(AttributeError):
        schedule.forward_backward_step("model", None, None, optimizer="optimizer")
    recorder.stop("test")
    (file,) = Path(tmp_path).rglob("*.sscope")
    assert read_contents(file.read_bytes()).header["framework"]["missing"] == [
        "OneForwardOneBackwardSchedule.backward_step",
        "InterleavedSchedule",
        "PipelineP2PCommunication",
    ]


def test_stop_restores_the_classes(tmp_path):
    package = fake_colossalai.make()
    before = dict(vars(package.ZeroBubbleVPipeScheduler))
    patches = Patches()
    colossalai.instrument(package, Recorder(str(tmp_path)), patches)
    assert dict(vars(package.ZeroBubbleVPipeScheduler)) != before
    patches.undo()
    assert dict(vars(package.ZeroBubbleVPipeScheduler)) == before


TRAINING = """
from colossalai.pipeline.schedule import OneForwardOneBackwardSchedule
schedule = OneForwardOneBackwardSchedule(2, 4, 8)
schedule.forward_backward_step("model", None, None, optimizer="optimizer")
print(" ".join(schedule.done))
"""


def test_unmodified_training_is_recorded(tmp_path):
    package = tmp_path / "colossalai" / "pipeline" / "schedule"
    package.mkdir(parents=True)
    source = "import fake_colossalai\nglobals().update(vars(fake_colossalai.make()), __name__=__name__)\n"
    (package / "__init__.py").write_text(source, encoding="utf-8")
    paths = os.pathsep.join([str(tmp_path), str(Path(fake_colossalai.__file__).parent), str(SOURCE)])
    command = [
        sys.executable,
        "-m",
        "stagescope",
        "run",
        "-o",
        str(tmp_path / "rec"),
        "--",
        sys.executable,
        "-c",
    ]
    done = subprocess.run(
        [*command, TRAINING],
        env=clean_environment(PYTHONPATH=paths),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert order_of(workflow.read(tmp_path / "rec"), 0) == done.stdout.split()
