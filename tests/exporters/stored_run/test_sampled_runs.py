"""What-if of a stored run that is too large to be analyzed at once: predictions from the sample of its report."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from polars.testing import assert_frame_equal

from machines import on_machines
from planted_runs import Shape, random_times, run
from stagescope.analysis import build_report, sampled_pipelines, sampled_steps
from stagescope.analysis.prediction.what_if import predict_steps
from stagescope.api import (
    EqualStages,
    FreeTransfers,
    OtherSchedule,
    Slower,
    export,
    load_report,
    read,
    sample_stored_run,
    save_report,
    saved_reports,
    store,
    what_if,
    what_if_of_sample,
)
from stagescope.cli import main
from stagescope.execution.executor import InThisProcess
from stagescope.exporters.stored_run import WriteOptions, write_stored_run
from stagescope.model.implied import implied_steps
from stagescope.model.stored_run import FORMAT, VERSION, Manifest
from stagescope.vocabulary.steps import StepRange

SHAPE = Shape(pipelines=3, stages=4, microbatches=8, steps=24, noise=0.01)
SLOW_RANK = 6
CHANGES = [
    (EqualStages(),),
    (FreeTransfers(),),
    (Slower(factor=0.9, rank=SLOW_RANK),),
    (OtherSchedule("zb-v"),),
]
SAMPLE = "3:5, 11:13, 19:21"


def planted():
    times = random_times(SHAPE, seed=5)
    pipeline, stage = divmod(SLOW_RANK, SHAPE.stages)
    times.action_ns[:, pipeline, :, stage] *= 1.3
    return run(replace(times, action_ns=np.rint(times.action_ns), reduces=True))


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sampled")
    export(planted(), folder / "run.parquet")
    store(folder / "run.parquet", out=folder / "run.stagescope")
    return folder / "run.stagescope"


@pytest.fixture
def is_large(stored, monkeypatch):
    """Let a run count as large: its sample has a quarter of its steps."""
    monkeypatch.setattr(saved_reports, "STORING_BYTES", 0)
    monkeypatch.setattr(sampled_steps, "MOST_SPANS", 1)
    monkeypatch.setattr(sampled_steps, "SAMPLE_SPANS", read(stored).spans.height // 4)


@pytest.fixture
def large(stored, is_large):  # noqa: ARG001 - it has to count as large before it is analyzed
    (stored / "analysis" / "report.json").unlink(missing_ok=True)
    save_report(stored, workers=1)
    return stored


def test_predictions_are_those_of_the_sample_of_the_report(large, steps_read):
    found = what_if_of_sample(sample_stored_run(large), CHANGES)
    assert steps_read == [StepRange(2, 6), StepRange(10, 14), StepRange(18, 22)]
    (note,) = [each for each in found.diagnostics if each.code == "steps.reference"]
    assert note in load_report(large).diagnostics
    assert note.message.endswith(f"the predictions are those of steps {SAMPLE}")
    whole = build_report(read(large))
    sample = whole.intermediates.sample
    assert str(sample.steps) == SAMPLE
    expected = predict_steps(sample.actions, CHANGES, whole.bubble.steps).table
    assert_frame_equal(found.table.drop("condition"), expected.drop("condition"))


def test_slow_devices_are_those_of_the_whole_run(large):
    found, whole = what_if_of_sample(sample_stored_run(large), CHANGES), what_if(read(large), CHANGES)
    assert found.table["condition"].to_list() == whole.table["condition"].to_list()
    assert f"rank {SLOW_RANK}" in found.table["condition"][-1]
    assert found.table["measured_step_ns"][0] != whole.table["measured_step_ns"][0]


def test_the_command_names_the_steps_unless_they_are_chosen(large, steps_read, capsys):
    assert main(["what-if", str(large)]) == 0
    assert f"the predictions are those of steps {SAMPLE}" in capsys.readouterr().out
    assert None not in steps_read
    steps_read.clear()
    assert main(["what-if", str(large), "--steps", "4:9"]) == 0
    assert "the predictions are those of" not in capsys.readouterr().out
    assert steps_read == [StepRange(4, 9)]


def test_smaller_runs_and_large_steps_are_read_as_a_whole(large, monkeypatch):
    assert sample_stored_run(large, steps="4:9") is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampled_pipelines, "LARGE_STEP", 0)
        assert sample_stored_run(large) is None
    monkeypatch.undo()
    assert sample_stored_run(large) is None


@pytest.mark.usefixtures("is_large")
def test_pipelines_that_are_not_on_one_clock_are_not_replayed(tmp_path):
    """They are not in the number of spans either, on which the steps of the sample depend."""
    machines = {rank: "2" if rank > 3 else f"{rank % 2}" for rank in range(SHAPE.pipelines * SHAPE.stages)}
    timeline = planted()
    timeline = replace(timeline, steps=implied_steps(timeline.spans))
    timeline = on_machines(timeline, machines, dict.fromkeys("012"))
    manifest = Manifest(FORMAT, VERSION, "planted", (), {}, aligned=True)
    write_stored_run(timeline, tmp_path, manifest, WriteOptions(executor=InThisProcess()))
    save_report(tmp_path, workers=1)
    found = sample_stored_run(tmp_path)
    predicted = what_if_of_sample(found, CHANGES)
    assert found.report.unaligned == (0, 1, 2, 3)
    assert str(found.sample.steps) != SAMPLE
    (note,) = [each for each in predicted.diagnostics if each.code == "steps.reference"]
    assert [note] == [each for each in found.report.diagnostics if each.code == "steps.reference"]
    whole = build_report(read(tmp_path))
    expected = predict_steps(whole.intermediates.sample.actions, CHANGES, whole.bubble.steps).table
    assert_frame_equal(predicted.table.drop("condition"), expected.drop("condition"))


def test_a_run_without_counted_steps_in_its_sample_is_read_as_a_whole(large, monkeypatch):
    report = load_report(large)
    other = replace(report, bubble=replace(report.bubble, steps=(1,)))
    monkeypatch.setattr(saved_reports, "report_of_stored_run", lambda *_, **__: other)
    assert sample_stored_run(large) is None
