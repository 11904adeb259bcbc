"""A real training with DeepSpeed's pipeline engine on four processes, and a replacement of the engine."""

from __future__ import annotations

import types
from pathlib import Path

import polars as pl
import pytest

import framework_trainings as trainings
from stagescope import api as workflow
from stagescope.ingest.recording.frames import read_contents
from stagescope.record.frameworks import deepspeed as instrumentation
from stagescope.record.patching import Patches
from stagescope.record.recorder import Recorder

slow = pytest.mark.slow


@slow
def test_every_step_is_recorded_on_every_rank():
    timeline = trainings.timeline_of("deepspeed")
    assert timeline.diagnostics.is_empty()
    assert timeline.ranks.select("rank", "pp", "dp", "schedule").rows() == [
        (rank, rank, 0, "1f1b") for rank in range(4)
    ]
    assert sorted(timeline.steps.select("step", "rank").rows()) == [
        (s, r) for s in range(3) for r in range(4)
    ]


@slow
def test_recorded_order_is_what_the_model_executed():
    trainings.assert_recorded_as_executed(trainings.train("deepspeed"), trainings.timeline_of("deepspeed"))


@slow
def test_schedule_is_recognized_in_every_step():
    timeline = trainings.timeline_of("deepspeed")
    found = [trainings.recognized(timeline, step) for step in range(3)]
    assert [(one.name, one.distance) for one in found] == [("1f1b", 0)] * 3


@slow
def test_dependencies_hold_and_data_is_received_before_use():
    timeline = trainings.timeline_of("deepspeed")
    assert trainings.violated_dependencies(timeline) == []
    trainings.assert_received_before_used(timeline)


@slow
def test_every_send_matches_its_receive_excluding_shapes():
    """In the first batch the shapes are sent ahead through the same functions."""
    timeline = trainings.timeline_of("deepspeed")
    trainings.assert_every_send_has_its_receive(
        timeline, size_bytes=2 * 16 * 4, stages=4, microbatches=8, runs=(3, 1)
    )


@slow
def test_optimizer_and_reductions_are_recorded_once_and_evaluation_has_no_step():
    timeline = trainings.timeline_of("deepspeed")
    assert trainings.counts_by_step(timeline, "optimizer") == {0: 4, 1: 4, 2: 4}
    assert trainings.counts_by_step(timeline, "grad_reduce") == {0: 8, 1: 8, 2: 8}
    assert trainings.counts_by_step(timeline, "forward") == {0: 32, 1: 32, 2: 32, None: 32}
    assert trainings.counts_by_step(timeline, "backward") == {0: 32, 1: 32, 2: 32}
    loads = timeline.spans.filter(pl.col("kind") == "other")
    assert loads["name"].unique().to_list() == ["LoadMicroBatch"]
    assert sorted(loads["stage"].unique()) == [0, 3]


@slow
def test_header_contains_schedule_and_coordinates():
    paths = sorted(Path(trainings.train("deepspeed").directory).rglob("*.sscope"))
    header = read_contents(paths[2].read_bytes()).header
    assert header["framework"] == {"name": "deepspeed", "version": "0.19.8"}
    assert header["parallel"] == {"pp": 2, "dp": 0, "pp_size": 4, "pp_ranks": [0, 1, 2, 3]}
    assert header["schedule"] == {
        "name": "1f1b", "class": "TrainSchedule", "microbatches": 8, "stages": 4, "local_stages": [2],
    }  # fmt: skip


@slow
def test_recording_changes_neither_loss_nor_exit_code():
    assert trainings.train("deepspeed").losses == trainings.train("deepspeed", recorded=False).losses


@slow
def test_only_the_selected_step_is_recorded():
    timeline = workflow.read(trainings.train("deepspeed", steps="1:2").directory)
    assert timeline.steps["step"].unique().to_list() == [1]
    assert timeline.spans["step"].unique().to_list() == [1]
    full = trainings.timeline_of("deepspeed").spans
    assert timeline.spans.height == full.filter(pl.col("step") == 1).height


class Tensor:
    def __init__(self, elements=4):
        self.elements = elements

    def numel(self):
        return self.elements

    def element_size(self):
        return 2


def instruction(name):
    return type(name, (), {})


def fake_engine(commands, *, send=lambda *_, **__: None):
    """A module with the structure of the engine: an instruction map, two batch methods, and p2p functions."""
    kinds = {
        name: instruction(name)
        for name in (
            "ForwardPass",
            "BackwardPass",
            "SendActivation",
            "ReduceTiedGrads",
            "OptimizerStep",
            "Unheard",
        )
    }
    p2p = types.SimpleNamespace(
        send=send,
        recv=lambda *_, **__: None,
        _grid=types.SimpleNamespace(stage_to_global=lambda stage_id: 10 + stage_id),
    )

    class PipelineEngine:
        stage_id = 1

        def work(self, **_):
            return None

        def send_activations(self, **_):
            self._send_tensor_meta()
            for size in (3, 5):
                p2p.send(Tensor(size), 2)

        def _send_tensor_meta(self):
            p2p.send(Tensor(100), 2)

        _INSTRUCTION_MAP = dict.fromkeys(kinds.values(), work) | {kinds["SendActivation"]: send_activations}

        def train_batch(self):
            self._exec_schedule(object())
            return "loss"

        def eval_batch(self):
            self._exec_schedule(object())

        def _exec_schedule(self, pipe_schedule):
            assert pipe_schedule is not None
            for name in commands:
                types.MethodType(self._INSTRUCTION_MAP[kinds[name]], self)(buffer_id=0)

    return types.SimpleNamespace(PipelineEngine=PipelineEngine, p2p=p2p)


@pytest.fixture
def recorder(tmp_path):
    recorder = Recorder(str(tmp_path))
    yield recorder
    recorder.stop("test")


def recorded(recorder, tmp_path):
    recorder.stop("test")
    return trainings.spans_in(tmp_path, "step", "stage", "microbatch", "peer", "bytes")


def test_incomplete_engine_runs_and_is_reported_once(recorder, tmp_path, capsys):
    """The replacement has no grid, no topology, and an unknown instruction."""
    engine = fake_engine(
        ["ForwardPass", "ForwardPass", "SendActivation", "Unheard", "BackwardPass", "OptimizerStep"]
    )
    instrumentation.instrument(engine, recorder, Patches())
    assert engine.PipelineEngine().train_batch() == "loss"
    assert engine.PipelineEngine().train_batch() == "loss"
    found = recorded(recorder, tmp_path)
    assert found[:6] == [
        ("forward", 0, 1, 0, -1, -1),
        ("forward", 0, 1, 1, -1, -1),
        ("send_forward", 0, 1, 0, 12, 2 * (3 + 5)),
        ("backward", 0, 1, 0, -1, -1),
        ("optimizer", 0, -1, -1, -1, -1),
        ("step", 0, -1, -1, -1, -1),
    ]
    assert [entry[:4] for entry in found[6:8]] == [("forward", 1, 1, 0), ("forward", 1, 1, 1)]
    assert capsys.readouterr().err.count("cannot record all of deepspeed") == 1


def test_engine_without_a_stage_is_recorded_without_one(recorder, tmp_path):
    engine = fake_engine(["ForwardPass", "ReduceTiedGrads"])
    del engine.PipelineEngine.stage_id
    instrumentation.instrument(engine, recorder, Patches())
    engine.PipelineEngine().train_batch()
    assert recorded(recorder, tmp_path) == [
        ("forward", 0, -1, -1, -1, -1),
        ("grad_reduce", 0, -1, -1, -1, -1),
        ("step", 0, -1, -1, -1, -1),
    ]


def test_training_error_propagates_and_the_next_batch_counts_from_0(recorder, tmp_path):
    failures = [OSError("connection lost")]

    def send(*_, **__):
        if failures:
            raise failures.pop()

    engine = fake_engine(["ForwardPass", "SendActivation"], send=send)
    instrumentation.instrument(engine, recorder, Patches())
    with pytest.raises(OSError, match="connection lost"):
        engine.PipelineEngine().train_batch()
    engine.PipelineEngine().train_batch()
    assert recorded(recorder, tmp_path) == [
        ("forward", 0, 1, 0, -1, -1),
        ("forward", 1, 1, 0, -1, -1),
        ("send_forward", 1, 1, 0, 12, 16),
        ("step", 1, -1, -1, -1, -1),
    ]


def test_stop_restores_everything(recorder):
    engine, patches = fake_engine([]), Patches()
    before = (
        dict(engine.PipelineEngine._INSTRUCTION_MAP),
        dict(vars(engine.PipelineEngine)),
        engine.p2p.send,
    )
    instrumentation.instrument(engine, recorder, patches)
    instrumentation.instrument(engine, recorder, patches)
    assert engine.p2p.send is not before[2]
    patches.undo()
    assert before[0] == engine.PipelineEngine._INSTRUCTION_MAP
    assert dict(vars(engine.PipelineEngine)) == before[1]
    assert engine.p2p.send is before[2]
