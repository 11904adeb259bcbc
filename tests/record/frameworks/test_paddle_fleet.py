"""Paddle fleet's pipeline: real on two CPU processes, and a replacement for schedulers that do not run there."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import polars as pl
import pytest

import fake_paddle
from children import only_contents
from peers import paddle_python, peer_variables
from places import TESTS
from scratch import scratch_directory
from stagescope import api as workflow
from stagescope.model.messages import match_messages
from stagescope.record.frameworks import paddle_fleet
from stagescope.record.frameworks.runs import Runs
from stagescope.record.patching import Patches
from stagescope.record.points.paddle import LAYERS
from stagescope.record.recorder import Recorder
from stagescope.schedules.recognition.recognizer import recognize
from stagescope.vocabulary.kinds import ACTION_KINDS, label

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = TESTS / "paddle_training" / "probed_fleet.py"
RANKS, MICROBATCHES, STEPS = 2, 4, 3
ATTEMPTS = 3
GLOO_ERROR = "Connection refused"
"""Paddle 3.3.1 creates its groups one after the other, and gloo occasionally finds a neighbor that has not started yet.
"""


@dataclass(frozen=True)
class Training:
    directory: Path
    exit_code: int
    truth: dict[int, dict]


@cache
def train(*, recorded: bool = True, steps: str | None = None) -> Training:
    """Run a real training; repeat it if gloo's rendezvous fails at the start."""
    python = str(paddle_python())
    for _ in range(ATTEMPTS):
        root = scratch_directory("paddle")
        launch = ["-m", "paddle.distributed.launch", "--nproc_per_node", str(RANKS), "--backend", "gloo"]
        command = [python, *launch, "--log_dir", str(root / "log"), str(SCRIPT), str(root / "truth")]
        command += [str(MICROBATCHES), str(STEPS)]
        if recorded:
            limits = ["--steps", steps] if steps else []
            run = [sys.executable, "-m", "stagescope", "run", *limits, "-o", str(root / "rec"), "--"]
            command = [*run, *command]
        variables = peer_variables(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
        done = subprocess.run(
            command, cwd=root, env=variables, capture_output=True, text=True, timeout=200, check=False
        )
        logs = "".join(log.read_text(errors="replace") for log in (root / "log").glob("workerlog.*"))
        if done.returncode == 0 or GLOO_ERROR not in logs:
            break
    assert done.returncode == 0, done.stderr[-2000:] + logs[-3000:]
    truth = {rank: json.loads((root / "truth" / f"rank{rank}.json").read_text()) for rank in range(RANKS)}
    return Training(root / "rec", done.returncode, truth)


def order_of(spans, rank, step):
    chosen = (pl.col("rank") == rank) & (pl.col("step") == step) & pl.col("kind").is_in(ACTION_KINDS)
    actions = spans.filter(chosen).sort("start_ns")
    return [
        label(action["kind"], action["stage"], action["microbatch"])
        for action in actions.iter_rows(named=True)
    ]


@pytest.mark.slow
def test_recorded_order_is_what_the_model_executed():
    training = train()
    timeline = workflow.read(training.directory)
    assert timeline.diagnostics.rows() == []
    offset_ns = timeline.clocks["offset_ns"][0]
    for rank in range(RANKS):
        actions = timeline.spans.filter((pl.col("rank") == rank) & pl.col("kind").is_in(ACTION_KINDS)).sort(
            "start_ns"
        )
        executed = training.truth[rank]["log"]
        assert len(executed) == actions.height == (2 * STEPS + 1) * MICROBATCHES
        for (kind, stage, microbatch, start_ns, end_ns), action in zip(
            executed, actions.iter_rows(named=True), strict=True
        ):
            assert (kind, stage, microbatch) == (action["kind"], action["stage"], action["microbatch"])
            assert action["start_ns"] <= start_ns + offset_ns
            assert end_ns + offset_ns <= action["end_ns"]


@pytest.mark.slow
def test_every_step_is_recorded_and_the_evaluation_has_none():
    timeline = workflow.read(train().directory)
    assert sorted(timeline.steps.select("step", "rank").rows()) == [
        (s, r) for s in range(STEPS) for r in range(RANKS)
    ]
    actions = timeline.spans.filter(pl.col("kind").is_in(ACTION_KINDS))
    counts = actions.group_by("step", "kind").len().sort("step", "kind", nulls_last=True).rows()
    each = RANKS * MICROBATCHES
    assert counts == [
        *((step, kind, each) for step in range(STEPS) for kind in ("forward", "backward")),
        (None, "forward", each),
    ]


@pytest.mark.slow
def test_dependencies_hold_and_the_schedule_is_recognized():
    spans = workflow.read(train().directory).spans
    for step in range(STEPS):
        found = recognize({rank: order_of(spans, rank, step) for rank in range(RANKS)})
        assert (found.name, found.distance) == ("1f1b", 0)
    actions = spans.filter(pl.col("kind").is_in(ACTION_KINDS) & pl.col("step").is_not_null())
    when = {
        row[:4]: row[4:]
        for row in actions.select("step", "kind", "stage", "microbatch", "start_ns", "end_ns").rows()
    }
    for (step, kind, stage, microbatch), (start_ns, _) in when.items():
        if (kind, stage) == ("forward", 0):
            continue
        before = {
            ("forward", 1): ("forward", 0),
            ("backward", 1): ("forward", 1),
            ("backward", 0): ("backward", 1),
        }[kind, stage]
        assert when[(step, *before, microbatch)][1] <= start_ns


@pytest.mark.slow
def test_every_send_matches_its_receive_with_its_blocking_wait():
    spans = workflow.read(train().directory).spans
    messages = match_messages(spans.filter(pl.col("step").is_not_null()))
    assert messages.height == 2 * MICROBATCHES * STEPS
    assert messages["bytes"].unique().to_list() == [2 * 8 * 4]
    assert (messages["recv_end_ns"] >= messages["send_start_ns"]).all()
    assert (messages["wait_end_ns"] == messages["recv_end_ns"]).all()


@pytest.mark.slow
def test_loss_optimizer_and_schedule_are_recorded():
    timeline = workflow.read(train().directory)
    in_steps = timeline.spans.filter(pl.col("step").is_not_null())
    counts = dict(in_steps["kind"].cast(pl.String).value_counts().iter_rows())
    assert (counts["loss"], counts["optimizer"]) == (STEPS * MICROBATCHES, STEPS * RANKS)
    assert timeline.ranks.select("rank", "pp", "device", "schedule").rows() == [
        (0, 0, "cpu", "1f1b"),
        (1, 1, "cpu", "1f1b"),
    ]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_recording_changes_neither_loss_nor_exit_code():
    recorded, plain = train(), train(recorded=False)
    assert recorded.exit_code == plain.exit_code == 0
    for rank in range(RANKS):
        assert recorded.truth[rank]["losses"] == plain.truth[rank]["losses"]
        assert recorded.truth[rank]["evaluated"] == plain.truth[rank]["evaluated"]


@pytest.fixture(autouse=True)
def paddle(monkeypatch):
    with fake_paddle.installed(monkeypatch) as module:
        yield module


def record(directory, pipelines, pipeline, *, steps=1, evaluate=False):
    """Record `steps` of a replacement's pipeline; return the timeline."""
    recorder, patches = Recorder(str(directory)), Patches()
    paddle_fleet.instrument(pipelines, recorder, patches)
    for _ in range(steps):
        pipeline.train_batch(["data"], pipeline.optimizer)
    if evaluate:
        pipeline.eval_batch(["data"])
    patches.undo()
    recorder.stop("test")
    return workflow.read(directory)


def actions_of(timeline, step=0):
    """Return the actions of a step in order: kind, chunk, stage, micro-batch."""
    chosen = pl.col("kind").is_in(ACTION_KINDS) & (pl.col("step") == step)
    return (
        timeline.spans.filter(chosen).sort("start_ns").select("kind", "chunk", "stage", "microbatch").rows()
    )


@pytest.mark.parametrize("version", fake_paddle.VERSIONS)
def test_training_of_every_version_goes_on_and_is_recorded(tmp_path, version):
    pipelines = fake_paddle.make(version)
    pipeline = pipelines.PipelineParallel(stage_id=1, num_stages=2, accumulate_steps=3)
    timeline = record(tmp_path, pipelines, pipeline)
    expected = [(kind, None, 1, number) for number in range(3) for kind in ("forward", "backward")]
    assert actions_of(timeline) == expected
    transfers = timeline.spans.filter(pl.col("peer").is_not_null()).sort("start_ns")
    assert transfers.select("kind", "microbatch").rows() == [
        (kind, number) for number in range(3) for kind in ("recv_forward", "send_backward")
    ]


@pytest.mark.parametrize("version", fake_paddle.VERSIONS)
def test_virtual_stages_are_distinguished_and_count_microbatches(tmp_path, version):
    pipelines = fake_paddle.make(version)
    pipeline = pipelines.PipelineParallelWithInterleave(
        stage_id=1, num_stages=3, accumulate_steps=6, chunks=2
    )
    timeline = record(tmp_path, pipelines, pipeline, steps=2)
    executed = [(kind, chunk, chunk * 3 + 1, number) for kind, chunk, number in pipeline.done[-24:]]
    assert actions_of(timeline, step=1) == executed
    assert timeline.ranks.select("schedule", "pp", "dp", "tp").rows() == [("interleaved", 1, 1 * 4 + 3, 0)]


def test_overlapped_passes_are_a_pair(tmp_path):
    pipelines = fake_paddle.make()
    pipeline = pipelines.PipelineParallelWithInterleave(
        stage_id=1, num_stages=3, accumulate_steps=6, chunks=2, overlap=True
    )
    timeline = record(tmp_path, pipelines, pipeline)
    pairs = timeline.spans.filter(pl.col("pair").is_not_null())
    assert pairs.group_by("pair").len()["len"].unique().to_list() == [2]
    assert pairs.height == 2 * sum(isinstance(one[0], tuple) for one in pipeline.done)
    assert sorted(pairs["kind"].unique().to_list()) == ["backward", "forward"]
    assert timeline.spans.filter(pl.col("kind") == "forward")["microbatch"].to_list().count(0) == 2


def test_messages_of_overlapped_passes_have_their_microbatch_and_no_false_wait(tmp_path):
    pipelines = fake_paddle.make()
    pipeline = pipelines.PipelineParallelWithInterleave(
        stage_id=1, num_stages=3, accumulate_steps=6, chunks=2, overlap=True
    )
    pipeline.handle = pipelines.P2PAsyncHandle(pipeline.helper)
    spans = record(tmp_path, pipelines, pipeline).spans
    pairs = spans.filter(pl.col("pair").is_not_null())
    for action, send in (("forward", "send_forward"), ("backward", "send_backward")):
        expected = (
            pairs.filter(pl.col("kind") == action).sort("start_ns").select("stage", "chunk", "microbatch")
        )
        sent = spans.filter(pl.col("kind") == send).sort("start_ns")
        assert sent.select("stage", "chunk", "microbatch").rows() == expected.rows()
    received = spans.filter((pl.col("kind") == "recv_forward") & pl.col("microbatch").is_not_null())
    expected = pairs.filter(pl.col("kind") == "forward").sort("start_ns").select("stage", "microbatch").rows()
    assert received.sort("start_ns").select("stage", "microbatch").rows() == expected
    asynchronous = spans.filter(
        pl.col("kind").is_in(["recv_forward", "recv_backward"]) & pl.col("microbatch").is_null()
    )
    assert asynchronous["wait_start_ns"].null_count() == asynchronous.height == 2 * pairs.height // 2


def test_messages_in_four_directions_are_recorded(tmp_path):
    pipelines = fake_paddle.make("2.6.2", four_directions=True)
    pipeline = pipelines.PipelineParallel(stage_id=1, num_stages=2, accumulate_steps=4)
    spans = record(tmp_path, pipelines, pipeline).spans
    assert spans.filter(pl.col("kind") == "recv_forward")["microbatch"].to_list() == [0, 1, 2, 3]
    assert spans.filter(pl.col("kind") == "send_backward")["microbatch"].to_list() == [0, 1, 2, 3]


def test_header_states_what_older_versions_do_not_show(tmp_path):
    pipelines = fake_paddle.make("2.6.2")
    record(tmp_path, pipelines, pipelines.PipelineParallel(stage_id=0, num_stages=2, accumulate_steps=4))
    [entry] = only_contents(tmp_path).header["frameworks"].values()
    assert entry["missing"] == ["forwards without data loading and loss", "the computation of the loss"]


def test_version_without_a_required_function_is_refused_and_left_as_it_is(tmp_path, capsys):
    pipelines = fake_paddle.make()
    del pipelines.PipelineParallel._backward_step
    before = dict(vars(pipelines.PipelineParallel))
    recorder, patches = Recorder(str(tmp_path)), Patches()
    paddle_fleet.instrument(pipelines, recorder, patches)
    assert "PipelineParallel._backward_step` not found; supported 2.6.2-3.3.1" in capsys.readouterr().err
    assert dict(vars(pipelines.PipelineParallel)) == before
    assert not any(pipelines.pipeline_parallel_callbacks_.hooks.values())
    patches.undo()
    recorder.stop("test")


def test_subclass_of_the_training_is_recorded_and_counts_each_pass_once(tmp_path):
    pipelines = fake_paddle.make()

    class Own(pipelines.PipelineParallel):
        def _forward_step(self, input_tensor, micro_dataset, chunk_id=None, **more):
            return super()._forward_step(input_tensor, micro_dataset, chunk_id, **more)

        def train_batch(self, *_):
            for number in range(2):
                self._backward_step(None, self._forward_step(None, number)[0], None)

    recorder, patches = Recorder(str(tmp_path)), Patches()
    paddle_fleet.instrument(pipelines, recorder, patches)
    Own(stage_id=0, num_stages=2, accumulate_steps=2).train_batch([], None)
    patches.undo()
    recorder.stop("test")
    expected = [(kind, None, 0, number) for number in range(2) for kind in ("forward", "backward")]
    assert actions_of(workflow.read(tmp_path)) == expected


def test_errors_in_registered_hooks_do_not_reach_the_training(tmp_path, capsys, monkeypatch):
    pipelines = fake_paddle.make()
    pipeline = pipelines.PipelineParallel(stage_id=1, num_stages=2, accumulate_steps=4)
    recorder, patches = Recorder(str(tmp_path)), Patches()
    paddle_fleet.instrument(pipelines, recorder, patches)

    def fail(*_):
        raise RuntimeError("of the recorder")

    monkeypatch.setattr(Runs, "observe_action", fail)
    assert pipeline.train_batch([], pipeline.optimizer) == "loss"
    assert "Paddle fleet: an action may be missing" in capsys.readouterr().err
    patches.undo()
    recorder.stop("test")


@pytest.mark.parametrize("redefines", [False, True])
def test_single_stage_training_is_recorded(tmp_path, redefines):
    pipelines = fake_paddle.make()
    base = sys.modules[LAYERS].PipelineLayer

    class Model(base):
        def forward(self, data):
            return super().forward(data)

    layers = Model() if redefines else base()
    model = pipelines.NoPipelineParallel(layers, accumulate_steps=3)
    recorder, patches = Recorder(str(tmp_path)), Patches()
    paddle_fleet.instrument(pipelines, recorder, patches)
    assert model.train_batch([]) == "loss"
    model.eval_batch([])
    layers.forward([])  # outside of a run
    patches.undo()
    recorder.stop("test")
    timeline = workflow.read(tmp_path)
    assert actions_of(timeline) == [
        (kind, None, 0, number) for number in range(3) for kind in ("forward", "backward")
    ]
    assert timeline.spans.filter(pl.col("step").is_null())["kind"].to_list() == ["forward"] * 3


def test_step_functions_are_timed_without_hooks(tmp_path):
    pipelines = fake_paddle.make("2.6.2")
    pipeline = pipelines.PipelineParallel(stage_id=0, num_stages=2, accumulate_steps=4)
    timeline = record(tmp_path, pipelines, pipeline, evaluate=True)
    counts = timeline.spans.group_by("kind", "step").len().sort("step", "kind", nulls_last=True)
    assert counts.filter(pl.col("kind").is_in(ACTION_KINDS)).rows() == [
        ("forward", 0, 4),
        ("backward", 0, 4),
        ("forward", None, 4),
    ]


def test_printing_the_schedule_is_no_step(tmp_path):
    pipelines = fake_paddle.make()
    pipeline = pipelines.PipelineParallel(stage_id=0, num_stages=2, accumulate_steps=4)
    recorder, patches = Recorder(str(tmp_path)), Patches()
    paddle_fleet.instrument(pipelines, recorder, patches)
    assert pipeline.get_static_scheduler() == "f0;b0;"
    assert recorder.step == -1
    patches.undo()


def test_trainer_with_its_own_optimizer_call_is_recorded(tmp_path):
    pipelines = fake_paddle.make()
    pipeline = pipelines.PipelineParallel(stage_id=0, num_stages=2, accumulate_steps=4)
    recorder, patches = Recorder(str(tmp_path)), Patches()
    paddle_fleet.instrument(pipelines, recorder, patches)
    for _ in range(2):
        pipeline.forward_backward_pipeline(["data"])
        pipeline.optimizer.step()
    patches.undo()
    recorder.stop("test")
    timeline = workflow.read(tmp_path)
    assert timeline.steps["step"].to_list() == [0, 1]
    assert timeline.spans.filter(pl.col("kind") == "optimizer")["step"].to_list() == [0, 1]


def test_device_without_a_clock_is_reported_and_has_no_waits(tmp_path, paddle, capsys):
    paddle.get_device = lambda: "gpu:0"
    pipelines = fake_paddle.make()
    pipeline = pipelines.PipelineParallel(stage_id=1, num_stages=2, accumulate_steps=4)
    timeline = record(tmp_path, pipelines, pipeline)
    assert (
        "Paddle's passes on gpu:0 are recorded with their launch times on the host" in capsys.readouterr().err
    )
    assert timeline.spans["wait_start_ns"].null_count() == timeline.spans.height
    assert timeline.ranks["device"].to_list() == ["gpu:0"]


def test_stop_removes_every_hook(tmp_path):
    pipelines = fake_paddle.make()
    methods = ("_forward_step", "_backward_step", "train_batch", "eval_batch", "forward_backward_pipeline")
    before = [vars(pipelines.PipelineParallel)[name] for name in methods]
    patches = Patches()
    paddle_fleet.instrument(pipelines, Recorder(str(tmp_path)), patches)
    assert all(len(hooks) == 1 for hooks in pipelines.pipeline_parallel_callbacks_.hooks.values())
    patches.undo()
    assert [vars(pipelines.PipelineParallel)[name] for name in methods] == before
    assert not any(pipelines.pipeline_parallel_callbacks_.hooks.values())


def test_training_exception_propagates_and_the_next_step_is_complete(tmp_path):
    pipelines = fake_paddle.make()
    pipeline = pipelines.PipelineParallel(stage_id=0, num_stages=2, accumulate_steps=4)
    recorder, patches = Recorder(str(tmp_path)), Patches()
    paddle_fleet.instrument(pipelines, recorder, patches)
    pipeline.fails_at = 2
    with pytest.raises(ZeroDivisionError):
        pipeline.train_batch(["data"], pipeline.optimizer)
    pipeline.fails_at = None
    pipeline.train_batch(["data"], pipeline.optimizer)
    patches.undo()
    recorder.stop("test")
    spans = workflow.read(tmp_path).spans.filter(pl.col("step") == 1)
    assert spans.filter(pl.col("kind") == "forward")["microbatch"].to_list() == [0, 1, 2, 3]
