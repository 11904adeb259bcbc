"""Runs the trainings of other frameworks under the recorder, each once, and compares them with their logs."""

from __future__ import annotations

import json
import os

import polars as pl

import peers
from children import only_contents
from process_groups import once
from scratch import scratch_directory
from stagescope import api as workflow
from stagescope.model.messages import match_messages
from stagescope.record.launch import recording_environment
from stagescope.schedules.recognition.recognizer import recognize
from stagescope.vocabulary.kinds import ACTION_KINDS, BY_CODE, STEP_CODE, TRANSFERS, label
from torch_forks import run_forked
from trainings import RANKS, TESTS, Training

PACKAGES = {"megatron": peers.MEGATRON, "deepspeed": peers.DEEPSPEED}


@once
def train(framework: str, *arguments: str, recorded: bool = True, steps: str | None = None) -> Training:
    """Train three steps on four processes; raises with the training's output if it fails."""
    packages = peers.peer_packages(framework, *PACKAGES[framework])
    root = scratch_directory("training")
    path = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        # A killed build leaves a lock behind, for which every later build would wait forever.
        "TORCH_EXTENSIONS_DIR": str(root / "extensions"),
    }
    if recorded:
        environment = recording_environment(
            root / "recording", steps=steps, run=framework, inherited=environment
        )
    script = TESTS / f"{framework}_training.py"
    done = run_forked(script, root / "truth", *arguments, environment=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    logs = [json.loads((root / "truth" / f"rank{rank}.json").read_text()) for rank in range(RANKS)]
    losses = next(one["losses"] for one in reversed(logs) if one["losses"])
    return Training(root / "recording", {rank: one["log"] for rank, one in enumerate(logs)}, losses)


def timeline_of(framework: str, *arguments: str):
    return workflow.read(train(framework, *arguments).directory)


def actions_of(timeline, rank):
    chosen = (pl.col("rank") == rank) & pl.col("kind").is_in(ACTION_KINDS)
    return timeline.spans.filter(chosen).sort("start_ns")


def assert_recorded_as_executed(training, timeline):
    """Each action is recorded once, around the work that the model logged, in the order in which it was executed."""
    offset_ns = timeline.clocks["offset_ns"][0]
    for rank in range(RANKS):
        actions = actions_of(timeline, rank).rows(named=True)
        done = [(action["kind"], action["stage"], action["microbatch"]) for action in actions]
        assert done == [tuple(entry[:3]) for entry in training.log[rank]]
        for action, (*_, start_ns, end_ns) in zip(actions, training.log[rank], strict=True):
            assert action["start_ns"] <= start_ns + offset_ns
            assert end_ns + offset_ns <= action["end_ns"]


def recognized(timeline, step):
    orders = {
        rank: [
            label(action["kind"], action["stage"], action["microbatch"])
            for action in actions_of(timeline, rank).filter(pl.col("step") == step).iter_rows(named=True)
        ]
        for rank in range(RANKS)
    }
    return recognize(orders)


def violated_dependencies(timeline):
    """Return the actions that began before their dependencies had ended, including evaluations."""
    actions = timeline.spans.filter(pl.col("kind").is_in(ACTION_KINDS))
    last = actions["stage"].max()
    times = {
        (action["step"], action["kind"], action["stage"], action["microbatch"]): (
            action["start_ns"],
            action["end_ns"],
        )
        for action in actions.iter_rows(named=True)
    }
    assert len(times) == actions.height
    violated = []
    for (step, kind, stage, microbatch), (start_ns, _) in times.items():
        if kind == "forward":
            before = ("forward", stage - 1) if stage else None
        else:
            before = ("backward", stage + 1) if stage < last else ("forward", stage)
        if before and times[(step, *before, microbatch)][1] > start_ns:
            violated.append((step, kind, stage, microbatch))
    return violated


def assert_every_send_has_its_receive(timeline, *, size_bytes, stages, microbatches, runs):
    """`runs` contains the numbers of training steps and of evaluations."""
    transfers = timeline.spans.filter(pl.col("kind").is_in(TRANSFERS))
    known = transfers.select("stage", "microbatch", "peer", "bytes")
    assert known.drop_nulls().height == known.height
    assert transfers["bytes"].unique().to_list() == [size_bytes]
    messages = match_messages(timeline.spans)
    steps, evaluations = runs
    assert messages.height == (stages - 1) * microbatches * (2 * steps + evaluations)
    assert transfers.height == 2 * messages.height
    assert messages["occurrence"].unique().to_list() == [0]
    assert (messages["recv_end_ns"] >= messages["send_start_ns"]).all()
    assert messages["wait_end_ns"].null_count() == 0
    assert (messages["wait_end_ns"] == messages["recv_end_ns"]).all()


def assert_received_before_used(timeline):
    """The action of a received tensor begins after the receive has ended."""
    starts = timeline.spans.filter(pl.col("kind").is_in(ACTION_KINDS)).select(
        "rank", "step", "stage", "microbatch", pl.col("kind").cast(pl.String), action_start_ns="start_ns"
    )
    receives = timeline.spans.filter(pl.col("kind").cast(pl.String).str.starts_with("recv_")).with_columns(
        kind=pl.col("kind").cast(pl.String).str.strip_prefix("recv_")
    )
    keys = ["rank", "step", "stage", "microbatch", "kind"]
    used = receives.join(starts, on=keys, how="inner", nulls_equal=True)
    assert used.height == receives.height
    assert (used["action_start_ns"] >= used["end_ns"]).all()


def counts_by_step(timeline, kind):
    chosen = timeline.spans.filter(pl.col("kind") == kind)
    return dict(chosen.group_by("step").len().sort("step", nulls_last=True).iter_rows())


def spans_in(directory, *fields):
    """Return the spans of the only recording in file order, as tuples of kind and the given fields."""
    spans = only_contents(directory).spans
    names = ["step" if code == STEP_CODE else BY_CODE[code].name for code in spans["kind"].tolist()]
    return list(zip(names, *(spans[field].tolist() for field in fields), strict=True))
