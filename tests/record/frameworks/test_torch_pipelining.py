"""Real trainings with torch.distributed.pipelining on four processes, compared with what the model itself observed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import polars as pl
import pytest

from children import contents_in
from stagescope import api as workflow
from stagescope.demo.names import THEORY
from stagescope.ingest.recording.frames import read_contents
from stagescope.model.messages import match_messages
from stagescope.record.launch import recording_environment
from stagescope.schedules.recognition.recognizer import recognize
from stagescope.vocabulary.kinds import ACTION_KINDS, label
from trainings import RANKS, SCHEDULES, TESTS, record_training, run_ranks, train_in_one_process

pytestmark = pytest.mark.slow

GOLDEN = TESTS / "data" / "golden"
WORK_OF_KIND = {
    "forward": {"forward"},
    "backward": {"input gradient", "weight gradient"},
    "backward_input": {"input gradient"},
    "backward_weight": {"weight gradient", "input gradient"},  # stage 0 has no input gradient of its own
}


def timeline_of(schedule):
    return workflow.read(record_training(schedule).directory)


def actions_of(timeline, rank, step):
    chosen = (pl.col("rank") == rank) & (pl.col("step") == step) & pl.col("kind").is_in(ACTION_KINDS)
    return timeline.spans.filter(chosen).sort("start_ns")


def order_of(timeline, rank, step):
    """The recorded order in the notation of the golden files, with overlapped pairs joined by +."""
    order, pairs = [], {}
    for action in actions_of(timeline, rank, step).iter_rows(named=True):
        text = label(action["kind"], action["stage"], action["microbatch"])
        if action["pair"] is not None and action["pair"] in pairs:
            order[pairs[action["pair"]]] += f"+{text}"
        else:
            if action["pair"] is not None:
                pairs[action["pair"]] = len(order)
            order.append(text)
    return order


def header_of(timeline, rank):
    source = timeline.ranks.filter(pl.col("rank") == rank)["source"][0]
    return read_contents(Path(source).read_bytes()).header


def from_torch_action(text):
    """Convert torch's notation of an action to ours, such as (1F6;6B2)OVERLAP_F_B to F1.6+B6.2."""
    inner = text[1:].split(")")[0].split(";") if text.startswith("(") else [text]
    actions = [re.fullmatch(r"(\d+)([FBIW])(\d+)", part) for part in inner]
    return "+".join(f"{action[2]}{action[1]}.{action[3]}" for action in actions if action)


def golden_order(name):
    cases = json.loads((GOLDEN / f"{name}.json").read_text())["cases"]
    return next(case["orders"] for case in cases if case["pp"] == 4 and case["n_mb"] == 8)


COLUMNS = ("rank", "step", "kind", "stage", "microbatch", "chunk", "peer", "bytes", "pair")


def rows_of(timeline):
    spans = timeline.spans.filter(pl.col("lane") != "host").select(
        *COLUMNS, pl.col("wait_start_ns").is_null()
    )
    return sorted(spans.rows(), key=str)


@pytest.mark.parametrize("schedule", ["1F1B", "InterleavedZeroBubble", "DualPipeV"])
def test_the_extension_records_what_is_recorded_in_python(schedule):
    in_python = workflow.read(record_training(schedule, compiled=False).directory)
    assert rows_of(in_python) == rows_of(timeline_of(schedule))
    assert in_python.spans.filter(kind="recv_forward").height > 0


@pytest.mark.parametrize("compiled", [False, True], ids=["in Python", "compiled"])
@pytest.mark.parametrize("schedule", ["1F1B", "InterleavedZeroBubble", "DualPipeV"])
def test_what_is_timed_with_events_of_a_gpu_is_what_is_timed_on_the_host(schedule, compiled):
    directory = record_training(schedule, compiled=compiled, gpu=True).directory
    assert all(len(contents.device_anchors) > 1 for contents in contents_in(directory))
    timeline = workflow.read(directory)
    assert not timeline.is_partial
    assert rows_of(timeline) == rows_of(timeline_of(schedule))
    received = timeline.spans.filter(pl.col("kind").cast(pl.String).str.starts_with("recv"))
    assert (received["end_ns"] == received["wait_end_ns"]).all()
    assert (received["wait_start_ns"] >= received["start_ns"]).mean() > 0.9  # its clock has an error


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_step_is_recorded_on_every_rank(schedule):
    timeline = timeline_of(schedule)
    assert timeline.diagnostics.rows() == []
    assert timeline.ranks["rank"].to_list() == [0, 1, 2, 3]
    assert timeline.ranks["schedule"].unique().to_list() == [schedule]
    assert sorted(timeline.steps.select("step", "rank").rows()) == [
        (s, r) for s in range(3) for r in range(4)
    ]
    counters = timeline.counters
    assert counters.filter(name="samples").select("rank", "step", "microbatch", "value").sort(
        pl.all()
    ).rows() == [(0, step, microbatch, 2) for step in range(3) for microbatch in range(8)]
    assert counters.filter(name="peak resident memory")["rank"].unique().to_list() == [0, 1, 2, 3]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_recorded_order_is_what_the_model_executed(schedule):
    training, timeline = record_training(schedule), timeline_of(schedule)
    for rank in range(RANKS):
        begun = timeline.steps.filter((pl.col("rank") == rank) & (pl.col("step") == 1))["start_ns"][0]
        offset_ns = timeline.clocks["offset_ns"][0]
        actions = pl.concat([actions_of(timeline, rank, 1), actions_of(timeline, rank, 2)]).rows(named=True)
        truth = [entry for entry in training.log[rank] if entry[3] + offset_ns >= begun]
        held = 0
        for work, stage, microbatch, start_ns, end_ns in truth:
            holders = [
                action
                for action in actions
                if action["start_ns"] <= start_ns + offset_ns
                and end_ns + offset_ns <= action["end_ns"]
                and (action["stage"], action["microbatch"]) == (stage, microbatch)
                and work in WORK_OF_KIND[action["kind"]]
            ]
            assert len(holders) == 1, (work, stage, microbatch, holders)
            held += 1
        assert held == 3 * 8 * 2 * len({action["stage"] for action in actions})


@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if name not in ("GPipe", "1F1B")])
def test_recorded_order_is_the_action_list_of_the_runtime_schedule(schedule):
    timeline = timeline_of(schedule)
    for rank in range(RANKS):
        actions = header_of(timeline, rank)["schedule"]["actions"]
        expected = [text for action in actions if (text := from_torch_action(action))]
        for step in range(3):
            assert order_of(timeline, rank, step) == expected


@pytest.mark.parametrize(
    ("schedule", "golden"), [("1F1B", "torch_1f1b_executed"), ("DualPipeV", "torch_dualpipev")]
)
def test_recorded_order_is_the_reference_order(schedule, golden):
    timeline, expected = timeline_of(schedule), golden_order(golden)
    assert {str(rank): order_of(timeline, rank, 2) for rank in range(RANKS)} == expected


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedule_is_recognized_by_its_order_alone(schedule):
    timeline = timeline_of(schedule)
    for step in range(3):
        found = recognize({rank: order_of(timeline, rank, step) for rank in range(RANKS)})
        assert (found.name, found.distance) == (THEORY[schedule], 0)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_dependencies_between_stages_hold(schedule):
    spans = timeline_of(schedule).spans.filter(pl.col("kind").is_in(ACTION_KINDS))
    last_stage = spans["stage"].max()
    done = {}
    for action in spans.iter_rows(named=True):
        kind = "backward" if action["kind"] == "backward_input" else action["kind"]
        done[action["step"], kind, action["stage"], action["microbatch"]] = (
            action["start_ns"],
            action["end_ns"],
        )
    violated = []
    for (step, kind, stage, microbatch), (start_ns, _) in done.items():
        before = {
            "forward": ("forward", stage - 1) if stage else None,
            "backward": ("backward", stage + 1) if stage < last_stage else ("forward", stage),
            "backward_weight": ("backward", stage),
        }[kind]
        if before and done[step, before[0], before[1], microbatch][1] > start_ns:
            violated.append((step, kind, stage, microbatch))
    assert violated == []


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_send_matches_its_receive_with_the_same_size(schedule):
    spans = timeline_of(schedule).spans
    messages = match_messages(spans)
    counts = dict(spans["kind"].cast(pl.String).value_counts().iter_rows())
    hops = 3 * (
        7
        if schedule in ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble")
        else 3
        if schedule in ("GPipe", "1F1B")
        else 6
    )
    assert counts["send_forward"] == counts["recv_forward"] == counts["send_backward"] == 8 * hops
    assert messages.height == 2 * 8 * hops
    assert messages["bytes"].unique().to_list() == [2 * 8 * 4]
    assert (messages["recv_end_ns"] >= messages["send_start_ns"]).all()
    assert (messages["wait_end_ns"] == messages["recv_end_ns"]).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_loss_and_optimizer_are_recorded_once_and_no_reduction_without_replicas(schedule):
    spans = timeline_of(schedule).spans
    counts = dict(spans["kind"].cast(pl.String).value_counts().iter_rows())
    assert counts["loss"] == 3 * 8
    assert counts["optimizer"] == 3 * 4
    assert "grad_reduce" not in counts
    losses = spans.filter(pl.col("kind") == "loss")
    assert losses["stage"].unique().to_list() == [spans["stage"].max()]


def test_chunk_is_the_local_index_of_a_stage():
    spans = timeline_of("ZBVZeroBubble").spans.filter(pl.col("kind").is_in(ACTION_KINDS))
    chunks = dict(spans.select("stage", "chunk").unique().iter_rows())
    assert chunks == {0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 1, 7: 1}


def test_recording_changes_neither_loss_nor_exit_code():
    assert record_training("1F1B").losses == record_training("1F1B", recorded=False).losses


def test_only_the_selected_steps_are_recorded():
    timeline = workflow.read(record_training("Interleaved1F1B", steps="1:2").directory)
    assert timeline.steps["step"].unique().to_list() == [1]
    assert timeline.spans["step"].unique().to_list() == [1]
    full = timeline_of("Interleaved1F1B").spans.filter(pl.col("step") == 1)
    is_of_schedule = pl.col("kind") != "other"  # Python collects its garbage when it likes
    assert timeline.spans.filter(is_of_schedule).height == full.filter(is_of_schedule).height


def test_killed_rank_and_the_others_leave_readable_files(tmp_path):
    """Rank 2 kills itself in its third step; the others fail on the broken connection."""
    environment = recording_environment(tmp_path / "rec", steps=None, run="killed", inherited=os.environ)
    done = run_ranks([str(TESTS / "killed_training.py"), str(tmp_path / "truth")], environment)
    assert done.returncode != 0
    timeline = workflow.read(tmp_path / "rec")
    assert timeline.ranks["rank"].to_list() == [0, 1, 2, 3]
    for step in (0, 1):
        assert order_of(timeline, 2, step) == golden_order("torch_1f1b_executed")["2"]
    notes = timeline.diagnostics.filter(pl.col("rank") == 2)["code"].to_list()
    assert "recording.no_end" in notes


def test_stop_restores_torch_and_evaluation_belongs_to_no_step():
    directory, printed = train_in_one_process("one_process_training.py")
    assert printed["same_after_stop"] is True
    timeline = workflow.read(directory)
    actions = timeline.spans.filter(pl.col("kind").is_in(ACTION_KINDS))
    assert actions.filter(pl.col("step").is_null())["kind"].unique().to_list() == ["forward"]
    assert actions.filter(pl.col("step").is_null()).height == 2 + 2, "one evaluation with a loss, one without"
    assert timeline.spans.filter(pl.col("name") == "evaluation")["step"].to_list() == [0, 0]
    assert actions["step"].drop_nulls().unique().sort().to_list() == [0, 1]


def test_custom_functions_and_overridden_stage_methods_are_recorded_once():
    directory, _ = train_in_one_process("one_process_training.py", "custom")
    actions = workflow.read(directory).spans.filter(pl.col("kind").is_in(ACTION_KINDS))
    counts = actions.group_by("step", "kind", "stage", "microbatch").len()["len"]
    assert counts.unique().to_list() == [1]
    assert sorted(actions["kind"].unique().to_list()) == ["backward", "forward"]
    assert actions.height == 2 * 2 * 2 * 2


@pytest.mark.parametrize("custom", [[], ["custom"]], ids=["plain", "custom"])
def test_fake_device_records_the_same_actions_as_the_host(custom):
    actions = []
    for script in ("one_process_training.py", "fake_device_training.py"):
        directory, printed = train_in_one_process(script, *custom)
        assert printed["same_after_stop"] is True
        timeline = workflow.read(directory)
        assert not timeline.is_partial
        spans = timeline.spans.filter(pl.col("kind").is_in([*ACTION_KINDS, "loss", "optimizer"]))
        actions.append(spans.select("kind", "step", "stage", "chunk", "microbatch", "pair").rows())
    assert actions[0] == actions[1]
