"""Real trainings in which a rank is late between two steps: the iteration includes that, and the rank is known."""

from __future__ import annotations

import json
import os

import polars as pl
import pytest

import stagescope
from process_groups import once
from scratch import scratch_directory
from stagescope.model.collectives import find_collectives
from stagescope.record.launch import recording_environment
from stagescope.vocabulary.kinds import ACTION_KINDS
from torch_forks import run_forked
from trainings import TESTS, run_ranks

LATE_RANK = 2
DELAY_S = 0.2
ACCUMULATED = 3


@once
def train(how: str, *, recorded: bool = True):
    """Return the directory of the recording, and when the steps began and the losses by rank."""
    directory = scratch_directory("iterations")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    if recorded:
        environment = recording_environment(directory, steps=None, run="iterations", inherited=environment)
    done = run_ranks([str(TESTS / "gradnorm_training.py"), str(DELAY_S), how], environment)
    assert done.returncode == 0, done.stderr[-3000:]
    printed = sorted(json.loads(line) for line in done.stdout.splitlines())
    return directory, {rank: starts_ns for rank, starts_ns, _ in printed}, [losses for *_, losses in printed]


def spans_named(how, name):
    spans = stagescope.read(train(how)[0]).spans
    return spans.filter(pl.col("name").str.starts_with(name))


def test_iteration_lasts_until_the_next_one_begins():
    directory, starts_ns, _ = train("sleep")
    iterations = stagescope.analyze(stagescope.read(directory)).iterations.filter(
        "is_whole", pl.col("step") > 0, rank=0
    )
    measured_ns = iterations.sort("step")["iteration_ns"].to_list()
    first, last = iterations["step"].min(), iterations["step"].max()
    assert sum(measured_ns) == pytest.approx(starts_ns[0][last + 1] - starts_ns[0][first], rel=0.01)


def test_first_step_is_explained_by_the_initialization_of_its_stages():
    directory, starts_ns, _ = train("sleep")
    made = spans_named("sleep", "stage initialization").filter(step=0).sort("rank")
    assert made["rank"].to_list() == [0, 1, 2, 3]
    timeline = stagescope.read(directory)
    offset_ns = timeline.clocks["offset_ns"][0]
    for rank, start_ns, end_ns in made.select("rank", "start_ns", "end_ns").iter_rows():
        first_ns, second_ns, *_ = starts_ns[rank]
        assert first_ns + offset_ns <= start_ns < end_ns <= second_ns + offset_ns
    first = stagescope.analyze(timeline, skip_steps=0).iterations.filter(step=0, rank=0)
    second = timeline.spans.filter(pl.col("kind").is_in(ACTION_KINDS), step=1)
    assert first["iteration_ns"][0] == second["start_ns"].min() - made["start_ns"].min()
    assert first["other_work_ns"][0] >= (made["end_ns"] - made["start_ns"])[0] * 0.5


def test_rank_that_comes_last_to_a_collective_is_known():
    table = find_collectives(stagescope.read(train("sleep")[0]).spans)
    norms = table.filter((pl.col("operation") == "all_reduce") & (pl.col("step") > 0))
    assert norms["ranks"].unique().to_list() == [4]
    assert norms["last_rank"].mode().to_list() == [LATE_RANK]
    assert norms["late_ns"].median() > 0.5e9 * DELAY_S
    waited = norms.filter(pl.col("rank") != LATE_RANK)
    assert waited["exposed_ns"].median() > 0.5e9 * DELAY_S


def test_rank_that_is_late_most_is_known_with_the_place_where_it_was():
    report = stagescope.analyze(stagescope.read(train("sleep")[0]))
    late = report.late_ranks.sort("lost_ns").row(-1, named=True)
    assert (late["rank"], late["operation"], late["activity"]) == (LATE_RANK, "all_reduce", None)
    assert (late["after"], late["before"]) == ("its last backward", "the all_reduce")
    assert late["lost_ns"] > 0.5e9 * DELAY_S
    assert not late["is_claimed"] or f"(rank {LATE_RANK} comes " in report.verdict.why


def test_slow_loader_is_recorded_on_its_rank():
    loads = spans_named("loader", "data loading").filter(pl.col("rank") == LATE_RANK)
    assert loads.height == 5, "the first batch was loaded before the first step"
    assert ((loads["end_ns"] - loads["start_ns"]) >= 1e9 * DELAY_S).all()


def test_slow_loader_is_the_culprit_although_others_are_blocked_in_sends_to_its_rank():
    report = stagescope.analyze(stagescope.read(train("loader")[0]))
    loading = report.culprits.filter(cause="data_loading", victim_rank=0).sort("idle_ns")
    assert loading["culprit_rank"][-1] == LATE_RANK
    assert loading["idle_ns"][-1] > 0.5e9 * DELAY_S


def test_steps_before_an_optimizer_step_are_one_iteration():
    directory, starts_ns, _ = train("accumulate")
    report = stagescope.analyze(stagescope.read(directory))
    whole = report.iterations.filter("is_whole", pl.col("step") > 0, rank=0).sort("step")
    assert whole["steps"].unique().to_list() == [ACCUMULATED]
    period_ns = (starts_ns[0][-1] - starts_ns[0][1]) / (len(starts_ns[0]) - 2)
    assert whole["iteration_ns"].mean() == pytest.approx(period_ns, rel=0.01)
    assert f", {ACCUMULATED} steps per iteration" in report.verdict.why
    assert report.late_ranks.sort("lost_ns")["rank"][-1] == LATE_RANK


def test_pause_by_the_garbage_collector_in_a_forward_is_recorded_within_it():
    spans = stagescope.read(train("gc")[0]).spans.filter(pl.col("rank") == LATE_RANK)
    pauses = spans.filter(pl.col("name") == "garbage collection of generation 2")
    pauses = pauses.filter(pl.col("end_ns") - pl.col("start_ns") >= 1e9 * DELAY_S)
    assert pauses.height >= 5
    forwards = spans.filter(pl.col("kind") == "forward").select(
        "step", since_ns="start_ns", until_ns="end_ns"
    )
    inside = (pl.col("start_ns") >= pl.col("since_ns")) & (pl.col("end_ns") <= pl.col("until_ns"))
    assert pauses.filter(pl.col("step").is_not_null()).join(forwards, on="step").filter(inside).height >= 5


def test_clipping_is_recorded_in_every_step():
    assert spans_named("sleep", "gradient clipping").group_by("rank").len()["len"].to_list() == [6] * 4


def test_losses_are_equal_to_the_bit_with_and_without_the_recorder():
    assert train("sleep")[2] == train("sleep", recorded=False)[2]


LOADING = """
import sys
import torch
from torch.utils.data import DataLoader

for batch in DataLoader(list(range(4))):
    torch.save(batch, sys.argv[1])
"""


def test_process_that_only_loads_and_saves_leaves_no_recording(tmp_path):
    script = tmp_path / "load.py"
    script.write_text(LOADING, encoding="utf-8")
    environment = recording_environment(
        tmp_path / "out", steps=None, run="loading", inherited=dict(os.environ)
    )
    done = run_forked(script, tmp_path / "batch.pt", environment=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "batch.pt").exists()
    assert list(tmp_path.glob("out/**/*.sscope")) == []
