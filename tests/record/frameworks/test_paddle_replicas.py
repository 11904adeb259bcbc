"""Gradient reductions that Paddle issues by itself: real replicas of one stage on two CPU processes."""

from __future__ import annotations

import json
import subprocess
import sys

import polars as pl
import pytest

from peers import paddle_python, peer_variables
from places import TESTS
from process_groups import once
from scratch import scratch_directory
from stagescope import api as workflow

SCRIPT = TESTS / "paddle_training" / "replicated.py"
RANKS, STEPS, MICROBATCHES, LATE_NS = 2, 3, 2, 100_000_000
ATTEMPTS = 3
GLOO_ERROR = "Connection refused"
LINEAR_BYTES = (16 * 16 + 16) * 4
WEIGHT_BYTES = 4096  # Paddle aligns slices to 4096 bytes on a CPU

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


@once
def train(way, *, recorded=True):
    """Return where a training recorded, and the losses of each rank; repeated if gloo does not find its peer."""
    for _ in range(ATTEMPTS):
        root = scratch_directory("paddle-replicas")
        launch = ["-m", "paddle.distributed.launch", "--nproc_per_node", str(RANKS), "--backend", "gloo"]
        command = [str(paddle_python()), *launch, "--log_dir", str(root / "log"), str(SCRIPT)]
        command += [str(root / "truth"), way, str(STEPS)]
        if recorded:
            command = [sys.executable, "-m", "stagescope", "run", "-o", str(root / "rec"), "--", *command]
        variables = peer_variables(
            OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", PYTHONPATH=str(TESTS.parent / "src")
        )
        done = subprocess.run(
            command, cwd=root, env=variables, capture_output=True, text=True, timeout=200, check=False
        )
        logs = "".join(log.read_text(errors="replace") for log in (root / "log").glob("workerlog.*"))
        if done.returncode == 0 or GLOO_ERROR not in logs:
            break
    assert done.returncode == 0, done.stderr[-2000:] + logs[-3000:]
    return root / "rec", [json.loads((root / "truth" / f"rank{r}.json").read_text()) for r in range(RANKS)]


def reductions_of(way):
    timeline = workflow.read(train(way)[0])
    return timeline, timeline.spans.filter(pl.col("kind") == "grad_reduce").sort("rank", "start_ns")


@pytest.mark.parametrize(("way", "layers"), [("replicated", 4), ("unused", 5)])
def test_a_backward_ends_where_the_wait_of_its_replica_for_the_reduction_begins(way, layers):
    timeline, reductions = reductions_of(way)
    assert reductions.select("rank", "step").rows() == [(r, s) for r in range(RANKS) for s in range(STEPS)]
    assert set(reductions["name"]) == {"all_reduce (async) in 0,1 (_default)"}
    assert set(reductions["bytes"]) == {layers * LINEAR_BYTES}
    assert set(reductions["stage"]) == {0}
    waits = reductions.filter(rank=0).select(pl.col("wait_end_ns") - pl.col("wait_start_ns")).to_series()
    assert waits.min() >= LATE_NS / 2
    last = timeline.spans.filter(kind="backward", microbatch=MICROBATCHES - 1).sort("rank", "start_ns")
    assert last["end_ns"].to_list() == reductions["wait_start_ns"].to_list()
    assert (reductions["start_ns"] <= reductions["wait_start_ns"]).all()
    assert (reductions["start_ns"] >= last["start_ns"]).all()


def test_a_replica_that_has_entered_its_reduction_waits_for_the_other_one():
    directory, _ = train("watched")
    state = json.loads((directory.parent / "truth" / "state.json").read_text())
    wait = state["calls"][0]
    (reduction,) = wait["for"]
    assert reduction == {
        "call": "grad_reduce", "name": "all_reduce (async) in 0,1 (_default)", "stage": 0,
        "pair": state["groups"]["0,1 (_default)"] - 1, "since_ns": wait["since_ns"],
    }  # fmt: skip


@pytest.mark.parametrize(("way", "each"), [("sharded", 2), ("direct", 8)])
def test_each_reduce_of_sharding_stage_2_is_a_reduction_and_its_broadcasts_are_not(way, each):
    timeline, reductions = reductions_of(way)
    inside = reductions.group_by("rank", "step").len().sort("rank", "step")
    assert inside.rows() == [(r, s, each * MICROBATCHES) for r in range(RANKS) for s in range(STEPS)]
    assert set(reductions["name"].str.split(" ").list.first()) == {"reduce"}
    assert reductions["wait_end_ns"].null_count() == 0
    others = timeline.spans.filter(pl.col("kind") == "collective")
    assert set(others["name"].str.split(" ").list.first()) == {"broadcast"}
    late = reductions.filter(rank=0).select(pl.col("wait_end_ns") - pl.col("wait_start_ns")).to_series()
    assert late.max() >= LATE_NS / 2


def test_each_all_reduce_of_sharding_stage_3_is_a_reduction_and_its_gathering_is_not():
    """Four weights are reduced in each backward, and all biases before the optimizer step."""
    timeline, reductions = reductions_of("sliced")
    inside = reductions.group_by("rank", "step").len().sort("rank", "step")
    assert inside.rows() == [(r, s, 4 * MICROBATCHES + 1) for r in range(RANKS) for s in range(STEPS)]
    assert set(reductions["name"].str.split(" ").list.first()) == {"all_reduce"}
    weights = reductions.filter(stage=0)
    assert (weights.height, set(weights["bytes"])) == (RANKS * STEPS * 4 * MICROBATCHES, {WEIGHT_BYTES})
    assert (
        weights["wait_end_ns"].null_count() == 0
    )  # the late rank is waited for in the gathering of weights before
    assert "all_reduce" not in "".join(timeline.spans.filter(kind="collective")["name"])


@pytest.mark.parametrize("way", ["replicated", "sharded", "sliced"])
def test_losses_are_equal_to_the_bit_with_and_without_the_recorder(way):
    assert train(way)[1] == train(way, recorded=False)[1]
