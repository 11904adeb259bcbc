"""Real trainings with Megatron-core on four processes, and the signatures of its main branch with replacements."""

from __future__ import annotations

import types
from pathlib import Path

import polars as pl
import pytest

import framework_trainings as trainings
import megatron_head
from megatron_head import combined_1f1b, p2p_communication, schedules, utils
from stagescope import api as workflow
from stagescope.ingest.recording.frames import read_contents
from stagescope.record.frameworks import megatron
from stagescope.record.frameworks.collectives import collectives_of
from stagescope.record.frameworks.works import works_of
from stagescope.record.patching import Patches
from stagescope.record.recorder import Recorder
from stagescope.vocabulary.steps import StepRange

slow = pytest.mark.slow
each = pytest.mark.parametrize(("chunks", "name"), [("1", "1f1b"), ("2", "interleaved")])


@slow
@each
def test_every_step_is_recorded_on_every_rank(chunks, name):
    timeline = trainings.timeline_of("megatron", chunks)
    assert timeline.diagnostics.rows() == []
    places = timeline.ranks.select("rank", "pp", "dp", "tp", "cp", "ep", "schedule").rows()
    assert places == [(rank, rank, 0, 0, 0, 0, name) for rank in range(4)]
    assert sorted(timeline.steps.select("step", "rank").rows()) == [
        (s, r) for s in range(3) for r in range(4)
    ]


@slow
@each
def test_recorded_order_is_what_the_model_executed(chunks, name):
    training = trainings.train("megatron", chunks)
    timeline = trainings.timeline_of("megatron", chunks)
    trainings.assert_recorded_as_executed(training, timeline)
    found = [trainings.recognized(timeline, step) for step in range(3)]
    assert [(one.name, one.distance) for one in found] == [(name, 0)] * 3


@slow
@each
def test_dependencies_hold_and_data_is_received_before_use(chunks, name):
    timeline = trainings.timeline_of("megatron", chunks)
    assert name in timeline.ranks["schedule"].to_list()
    assert trainings.violated_dependencies(timeline) == []
    trainings.assert_received_before_used(timeline)


@slow
@each
def test_every_send_matches_its_receive_with_the_same_size(chunks, name):
    timeline = trainings.timeline_of("megatron", chunks)
    trainings.assert_every_send_has_its_receive(
        timeline, size_bytes=4 * 2 * 16 * 4, stages=4 * int(chunks), microbatches=8, runs=(3, 1)
    )
    assert name in timeline.ranks["schedule"].to_list()


@slow
@each
def test_optimizer_is_recorded_once_per_step_and_no_reduction_without_replicas(chunks, name):
    timeline = trainings.timeline_of("megatron", chunks)
    actions = 4 * 8 * int(chunks)
    assert trainings.counts_by_step(timeline, "optimizer") == {0: 4, 1: 4, 2: 4}
    assert trainings.counts_by_step(timeline, "grad_reduce") == {}
    assert trainings.counts_by_step(timeline, "forward") == {
        0: actions,
        1: actions,
        2: actions,
        None: actions,
    }
    assert trainings.counts_by_step(timeline, "backward") == {0: actions, 1: actions, 2: actions}
    assert name in timeline.ranks["schedule"].to_list()


@slow
def test_chunk_is_the_local_index_of_a_stage():
    chunks = trainings.timeline_of("megatron", "2").spans.select("stage", "chunk").drop_nulls().unique()
    assert sorted(chunks.rows()) == [(stage, stage // 4) for stage in range(8)]


@slow
def test_header_contains_schedule_and_coordinates():
    paths = sorted(Path(trainings.train("megatron", "2").directory).rglob("*.sscope"))
    header = read_contents(paths[1].read_bytes()).header
    assert header["framework"] == {"name": "megatron-core", "version": "0.16.1"}
    assert header["parallel"] == {
        "pp": 1, "dp": 0, "tp": 0, "cp": 0, "ep": 0, "pp_size": 4, "pp_ranks": [0, 1, 2, 3],
    }  # fmt: skip
    assert header["schedule"] == {
        "name": "interleaved", "class": "forward_backward_pipelining_with_interleaving",
        "microbatches": 8, "stages": 8, "local_stages": [1, 5],
    }  # fmt: skip


@slow
@pytest.mark.parametrize(("chunks", "other"), [("1", {"steps": "1:2"}), ("2", {"recorded": False})])
def test_recording_changes_neither_loss_nor_exit_code(chunks, other):
    recorded, less = trainings.train("megatron", chunks), trainings.train("megatron", chunks, **other)
    assert recorded.losses == less.losses
    assert len(recorded.losses) == 3 * 8


@slow
def test_only_the_selected_step_is_recorded():
    timeline = workflow.read(trainings.train("megatron", "1", steps="1:2").directory)
    assert timeline.steps["step"].unique().to_list() == [1]
    full = trainings.timeline_of("megatron", "1").spans
    is_of_training = pl.col("kind") != "other"  # Python collects its garbage when it likes
    of_step = full.filter((pl.col("step") == 1) & is_of_training)
    assert timeline.spans.filter(is_of_training).height == of_step.height


class Model:
    def parameters(self):
        return iter([types.SimpleNamespace(device="cpu")])


MODEL = Model()


@pytest.fixture
def head(recorder, patches):
    """The instrumented replacements; their handles are not torch's."""
    p2p_communication.WAITED.clear()
    for module in (combined_1f1b, schedules):
        megatron.instrument(module, recorder, patches)
    patches.observe(p2p_communication.Work, "wait", works_of(recorder).wait, recorder.guards["Megatron-core"])
    yield schedules
    assert recorder.guards["Megatron-core"].errors == 0


@pytest.fixture
def spans(recorder, tmp_path):
    """Return the recorded spans as tuples of kind and the given fields."""

    def read(*fields):
        recorder.stop("test")
        return trainings.spans_in(tmp_path, *fields)

    return read


def run(function, *, model=MODEL, work=lambda _: p2p_communication.Tensor(), **options):
    arguments = {
        "forward_step_func": work, "data_iterator": None, "model": model, "num_microbatches": 3,
        "p2p_communicator": p2p_communication.P2PCommunicator(1, 3),
    }  # fmt: skip
    return function(**arguments | options)


def of_kinds(rows, *kinds):
    return [row for row in rows if row[0] in kinds]


def test_latest_1f1b_is_recorded_with_stage_microbatch_and_step(head, spans):
    assert run(head.forward_backward_pipelining_without_interleaving) == ["loss"]
    assert run(head.forward_backward_pipelining_without_interleaving) == ["loss"]
    actions = of_kinds(spans("step", "stage", "microbatch", "chunk"), "forward", "backward", "step")
    once = [("forward", 0), ("forward", 1), ("backward", 0), ("forward", 2), ("backward", 1), ("backward", 2)]
    assert actions == [
        entry
        for step in (0, 1)
        for entry in (*((kind, step, 1, number, 0) for kind, number in once), ("step", step, -1, -1, -1))
    ]


def test_message_has_the_place_of_its_action(head, spans):
    run(head.forward_backward_pipelining_without_interleaving)
    rows = spans("stage", "microbatch", "peer", "bytes")
    kinds = ("send_forward", "recv_forward", "send_backward", "recv_backward")
    assert sorted(of_kinds(rows, *kinds)) == sorted(
        (kind, 1, number, peer, 8)
        for kind, peer in zip(kinds, (20, 0, 0, 20), strict=True)
        for number in range(3)
    )


def test_actions_and_messages_of_an_evaluation_belong_to_no_step(head, spans):
    run(head.forward_backward_pipelining_without_interleaving, forward_only=True)
    run(head.forward_backward_no_pipelining)
    rows = spans("step", "microbatch")
    assert of_kinds(rows, "forward") == [("forward", step, number) for step in (-1, 0) for number in range(3)]
    assert of_kinds(rows, "send_forward") == [("send_forward", -1, number) for number in range(3)]
    assert of_kinds(rows, "step") == [("step", 0, -1)]


def test_overlapped_pair_shares_one_number_and_sends_after_its_actions(head, spans):
    run(head.forward_backward_pipelining_with_interleaving, model=[MODEL, MODEL])
    rows = spans("stage", "microbatch", "pair", "start_ns", "end_ns", "wait_end_ns")
    first, forward = of_kinds(rows, "forward")
    (backward,) = of_kinds(rows, "backward")
    assert (first[1:4], forward[1:4], backward[1:4]) == ((1, 4, -1), (4, 4, 1), (1, 4, 1))
    received = {row[:3]: row[6] for row in of_kinds(rows, "recv_forward", "recv_backward")}
    sent = {row[:3]: row[4] for row in of_kinds(rows, "send_forward", "send_backward")}
    assert set(received) == {("recv_forward", 1, 4), ("recv_forward", 4, 4), ("recv_backward", 1, 4)}
    assert set(sent) == {("send_forward", 1, 4), ("send_forward", 4, 4), ("send_backward", 1, 4)}
    assert received["recv_forward", 4, 4] <= forward[4] <= forward[5] <= sent["send_forward", 4, 4]
    assert received["recv_backward", 1, 4] <= backward[4] <= backward[5] <= sent["send_backward", 1, 4]
    (rest,) = of_kinds(rows, "other")
    assert rest[1:3] == (1, 4)
    assert rest[4] >= backward[5]


@pytest.mark.usefixtures("head")
def test_merged_call_with_one_action_is_no_pair(recorder, spans):
    recorder.begin_step()
    made, _, grad = combined_1f1b.combined_forward_backward_step(
        lambda _: p2p_communication.Tensor(), None, MODEL, 1, None, [], None, None, None, None, None,
        current_microbatch=7, f_model_chunk_id=0,
    )  # fmt: skip
    assert made is not None
    assert grad is None
    assert spans("microbatch", "pair") == [("forward", 7, -1)]


def test_merged_call_receives_the_callables_of_the_schedule(monkeypatch, recorder, patches):
    received = {}

    def combined_forward_backward_step(**given):
        received.update(given)

    monkeypatch.setattr(combined_1f1b, "combined_forward_backward_step", combined_forward_backward_step)
    megatron.instrument(combined_1f1b, recorder, patches)
    recorder.begin_step()
    given = {name: lambda: None for name in ("pre_forward", "pre_backward", "post_forward", "post_backward")}
    combined_1f1b.combined_forward_backward_step(f_model=MODEL, b_model=MODEL, **given)
    assert all(received[name] is given[name] for name in given)


def test_several_modules_of_a_stage_are_one_backward(head, recorder, spans):
    recorder.begin_step()
    made, _ = head.forward_step(
        lambda _: {"vision": p2p_communication.Tensor()},
        None,
        MODEL,
        1,
        None,
        [],
        None,
        1,
        current_microbatch=5,
    )
    head.backward_step_multimodule({"vision": p2p_communication.Tensor()}, made, {}, None, "language")
    assert spans("microbatch", "chunk") == [("forward", 5, 0), ("backward", 5, 0)]


def test_backward_of_an_unknown_tensor_belongs_to_the_oldest_forward(head, recorder, spans):
    recorder.begin_step()
    for number in (3, 4):
        head.forward_step(lambda _: object(), None, MODEL, 1, None, [], None, 1, current_microbatch=number)
    for _ in range(3):
        head.backward_step(None, object(), None, None)
    assert [row[1] for row in of_kinds(spans("microbatch"), "backward")] == [3, 4, -1]


def test_backward_that_another_project_has_replaced_is_reported_as_missing(head, recorder, monkeypatch):
    run(head.forward_backward_pipelining_without_interleaving)
    assert megatron.REPLACED not in recorder.coverage.frameworks["Megatron-core"]["missing"]
    monkeypatch.setattr(head, "backward_step", lambda *_args, **_options: [p2p_communication.Tensor()])
    run(head.forward_backward_pipelining_without_interleaving, forward_only=True)
    assert megatron.REPLACED not in recorder.coverage.frameworks["Megatron-core"]["missing"]
    run(head.forward_backward_pipelining_without_interleaving)
    assert megatron.REPLACED in recorder.coverage.frameworks["Megatron-core"]["missing"]


def test_stages_of_a_schedule_of_another_project_are_unknown_and_reported(head, recorder, spans):
    def schedule():
        for number in range(2):
            made, _ = head.forward_step(
                lambda _: p2p_communication.Tensor(),
                None,
                MODEL,
                1,
                None,
                [],
                None,
                1,
                current_microbatch=number,
            )
            head.backward_step(None, made, None, None)

    run(head.forward_backward_pipelining_without_interleaving, forward_only=True)
    recorder.begin_step()
    schedule()
    assert recorder.coverage.frameworks["Megatron-core"]["missing"][-1:] == [megatron.OUTSIDE]
    outside = spans("step", "stage", "microbatch")
    assert [row for row in outside if row[1] == 0] == [
        (kind, 0, -1, number) for number in range(2) for kind in ("forward", "backward")
    ]


def test_unknown_arguments_are_recorded_as_unknown(monkeypatch, recorder, patches, spans):
    monkeypatch.setattr(schedules, "forward_step", lambda *args, **options: ("made", args, options))
    monkeypatch.setattr(schedules, "backward_step", lambda **options: ("grad", options))
    megatron.instrument(schedules, recorder, patches)
    recorder.begin_step()
    assert schedules.forward_step(1, batch=2) == ("made", (1,), {"batch": 2})
    assert schedules.backward_step(gradient=3) == ("grad", {"gradient": 3})
    assert spans("stage", "microbatch") == [("forward", -1, -1), ("backward", -1, -1)]


def test_communicator_without_a_pipeline_group_leaves_the_stage_unknown(head, spans, capsys):
    class Silent(p2p_communication.P2PCommunicator):
        pp_group = property(lambda self: None, lambda self, group: None)

    run(head.forward_backward_pipelining_without_interleaving, p2p_communicator=Silent(1, 3))
    rows = spans("stage", "microbatch")
    assert {row[1] for row in rows} == {-1}
    assert of_kinds(rows, "send_backward") == [("send_backward", -1, number) for number in range(3)]
    assert capsys.readouterr().err == ""


def test_training_error_propagates_and_the_next_step_is_complete(head, spans):
    def fail(_):
        raise FloatingPointError("loss is not finite")

    with pytest.raises(FloatingPointError, match="loss is not finite"):
        run(head.forward_backward_pipelining_without_interleaving, work=fail)
    run(head.forward_backward_no_pipelining)
    rows = spans("step", "microbatch")
    assert of_kinds(rows, "forward", "step") == [
        *(("forward", 1, number) for number in range(3)),
        ("step", 1, -1),
    ]
    assert of_kinds(rows, "recv_forward") == [("recv_forward", 0, 0)]


def test_train_step_is_the_step_if_it_exists(head, recorder, patches, spans):
    training = types.ModuleType("megatron.training.training")
    training.train_step = lambda: run(head.forward_backward_no_pipelining)
    megatron.instrument(training, recorder, patches)
    training.train_step()
    assert of_kinds(spans("step", "microbatch"), "step", "forward") == [
        *(("forward", 0, number) for number in range(3)),
        ("step", 0, -1),
    ]


def test_collectives_of_a_gradient_reduction_reduce_gradients(recorder, patches):
    """A reduction without any collective, such as with one replica, is not recorded."""
    collectives = collectives_of(recorder)
    depths = []

    class DistributedDataParallel:
        def finish_grad_sync(self):
            depths.append(collectives.reductions)
            return "reduced"

    finalize = types.ModuleType("megatron.core.distributed.finalize_model_grads")
    finalize.finalize_model_grads = lambda model: [chunk.finish_grad_sync() for chunk in model]
    parallel = types.ModuleType("megatron.core.distributed.distributed_data_parallel")
    parallel.DistributedDataParallel = DistributedDataParallel
    for module in (parallel, finalize):
        megatron.instrument(module, recorder, patches)
    recorder.begin_step()
    assert finalize.finalize_model_grads([DistributedDataParallel()] * 2) == ["reduced", "reduced"]
    assert DistributedDataParallel().finish_grad_sync() == "reduced"
    assert depths == [2, 2, 1]
    assert collectives.reductions == 0


def test_nested_optimizers_are_one_step(recorder, patches, spans):
    class MixedPrecisionOptimizer:
        def step(self):
            return True

    class FP32Optimizer(MixedPrecisionOptimizer):
        def step(self):
            return True

    class ChainedOptimizer(MixedPrecisionOptimizer):
        def step(self):
            return super().step()

    class DistributedOptimizer(MixedPrecisionOptimizer):  # has a step of its own in megatron-core 0.6 and 0.7
        def step(self):
            return super().step()

    classes = (MixedPrecisionOptimizer, FP32Optimizer, ChainedOptimizer)
    for name, owners in (("optimizer", classes), ("distrib_optimizer", (DistributedOptimizer,))):
        module = types.ModuleType(f"megatron.core.optimizer.{name}")
        vars(module).update({owner.__name__: owner for owner in owners})
        megatron.instrument(module, recorder, patches)
    recorder.begin_step()
    assert ChainedOptimizer().step() is True
    assert DistributedOptimizer().step() is True
    assert FP32Optimizer().step() is True
    assert spans() == [("optimizer",)] * 3


def test_nothing_is_recorded_outside_the_selected_steps(tmp_path, patches):
    recorder = Recorder(str(tmp_path), steps=StepRange(1, 2))
    megatron.instrument(schedules, recorder, patches)
    for _ in range(3):
        run(schedules.forward_backward_pipelining_without_interleaving)
    recorder.stop("test")
    assert {row[1] for row in trainings.spans_in(tmp_path, "step")} == {1}


def test_tensors_are_left_as_they_are(head):
    made = p2p_communication.Tensor()
    run(head.forward_backward_no_pipelining, work=lambda _: made)
    assert vars(made) == {}


def test_stop_restores_everything(recorder):
    modules = (schedules, p2p_communication, combined_1f1b, utils.ScheduleNode)
    before, patches = [dict(vars(module)) for module in modules], Patches()
    for module in (combined_1f1b, schedules, combined_1f1b, schedules):
        megatron.instrument(module, recorder, patches)
    assert schedules.forward_step is not before[0]["forward_step"]
    patches.undo()
    assert [dict(vars(module)) for module in modules] == before
    assert megatron_head.__name__ == "megatron_head"
