"""A real training with several schedules in each process has separate pipelines, each with its name."""

from __future__ import annotations

import os

import polars as pl
import pytest

from process_groups import once
from scratch import scratch_directory
from stagescope import api
from stagescope.record.launch import recording_environment
from stagescope.vocabulary.errors import InputError
from trainings import TESTS, run_ranks

pytestmark = pytest.mark.slow


@once
def record():
    directory = scratch_directory("pipelines")
    plain = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment = recording_environment(directory, steps=None, run="pipelines", inherited=plain)
    done = run_ranks([str(TESTS / "two_pipelines_training.py"), "3"], environment, ranks=2)
    assert done.returncode == 0, done.stderr[-3000:]
    return directory


@pytest.mark.parametrize(
    ("pipeline", "schedule", "microbatches", "first_step"),
    [(None, "1F1B", 4, 0), ("1F1B", "1F1B", 4, 0), ("GPipe", "GPipe", 2, 1), ("1F1B (2)", "1F1B", 3, 2)],
)
def test_each_pipeline_is_read_alone(pipeline, schedule, microbatches, first_step):
    timeline = api.read(record(), pipeline=pipeline)
    assert timeline.ranks["schedule"].to_list() == [schedule] * 2
    assert sorted(timeline.steps["step"].unique()) == [first_step, first_step + 3, first_step + 6]
    forwards = timeline.spans.filter(pl.col("kind") == "forward")
    assert forwards.group_by("rank", "step").len()["len"].to_list() == [microbatches] * 6
    (note,) = timeline.diagnostics.filter(pl.col("code") == "pipelines.several").rows(named=True)
    assert note["count"] == 3
    assert all(f"{name} (3 steps" in note["message"] for name in ("1F1B", "GPipe", "1F1B (2)"))
    assert not timeline.is_partial


def test_the_report_is_of_one_pipeline():
    report = api.analyze(api.read(record(), pipeline="GPipe"))
    assert report.steps["step"].unique().sort().to_list() == [1, 4, 7]


def test_an_unknown_pipeline_is_an_error():
    with pytest.raises(InputError, match=r"no pipeline 'ZBV': the run has 1F1B, GPipe, 1F1B \(2\)"):
        api.read(record(), pipeline="ZBV")
