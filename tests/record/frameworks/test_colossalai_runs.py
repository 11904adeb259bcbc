"""Real trainings with ColossalAI 0.5.0 on four gloo processes: 1F1B with its plugin, interleaved, and ZBV."""

from __future__ import annotations

import json
import os
from pathlib import Path

import polars as pl
import pytest
from tools.compatibility.comparison import Outcome, Plan, read_plans, wrong_actions, wrong_messages

import peers
from framework_trainings import assert_received_before_used, recognized
from process_groups import once
from scratch import scratch_directory
from stagescope import api as workflow
from stagescope.record.launch import recording_environment
from torch_forks import run_forked
from trainings import TESTS, run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

RANKS, STAGES, MICROBATCHES, STEPS = 4, 2, 4, 8
SCHEDULES = Path(__file__).parents[3] / "tools" / "compatibility" / "trainings" / "colossalai_schedules.py"
ORDERS = {"interleaved": "interleaved", "zbv": "zb-v"}
INTERLEAVED = pytest.param("interleaved", marks=pytest.mark.exhaustive)


@once
def train(name: str, *, recorded: bool = True):
    """Return the directory of the recording and what the ranks printed; `name` is a schedule, or "plugin"."""
    packages = peers.peer_packages("colossalai", *peers.COLOSSALAI)
    directory = scratch_directory("training")
    path = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PLANT": "",
    }
    if recorded:
        environment = recording_environment(directory, steps=None, run=name, inherited=environment)
    if name == "plugin":
        done = run_ranks([str(TESTS / "planted" / "colossalai_ranks.py")], environment)
    else:
        done = run_forked(SCHEDULES, name, environment=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return directory, done.stdout


def timeline_of(name):
    return workflow.read(train(name)[0])


def facts_of(name, **options):
    """Return what the ranks of the training with the plugin printed, by rank."""
    lines = [json.loads(line) for line in train(name, **options)[1].splitlines()]
    return {line["rank"]: line for line in lines}


def plans_of_plugin():
    return [
        Plan(rank, (facts["stage"],), MICROBATCHES, STEPS, "full")
        for rank, facts in facts_of("plugin").items()
    ]


@pytest.mark.parametrize("schedule", [INTERLEAVED, "zbv"])
def test_every_action_and_message_is_recorded_once(schedule):
    directory, output = train(schedule)
    spans = workflow.read(directory).spans
    plans = read_plans(output)
    assert wrong_actions(spans, plans) + wrong_messages(spans, plans) == []


@pytest.mark.parametrize("schedule", [INTERLEAVED, "zbv"])
def test_actions_are_recorded_in_the_order_of_the_schedule(schedule):
    timeline = timeline_of(schedule)
    for step in (0, 2):
        assert recognized(timeline, step).name == ORDERS[schedule]
    assert timeline.diagnostics.filter(pl.col("severity") != "info").is_empty()


@pytest.mark.parametrize("schedule", ["plugin", INTERLEAVED])
def test_data_is_received_before_it_is_used(schedule):
    assert_received_before_used(timeline_of(schedule))


def test_training_with_the_plugin_has_two_pipelines_with_all_their_actions():
    timeline = timeline_of("plugin")
    assert wrong_actions(timeline.spans, plans_of_plugin()) == []
    places = timeline.ranks.select("rank", "pp", "dp").rows()
    assert places == [
        (rank, facts["stage"], facts["replica"]) for rank, facts in sorted(facts_of("plugin").items())
    ]


def test_reductions_of_the_plugin_have_their_stage_and_group():
    reductions = timeline_of("plugin").spans.filter(kind="grad_reduce")
    assert reductions.group_by("rank", "step").len()["len"].to_list() == [2] * RANKS * STEPS
    found = reductions.select("rank", "stage", pl.col("name").str.extract(r"in (\S+)")).unique().sort("rank")
    assert found.rows() == [(0, 0, "0,2"), (1, 1, "1,3"), (2, 0, "0,2"), (3, 1, "1,3")]


def test_losses_are_equal_to_the_bit_with_and_without_the_recorder():
    recorded, plain = ({rank: facts["losses"] for rank, facts in facts_of("plugin", **options).items()}
                       for options in ({}, {"recorded": False}))  # fmt: skip
    assert recorded == plain
    assert any(recorded.values())


@pytest.mark.exhaustive
@pytest.mark.parametrize("schedule", [INTERLEAVED, "zbv"])
def test_parameters_are_equal_to_the_bit_with_and_without_the_recorder(schedule):
    recorded, plain = (
        Outcome(0, train(schedule, **options)[1]).values for options in ({}, {"recorded": False})
    )
    assert recorded == plain
    assert len(plain) == RANKS * 3
