"""Releases of torch issue, return and wait for transfers differently; each is recorded as it is, or refused by name."""

# ruff: noqa: ARG002 - the signatures are torch's

from __future__ import annotations

import inspect
import pickle
import sys
import time
import types

import pytest
from torch.distributed import distributed_c10d
from torch.distributed.pipelining import schedules, stage

from fake_torch import FakeTorch, Group, OwnWork, RecordFunction, Tensor, Work
from framework_trainings import only_contents
from stagescope.record.format import NONE, SPAN_FIELDS
from stagescope.record.frameworks import torch_pipelining
from stagescope.record.frameworks.torch_actions import range_class
from stagescope.record.frameworks.torch_messages import assigned
from stagescope.record.patching import MARK, Patches
from stagescope.record.recorder import Recorder
from stagescope.vocabulary.kinds import BY_CODE

pytestmark = pytest.mark.usefixtures("way")

RELEASES = (5, 8, 10, 13, 14, 15)
FIELDS = [name for name, *_ in SPAN_FIELDS if name != "reserved"]


class Recorded:
    """A fake torch with the hooks installed."""

    def __init__(self, torch, directory, monkeypatch):
        for name, module in torch.modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        self.torch, self.directory = torch, directory
        self.recorder, self.patches = Recorder(str(directory)), Patches()
        torch_pipelining.instrument(torch.schedules, self.recorder, self.patches)

    def finish(self):
        self.patches.undo()
        self.recorder.stop("test")

    def spans(self):
        """Return the spans as dicts by field, in the order in which they were written."""
        self.finish()
        spans = only_contents(self.directory).spans
        columns = (spans[name].tolist() for name in FIELDS)
        rows = [dict(zip(FIELDS, row, strict=True)) for row in zip(*columns, strict=True)]
        return [{**row, "kind": BY_CODE[row["kind"]].name} for row in rows if row["kind"] in BY_CODE]

    def dropped(self):
        """Return how many spans were counted as dropped."""
        return only_contents(self.directory).dropped_spans

    def step(self, body, **options):
        """Run one step of one stage in which the schedule calls `body`."""
        stage = self.torch.stage._PipelineStageBase(**options)
        return self.torch.schedules.PipelineScheduleSingle(stage, body).step()


@pytest.fixture
def record(tmp_path, monkeypatch):
    made = []

    def record(torch):
        made.append(Recorded(torch, tmp_path / "recording", monkeypatch))
        return made[-1]

    yield record
    for recorded in made:
        recorded.finish()


def one_f_one_b(torch):
    """Return the body of a step of 1F1B with two micro-batches on a middle stage."""

    def body(schedule):
        stage, batch, wait = schedule._stage, torch.schedules._batch_p2p, torch.wait
        wait(batch(stage.get_fwd_recv_ops(0), desc="fwd_recv"))
        output = stage.forward_one_chunk(0, (), {})
        schedule._maybe_compute_loss(stage, output, None, 0)
        wait(batch(stage.get_fwd_send_ops(0) + stage.get_bwd_recv_ops(0)))
        stage.backward_one_chunk(0, loss=None, full_backward=True)
        wait(batch(stage.get_bwd_send_ops(0) + stage.get_fwd_recv_ops(1)))
        stage.forward_one_chunk(1, (), {})
        wait(batch(p2p_ops=stage.get_bwd_recv_ops(1)))
        stage.backward_one_chunk(1, full_backward=False)
        wait(batch(stage.get_bwd_send_ops(1)))
        stage.backward_weight_one_chunk(1)
        wait(batch([]))
        return "result"

    return body


MESSAGES = [
    ("recv_forward", 0, 0),
    ("send_forward", 0, 2),
    ("recv_backward", 0, 2),
    ("send_backward", 0, 0),
    ("recv_forward", 1, 0),
    ("recv_backward", 1, 2),
    ("send_backward", 1, 0),
]


def messages_in(spans):
    return [span for span in spans if "recv" in span["kind"] or "send" in span["kind"]]


@pytest.mark.parametrize("release", RELEASES)
def test_training_runs_as_without_recording_and_each_handle_is_waited_for_by_it_alone(record, release):
    results = []
    for is_recorded in (False, True):
        torch = FakeTorch(release)
        recorded = record(torch) if is_recorded else None
        stage = torch.stage._PipelineStageBase()
        schedule = torch.schedules.PipelineScheduleSingle(stage, one_f_one_b(torch))
        result = schedule.step()
        results.append((result, stage.done, [len(work.waited_ns) for work in torch.dist.works]))
    assert results[0] == results[1]
    actions = [(span["kind"], span["stage"], span["microbatch"]) for span in recorded.spans()]
    computed = [action for action in actions if action[0] in ("forward", "backward")]
    assert computed == [("forward", 1, 0), ("backward", 1, 0), ("forward", 1, 1)]
    assert ("backward_input", 1, 1) in actions
    assert ("backward_weight", 1, 1) in actions


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("coalesces", [False, True], ids=["gloo", "nccl"])
def test_every_message_is_recorded_with_the_wait_for_its_own_tensor(record, monkeypatch, release, coalesces):
    torch, tensors = FakeTorch(release), {}
    recorded = record(torch)
    group = Group("shared", coalesces=coalesces)
    check_waits(recorded, {"up": group, "down": group}, tensors, monkeypatch)


@pytest.mark.parametrize("release", [14, 15])
@pytest.mark.parametrize("coalesces", [False, True], ids=["gloo", "nccl"])
@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")], ids=["up first", "down first"])
def test_send_and_receive_in_groups_of_their_own_are_not_swapped(
    record, monkeypatch, release, coalesces, names
):
    torch, tensors = FakeTorch(release), {}
    recorded = record(torch)
    groups = {
        direction: Group(name, coalesces=coalesces)
        for direction, name in zip(("up", "down"), names, strict=True)
    }
    check_waits(recorded, groups, tensors, monkeypatch)


def check_waits(recorded, groups, tensors, monkeypatch):
    """Run a step and compare the recorded waits with those that the handles noted for the tensors of each message."""
    torch = recorded.torch
    stage_class = torch.stage._PipelineStageBase
    make = stage_class.operation
    directions = {"down": "forward", "up": "backward"}

    def operation(stage, op, peer, direction):
        operations = make(stage, op, peer, direction)
        kind = f"{op.__name__[1:]}_{directions[direction]}"
        number = sum(known == kind for known, _ in tensors.values())
        tensors[operations[0].tensor] = (kind, number)
        return operations

    monkeypatch.setattr(stage_class, "operation", operation)
    recorded.step(one_f_one_b(torch), groups=groups)
    waited_ns = {tensors[tensor]: work.waited_ns for work in torch.dist.works for tensor in work.tensors}
    found = messages_in(recorded.spans())
    assert sorted((span["kind"], span["microbatch"], span["peer"]) for span in found) == sorted(MESSAGES)
    assert {span["bytes"] for span in found} == {24}
    for span in found:
        waits_ns = waited_ns[span["kind"], span["microbatch"]]
        if not waits_ns:  # torch 2.7 discards the handle
            assert (torch.release, span["wait_start_ns"], span["wait_end_ns"]) == (5, NONE, NONE)
            continue
        assert span["wait_start_ns"] <= waits_ns[0] <= span["wait_end_ns"]
        assert span["start_ns"] <= span["wait_start_ns"]


def test_messages_without_a_handle_are_recorded_without_a_wait(record):
    torch = FakeTorch(14)
    recorded = record(torch)
    outside = Group("outside", has_this_rank=False)
    recorded.step(one_f_one_b(torch), groups={"up": outside, "down": Group("own")})
    found = messages_in(recorded.spans())
    assert len(found) == len(MESSAGES)
    assert all((span["wait_end_ns"] == NONE) == span["kind"].endswith("backward") for span in found)


def test_receive_without_a_wait_ends_when_its_data_is_used(record):
    torch, noted_ns = FakeTorch(14), []
    recorded = record(torch)

    def body(schedule):
        torch.schedules._batch_p2p(schedule._stage.get_fwd_recv_ops(0) + schedule._stage.get_fwd_recv_ops(1))
        noted_ns.append(time.monotonic_ns())
        schedule._stage.forward_one_chunk(0, ())

    recorded.step(body)
    receive, forward = recorded.spans()  # micro-batch 1 was never used: no one knows whether it arrived
    assert (receive["kind"], receive["microbatch"], receive["wait_end_ns"]) == ("recv_forward", 0, NONE)
    assert noted_ns[0] <= receive["end_ns"] == forward["start_ns"]
    assert recorded.dropped() == 1


def test_receives_of_a_step_that_failed_are_not_missing(record):
    torch = FakeTorch(13)
    recorded = record(torch)

    def fail(schedule):
        schedule._stage.forward_one_chunk(0, ())
        torch.schedules._batch_p2p(schedule._stage.get_bwd_recv_ops(0))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        recorded.step(fail)
    assert [span["kind"] for span in recorded.spans()] == ["forward"]
    assert recorded.dropped() == 0


@pytest.mark.parametrize(
    ("handles", "messages", "expected"),
    [
        (["a", "b"], [1, 2], [("a", (1,)), ("b", (2,))]),
        (["a"], [1, 2, 3], [("a", [1, 2, 3])]),
        (["a", "b"], [1, 2, 3], [(None, [1, 2, 3])]),
        ("a", [1], [("a", (1,))]),
        ("a", [1, 2], [(None, [1, 2])]),
        (None, [1], [(None, (1,))]),
        ([], [1, 2], [(None, [1, 2])]),
    ],
)
def test_handle_is_assigned_only_to_messages_that_are_certain(handles, messages, expected):
    assert assigned(handles, messages) == expected


def test_waits_of_a_handle_that_overrides_wait_are_observed_once(record):
    torch = FakeTorch(13, OwnWork)
    recorded = record(torch)
    recorded.step(one_f_one_b(torch))
    assert all(span["wait_end_ns"] != NONE for span in messages_in(recorded.spans()))
    assert not hasattr(vars(OwnWork)["wait"], MARK)
    assert not hasattr(vars(Work)["wait"], MARK)


def test_operations_and_handles_are_left_as_they_are(record):
    torch, operations = FakeTorch(13), []
    recorded = record(torch)

    def body(schedule):
        operations.extend(schedule._stage.get_fwd_recv_ops(0))
        return torch.schedules._batch_p2p(operations)

    works = recorded.step(body)
    assert works == torch.dist.works
    assert [type(work) for work in works] == [Work]
    assert sorted(vars(operations[0])) == ["group", "group_peer", "op", "peer", "tag", "tensor"]
    assert vars(works[0]).keys() == {"tensors", "waited_ns"}


def test_public_function_that_torch_compares_by_identity_is_left_alone(record):
    """torch.compile of torch 2.15 looks up batch_isend_irecv by identity."""
    for release in RELEASES:
        torch = FakeTorch(release)
        before = torch.dist.batch_isend_irecv
        recorded = record(torch)
        assert (torch.dist.batch_isend_irecv is before) == (release >= 8)
        recorded.patches.undo()
        assert torch.dist.batch_isend_irecv is before


@pytest.mark.parametrize("release", [10, 13, 15])
def test_reduction_without_a_collective_is_no_span(record, release):
    recorded = record(FakeTorch(release))
    recorded.step(lambda schedule: schedule._stage.perform_reduce_grad(2))
    recorded.recorder.timer.end(recorded.recorder.timer.begin(), 5)
    assert [span["kind"] for span in recorded.spans()] == ["optimizer"]


@pytest.mark.parametrize("custom", [False, True])
def test_empty_range_of_a_reduction_is_none_unless_a_custom_function_performs_it(record, custom):
    """With finalize_gradients=False, torch 2.15 enters the range and does nothing in it."""
    torch = FakeTorch(15)
    recorded = record(torch)

    def body(_):
        with torch.schedules.record_function("PP:1REDUCE_GRAD"):
            pass

    stage = torch.stage._PipelineStageBase()
    actions = ["REDUCE_GRAD"] if custom else []
    torch.schedules.PipelineScheduleMulti(stage, body, custom=actions).step()
    recorded.recorder.timer.end(recorded.recorder.timer.begin(), 5)
    assert [span["kind"] for span in recorded.spans()] == ["grad_reduce"] * custom + ["optimizer"]


def test_methods_that_a_stage_overrides_are_observed_whatever_their_parameters(record):
    torch = FakeTorch(13)
    recorded = record(torch)

    class OwnStage(torch.stage._PipelineStageBase):
        def forward_one_chunk(self, *args, **kwargs):
            return super().forward_one_chunk(*args, **kwargs)

        def backward_one_chunk(self, number, **options):
            return None

        def get_fwd_send_ops(self, *args):
            return self.operation(torch.dist.isend, 2, "down")

    def body(schedule):
        schedule._stage.forward_one_chunk(3, ())
        torch.wait(torch.schedules._batch_p2p(schedule._stage.get_fwd_send_ops(3)))
        schedule._stage.backward_one_chunk(3, full_backward=False)

    torch.schedules.PipelineScheduleSingle(OwnStage(), body).step()
    found = [(span["kind"], span["microbatch"]) for span in recorded.spans()]
    assert found == [("forward", 3), ("send_forward", 3), ("backward_input", 3)]
    assert not any(hasattr(value, MARK) for value in vars(OwnStage).values())


def test_evaluation_belongs_to_no_step(record):
    torch = FakeTorch(13)
    recorded = record(torch)

    def body(schedule):
        schedule._stage.forward_one_chunk(0, ())
        schedule._stage.backward_one_chunk(0)

    stage = torch.stage._PipelineStageBase(has_backward=False)
    torch.schedules.PipelineScheduleSingle(stage, body).eval()
    assert [(span["kind"], span["step"]) for span in recorded.spans()] == [("forward", NONE)]


def test_step_without_an_action_is_reported(record, capsys):
    recorded = record(FakeTorch(13))
    recorded.step(lambda schedule: None)
    assert "torch.distributed.pipelining: step 0 ended without a recorded action" in capsys.readouterr().err


def test_exception_of_a_transfer_reaches_the_training_and_the_next_step_is_recorded(record):
    torch = FakeTorch(13)
    recorded = record(torch)

    def fail(schedule):
        schedule._stage.forward_one_chunk(0, ())
        torch.dist.isend = None
        torch.schedules._batch_p2p(
            [*schedule._stage.get_fwd_send_ops(0), *schedule._stage.get_fwd_recv_ops(0)]
        )

    with pytest.raises(TypeError):
        recorded.step(fail)
    recorded.step(lambda schedule: schedule._stage.forward_one_chunk(1, ()))
    found = [(span["kind"], span["microbatch"]) for span in recorded.spans()]
    assert found == [("forward", 0), ("forward", 1)]
    assert recorded.recorder.coverage.frameworks["torch.distributed.pipelining"].get("errors") is None


@pytest.mark.parametrize(
    ("remove", "named"),
    [
        (
            lambda torch: delattr(torch.schedules, "_batch_p2p"),
            "`torch.distributed.pipelining.schedules:_batch_p2p`",
        ),
        (
            lambda torch: delattr(torch.stage._PipelineStageBase, "get_bwd_send_ops"),
            "get_bwd_send_ops` not found",
        ),
        (lambda torch: setattr(torch.schedules, "record_function", print), "cannot be observed"),
        (lambda torch: delattr(torch.optimizers, "register_optimizer_step_pre_hook"), "cannot be observed"),
    ],
    ids=["function", "method", "class of ranges", "hooks of optimizers"],
)
def test_release_that_does_not_fit_is_named_and_left_alone(record, capsys, remove, named):
    torch = FakeTorch(13)
    remove(torch)
    recorded = record(torch)
    printed = capsys.readouterr().err
    assert named in printed
    assert "torch.distributed.pipelining 2.13.0" in printed
    assert recorded.patches.replaced == []
    assert torch.optimizers.hooks == []


@pytest.mark.parametrize("release", RELEASES)
def test_recording_states_what_a_release_does_not_show(record, release):
    recorded = record(FakeTorch(release))
    missing = recorded.recorder.coverage.frameworks["torch.distributed.pipelining"]["missing"]
    expected = ["gradient reductions"] * (release < 10) + ["parameter gathering (UNSHARD, RESHARD)"] * (
        release < 9
    )
    assert missing == expected


class TestRanges:
    """The class that replaces record_function in the schedules."""

    def range_of(self, torch, name, body=lambda: None):
        with torch.schedules.record_function(name) as entered:
            body()
        return entered

    def test_it_is_a_record_function(self, record):
        torch = FakeTorch(13)
        recorded = record(torch)
        ranges = torch.schedules.record_function
        assert issubclass(ranges, RecordFunction)
        entered = self.range_of(torch, "PP:1F0")
        assert isinstance(entered, RecordFunction)
        assert (ranges.__name__, ranges.__doc__) == ("record_function", RecordFunction.__doc__)
        assert inspect.signature(ranges) == inspect.signature(RecordFunction)
        assert pickle.loads(pickle.dumps(ranges)) is ranges  # noqa: S301 - the dump of the line itself
        assert vars(entered).keys() == {"name", "args"}
        recorded.patches.undo()
        assert torch.schedules.record_function is RecordFunction
        assert not hasattr(vars(ranges)["__enter__"], MARK)

    @pytest.mark.parametrize("broken", ["emit", "timer", "new_pair", "name_id"])
    @pytest.mark.parametrize("name", ["PP:1F0", "PP:(1F6;6B2)OVERLAP_F_B", "PP:1UNSHARD", "Forward 1"])
    def test_a_broken_recorder_does_not_reach_the_training(self, record, monkeypatch, broken, name):
        torch = FakeTorch(13)
        recorded = record(torch)
        monkeypatch.setattr(RecordFunction, "entered", ())
        monkeypatch.setattr(recorded.recorder, broken, None)
        for _ in range(20):
            self.range_of(torch, name)
        assert RecordFunction.entered == (name, f"end of {name}") * 20
        monkeypatch.undo()

    def test_what_torch_returns_and_raises_is_let_through(self):
        class Swallowing(RecordFunction):
            def __exit__(self, exc_type, exc_value, traceback):
                return True

        torch, recorder = types.SimpleNamespace(schedules=types.ModuleType("schedules")), None
        torch.schedules.record_function = range_class(Swallowing, "schedules")
        assert recorder is None
        assert isinstance(self.range_of(torch, "PP:1F0", lambda: 1 / 0), Swallowing)

    def test_actions_that_bypass_the_stage_are_recorded_with_their_pair(self, record):
        torch = FakeTorch(13)
        recorded = record(torch)

        def body(schedule):
            self.range_of(torch, "PP:(1F6;6B2)OVERLAP_F_B")
            self.range_of(torch, "PP:1UNSHARD")
            self.range_of(torch, "PP:2F0", lambda: schedule._stage.forward_one_chunk(0, ()))

        recorded.step(body, stage_index=2)
        found = [(span["kind"], span["stage"], span["microbatch"], span["pair"]) for span in recorded.spans()]
        assert found == [
            ("forward", 1, 6, 1),
            ("backward", 6, 2, 1),
            ("other", 1, NONE, NONE),
            ("forward", 2, 0, NONE),
        ]

    def test_failed_action_is_not_recorded(self, record):
        torch = FakeTorch(13)
        recorded = record(torch)

        def body(schedule):
            with pytest.raises(ZeroDivisionError):
                self.range_of(torch, "PP:(1F6;6B2)OVERLAP_F_B", lambda: 1 / 0)
            schedule._stage.forward_one_chunk(0, ())

        recorded.step(body)
        assert [(span["kind"], span["pair"]) for span in recorded.spans()] == [("forward", NONE)]


def test_fake_has_the_functions_of_torch():
    """The tests above are only as good as the fake: compare its signatures with those of the installed torch."""
    fake = FakeTorch(13)
    assert isinstance(Tensor().nbytes, int)
    for name in ("_batch_p2p", "_wait_batch_p2p"):
        assert names_of(getattr(fake.schedules, name)) == names_of(getattr(schedules, name))
    assert names_of(fake.dist.batch_isend_irecv) == names_of(distributed_c10d.batch_isend_irecv)
    for name, method in vars(fake.stage._PipelineStageBase).items():
        if "ops" in name or "chunk" in name:
            assert names_of(method) == names_of(getattr(stage._PipelineStageBase, name)), name
    assert RecordFunction.__name__ == schedules.record_function.__name__


def names_of(function):
    return list(inspect.signature(function).parameters)
