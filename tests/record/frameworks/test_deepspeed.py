"""Real trainings with DeepSpeed's two pipeline engines on four processes, and replacements of the engines."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from torch.distributed import distributed_c10d

import fake_deepspeed
import framework_trainings as trainings
from stagescope import api as workflow
from stagescope.ingest.recording.frames import read_contents
from stagescope.record.frameworks import deepspeed as instrumentation
from stagescope.record.hooks import Guard
from stagescope.record.patching import MARK, Patches

slow = pytest.mark.slow
both_ways = pytest.mark.usefixtures("way")


@slow
def test_every_step_is_recorded_on_every_rank():
    timeline = trainings.timeline_of("deepspeed")
    assert timeline.diagnostics.rows() == []
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
def test_optimizer_is_recorded_once_and_evaluation_has_no_step():
    timeline = trainings.timeline_of("deepspeed")
    assert trainings.counts_by_step(timeline, "optimizer") == {0: 4, 1: 4, 2: 4}
    assert trainings.counts_by_step(timeline, "grad_reduce") == {}
    assert trainings.counts_by_step(timeline, "forward") == {0: 32, 1: 32, 2: 32, None: 32}
    assert trainings.counts_by_step(timeline, "backward") == {0: 32, 1: 32, 2: 32}
    is_garbage = pl.col("name").str.starts_with("garbage collection")
    others = timeline.spans.filter((pl.col("kind") == "other") & ~is_garbage)
    assert others.filter(name="evaluation").group_by("rank").len()["len"].to_list() == [1] * 4
    loads = others.filter(pl.col("name") != "evaluation")
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
    is_of_training = pl.col("kind") != "other"  # Python collects its garbage when it likes
    full = trainings.timeline_of("deepspeed").spans.filter((pl.col("step") == 1) & is_of_training)
    assert timeline.spans.filter(is_of_training).height == full.height


def commands(*names):
    return [(name, 0) for name in names]


def recorded(recorder, tmp_path):
    recorder.stop("test")
    return trainings.spans_in(tmp_path, "step", "stage", "microbatch", "peer", "bytes")


@both_ways
def test_incomplete_engine_runs_and_is_reported_once(recorder, tmp_path, capsys):
    """The replacement has no grid, no topology, and an unknown instruction."""
    engine = fake_deepspeed.make_engine(
        commands("ForwardPass", "ForwardPass", "SendActivation", "Unheard", "BackwardPass", "OptimizerStep")
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


@both_ways
def test_engine_without_a_stage_is_recorded_without_one(recorder, tmp_path):
    engine = fake_deepspeed.make_engine(commands("ForwardPass", "ReduceTiedGrads"))
    del engine.PipelineEngine.stage_id
    instrumentation.instrument(engine, recorder, Patches())
    engine.PipelineEngine().train_batch()
    assert recorded(recorder, tmp_path) == [
        ("forward", 0, -1, -1, -1, -1),
        ("step", 0, -1, -1, -1, -1),
    ]


@both_ways
def test_training_error_propagates_and_the_next_batch_counts_from_0(recorder, tmp_path):
    failures = [OSError("connection lost")]

    def send(*_, **__):
        if failures:
            raise failures.pop()

    engine = fake_deepspeed.make_engine(commands("ForwardPass", "SendActivation"), send=send)
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


@both_ways
def test_stop_restores_everything(recorder):
    engine, patches = fake_deepspeed.make_engine(), Patches()
    before = everything_of(engine)
    instrumentation.instrument(engine, recorder, patches)
    instrumentation.instrument(engine, recorder, patches)
    assert engine.p2p.send is not before[2]
    patches.undo()
    assert everything_of(engine) == before


def everything_of(engine):
    return (
        dict(engine.PipelineEngine._INSTRUCTION_MAP),
        dict(vars(engine.PipelineEngine)),
        engine.p2p.send,
    )


DUALPIPEV = [
    ("RecvActivation", 0, 0),
    ("CommitP2P",),
    ("ForwardPass", 0, 0),
    ("SendActivation", 0, 0),
    ("RecvActivation", 8, 1),
    ("RecvGrad", 0, 0),
    ("CommitP2P",),
    ("ForwardPass", 8, 1),
    ("BackwardPass", 0, 0),
    ("RecvActivation", 1, 0),
    ("SendGrad", 0, 0),
    ("CommitP2P",),
    ("ForwardPass", 1, 0),
    ("CommitP2P",),
    ("ReduceTiedGrads",),
    ("OptimizerStep",),
]


@pytest.fixture
def torch_works(monkeypatch):
    work = type("Work", (), {"wait": fake_deepspeed.Work.wait})
    monkeypatch.setattr(distributed_c10d, "Work", work)
    return work


def instrumented(recorder, patches, **options):
    """Instrument the modules in the order of their import: the second copies the dict of the first."""
    engine = fake_deepspeed.make_engine(DUALPIPEV)
    instrumentation.instrument(engine, recorder, patches)
    dualpipev = fake_deepspeed.make_dualpipev(engine, **options)
    instrumentation.instrument(dualpipev, recorder, patches)
    return engine, dualpipev


@both_ways
@pytest.mark.parametrize("coalesced", [False, True])
def test_dualpipev_is_recorded_with_the_stages_of_the_v(recorder, tmp_path, torch_works, coalesced):
    def works(operations):
        return [torch_works() for _ in (operations[:1] if coalesced else operations)]

    _, dualpipev = instrumented(recorder, Patches(), works=works)
    engine = dualpipev.DualPipeVEngine()
    assert engine.train_batch() == "loss"
    assert engine.waited == (3 if coalesced else 10)
    assert recorded(recorder, tmp_path) == [
        ("recv_forward", 0, 1, 0, 10, 16),
        ("forward", 0, 1, 0, -1, -1),
        ("send_forward", 0, 1, 0, 12, 16),
        ("recv_forward", 0, 6, 0, 12, 16),
        ("recv_backward", 0, 1, 0, 12, 6),
        ("forward", 0, 6, 0, -1, -1),
        ("backward", 0, 1, 0, -1, -1),
        ("recv_forward", 0, 1, 1, 10, 16),
        ("send_backward", 0, 1, 0, 10, 6),
        ("forward", 0, 1, 1, -1, -1),
        ("optimizer", 0, -1, -1, -1, -1),
        ("step", 0, -1, -1, -1, -1),
    ]
    waits = [
        (start, end)
        for kind, start, end in trainings.spans_in(tmp_path, "wait_start_ns", "wait_end_ns")
        if "recv" in kind or "send" in kind
    ]
    assert all(0 < start <= end for start, end in waits)
    assert len(set(waits)) == (3 if coalesced else 6)


@pytest.mark.usefixtures("torch_works")
def test_transfers_of_dualpipev_without_handles_have_no_wait(recorder, tmp_path):
    _, dualpipev = instrumented(recorder, Patches(), works=lambda _: [])
    dualpipev.DualPipeVEngine().train_batch()
    spans = recorded(recorder, tmp_path)
    assert sum("recv" in kind or "send" in kind for kind, *_ in spans) == 6
    assert all(start < 0 for _, start in trainings.spans_in(tmp_path, "wait_start_ns"))


@pytest.mark.parametrize("is_missing", ["_queue_p2p", "phase"])
def test_other_dualpipev_is_left_alone_and_its_empty_steps_are_reported(recorder, capsys, is_missing):
    engine = fake_deepspeed.make_engine(DUALPIPEV)
    instrumentation.instrument(engine, recorder, Patches())
    dualpipev = fake_deepspeed.make_dualpipev(engine)
    if is_missing == "phase":
        forward = fake_deepspeed.INSTRUCTIONS["ForwardPass"]
        dualpipev.DualPipeVEngine._INSTRUCTION_MAP[forward] = lambda self, buffer_id: None
    else:
        del dualpipev.DualPipeVEngine._queue_p2p
    before = dict(dualpipev.DualPipeVEngine._INSTRUCTION_MAP)
    instrumentation.instrument(dualpipev, recorder, Patches())
    assert before == dualpipev.DualPipeVEngine._INSTRUCTION_MAP
    printed = capsys.readouterr().err
    assert printed.startswith("stagescope: DeepSpeed DualPipeV")
    assert is_missing in printed
    assert recorder.coverage.frameworks["DeepSpeed"]["recorded"]


@both_ways
def test_engine_class_with_unknown_instructions_is_reported(recorder, tmp_path, capsys):
    engine = fake_deepspeed.make_engine(commands("ForwardPass", "BackwardPass", "SendActivation"))
    instrumentation.instrument(engine, recorder, Patches())

    class OwnEngine(engine.PipelineEngine):
        _INSTRUCTION_MAP = engine.PipelineEngine._INSTRUCTION_MAP | {
            fake_deepspeed.INSTRUCTIONS["ForwardPass"]: lambda *_, **__: None
        }

    assert OwnEngine().train_batch() == "loss"
    printed = capsys.readouterr().err
    reason = "this engine has its own instructions; nothing of it is recorded"
    assert printed.count(f"DeepSpeed OwnEngine (unknown version): {reason}") == 1
    assert "step 0 ended without a recorded action" in printed
    assert [kind for kind, *_ in recorded(recorder, tmp_path)] == ["step"]


def test_engine_without_a_required_instruction_is_left_alone(recorder, capsys):
    engine = fake_deepspeed.make_engine()
    del engine.PipelineEngine._INSTRUCTION_MAP[fake_deepspeed.INSTRUCTIONS["SendGrad"]]
    before = everything_of(engine)
    instrumentation.instrument(engine, recorder, Patches())
    assert everything_of(engine) == before
    assert "instruction `SendGrad` not found" in capsys.readouterr().err


@both_ways
def test_stop_restores_the_copied_instructions_of_dualpipev(recorder, torch_works):
    patches = Patches()
    engine, dualpipev = instrumented(recorder, patches)
    assert hasattr(torch_works.wait, MARK)
    assert any(hasattr(function, MARK) for function in dualpipev.DualPipeVEngine._INSTRUCTION_MAP.values())
    patches.undo()
    for one in (engine.PipelineEngine, dualpipev.DualPipeVEngine):
        assert not any(hasattr(function, MARK) for function in one._INSTRUCTION_MAP.values())
        assert not any(hasattr(function, MARK) for function in vars(one).values())
    assert not hasattr(torch_works.wait, MARK)


@slow
def test_dualpipev_is_recorded_as_executed():
    training = trainings.train("deepspeed", "dualpipev")
    timeline = trainings.timeline_of("deepspeed", "dualpipev")
    assert training.losses == trainings.train("deepspeed", "dualpipev", recorded=False).losses
    assert timeline.diagnostics.rows() == []
    trainings.assert_recorded_as_executed(training, timeline)
    assert trainings.violated_dependencies(timeline) == []
    trainings.assert_received_before_used(timeline)
    found = [trainings.recognized(timeline, step) for step in range(3)]
    assert [(one.name, one.distance) for one in found] == [("dualpipev", 0)] * 3


@slow
def test_every_send_of_dualpipev_matches_its_receive():
    """The stages 3 and 4 are on the last rank, so nothing is sent between them."""
    timeline = trainings.timeline_of("deepspeed", "dualpipev")
    trainings.assert_every_send_has_its_receive(
        timeline, size_bytes=2 * 16 * 4, stages=7, microbatches=8, runs=(3, 1)
    )


class OddEngine:
    """An engine of an unknown version: no attribute works."""

    def __getattr__(self, name):
        raise LookupError(name)


@both_ways
@pytest.mark.parametrize("name", [*instrumentation.REQUIRED, "CommitP2P", "LoadMicroBatch", "ReduceGrads"])
@pytest.mark.parametrize("arguments", [(), (OddEngine(),), (OddEngine(), OddEngine(), OddEngine())])
def test_observed_instruction_does_what_it_did_before(recorder, name, arguments):
    """The entries of a dict are no declared points, so they have their own test of passing calls through."""
    failure = OSError("connection lost")
    calls = []

    def succeed(*args, **kwargs):
        calls.append((args, kwargs))
        return calls

    def fail(*_, **__):
        raise failure

    hooks = instrumentation.Instrumentation(recorder, Patches())
    guard = Guard(recorder, "DeepSpeed")
    functions, patches = {"succeed": succeed, "fail": fail}, Patches()
    for key in functions:
        patches.observe_entry(functions, key, hooks._observer_of(name), guard)
    assert functions["succeed"](*arguments, of_a_later_version=3) is calls
    [(args, kwargs)] = calls
    assert all(got is given for got, given in zip(args, arguments, strict=True))
    assert kwargs == {"of_a_later_version": 3}
    with pytest.raises(OSError, match="connection lost") as caught:
        functions["fail"](*arguments)
    assert caught.value is failure
    assert failure.__context__ is None
