"""How many functions of the recorder a training calls for each action, message and collective.

Between the operations of a training each of them costs about 1 us, so their number is what recording costs. Times are
measured by benchmarks/recorded_steps.py and framework_steps.py; numbers of calls are the same on every machine.
"""

from __future__ import annotations

import gc
import os
import sys
import types

import pytest

import fake_deepspeed
from fake_torch import FakeTorch
from megatron_head import p2p_communication, schedules
from stagescope import record
from stagescope.record import wrappers
from stagescope.record.frameworks import collectives as collectives_module
from stagescope.record.frameworks import deepspeed, megatron, torch_pipelining
from stagescope.record.frameworks.collectives import collectives_of
from stagescope.record.frameworks.groups import Group
from stagescope.record.frameworks.torch_distributed import Issue
from stagescope.record.frameworks.works import works_of
from stagescope.record.hooks import Guard, observed, prepared

OWN = os.path.dirname(record.__file__) + os.sep

pytestmark = pytest.mark.usefixtures("way")


def calls_of(function, *args, **kwargs):
    """Return how many functions of the recorder a call of `function` calls."""
    found = 0

    def count(frame, event, _):
        nonlocal found
        found += event == "call" and frame.f_code.co_filename.startswith(OWN)

    before = sys.getprofile()
    gc.disable()  # a collection calls the recorder, which records it
    sys.setprofile(count)
    try:
        function(*args, **kwargs)
    finally:
        sys.setprofile(before)
        gc.enable()
    return found


def calls_per_microbatch(train):
    """Return the calls that each further micro-batch adds to a step.

    The first steps prepare for it, and one with another number of micro-batches describes that.
    """
    found = []
    for microbatches in (2, 6):
        for _ in range(3):
            train(microbatches)
        found.append(calls_of(train, microbatches))
    return (found[1] - found[0]) / 4


@pytest.fixture
def of_megatron(recorder, patches):
    megatron.instrument(schedules, recorder, patches)

    def train(microbatches):
        schedules.forward_backward_no_pipelining(
            forward_step_func=lambda _: p2p_communication.Tensor(), data_iterator=None,
            model=types.SimpleNamespace(parameters=lambda: iter(())), num_microbatches=microbatches,
        )  # fmt: skip

    return train


@pytest.fixture
def of_deepspeed(recorder, patches):
    """Steps of the last stage but one: an instruction that receives or sends moves one tensor."""
    engine = fake_deepspeed.make_engine()
    tensor, send, receive = fake_deepspeed.Tensor(), engine.p2p.send, engine.p2p.recv
    engine.PipelineEngine._INSTRUCTION_MAP |= {
        fake_deepspeed.INSTRUCTIONS["RecvActivation"]: lambda self, buffer_id: engine.p2p.recv(tensor, 0),
        fake_deepspeed.INSTRUCTIONS["SendActivation"]: lambda self, buffer_id: engine.p2p.send(tensor, 2),
    }
    deepspeed.instrument(engine, recorder, patches)
    assert (engine.p2p.send, engine.p2p.recv) != (send, receive)
    recorder.begin_step(0)

    def train_with(names):
        def train(microbatches):
            commands = [(name, 0) for name in names * microbatches]
            engine.PipelineEngine()._exec_schedule(fake_deepspeed.TrainSchedule(commands))

        return train

    yield train_with
    assert all(guard.errors == 0 for guard in recorder.guards.values())


@pytest.fixture
def of_torch(recorder, patches, monkeypatch):
    """Steps of one micro-batch after the other, as 1F1B runs them after its warm-up, on one of three stages."""
    torch = FakeTorch(13)
    for name, module in torch.modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(wrappers, "is_traced", bool)  # a function of torch, which is not counted
    torch_pipelining.instrument(torch.schedules, recorder, patches)
    stage_class, wait = torch.stage._PipelineStageBase, torch.wait
    make = stage_class.operation
    monkeypatch.setattr(
        stage_class,
        "operation",
        lambda self, op, peer, way: make(self, op, peer, way) if peer in range(self.num_stages) else [],
    )

    def train(number):
        stage = stage_class(number)

        def body(schedule):
            issue = torch.schedules._batch_p2p
            for index in range(schedule.microbatches):
                wait(issue(stage.get_fwd_recv_ops(index)))
                schedule._maybe_compute_loss(stage, stage.forward_one_chunk(index, ()), None, index)
                wait(issue(stage.get_fwd_send_ops(index) + stage.get_bwd_recv_ops(index)))
                stage.backward_one_chunk(index)
                wait(issue(stage.get_bwd_send_ops(index)))

        schedule = torch.schedules.PipelineScheduleSingle(stage, body)

        def step(microbatches):
            schedule.microbatches = microbatches
            schedule.step()

        return step

    yield train
    assert all(guard.errors == 0 for guard in recorder.guards.values())


def test_a_micro_batch_of_torch_takes_the_calls_of_its_two_actions_and_four_messages(of_torch, way):
    """One call for each action, one for the loss that is computed elsewhere, and for each message two where it is
    created and two where it is waited for, besides two for each of three batches. The extension takes none.
    """
    assert calls_per_microbatch(of_torch(1)) <= (0 if way == "compiled" else 2 + 1 + 4 * 4 + 3 * 2)


def test_a_message_that_does_not_exist_takes_one_call_where_it_would_be_created(of_torch):
    """An end of the pipeline has two messages less, and a batch that is empty takes one call."""
    first, last = calls_per_microbatch(of_torch(0)), calls_per_microbatch(of_torch(2))
    assert first <= 2 + 1 + 2 * 4 + 2 + 2 + 2
    assert last <= 2 + 1 + 2 * 4 + 2 + 2 + 2 + 1


def test_an_action_of_megatron_takes_at_most_four_calls(of_megatron):
    assert calls_per_microbatch(of_megatron) <= 2 * 4


def test_an_action_of_deepspeed_takes_at_most_two_calls(of_deepspeed, way):
    train = of_deepspeed(["ForwardPass", "BackwardPass"])
    assert calls_per_microbatch(train) <= (0 if way == "compiled" else 2 * 2)


def test_a_transfer_of_deepspeed_takes_at_most_fourteen_calls(of_deepspeed, way):
    """Half of them are of the instruction, half of the function that moves the tensor. The extension takes none."""
    train = of_deepspeed(["RecvActivation", "ForwardPass", "SendActivation"])
    assert calls_per_microbatch(train) <= (0 if way == "compiled" else 2 * 14 + 2)


class Work:
    def wait(self):
        return True


class ProcessGroup:
    def allreduce(self, tensors, opts):
        del tensors, opts
        return Work()


@pytest.fixture
def all_reduce(recorder, monkeypatch):
    """An all-reduce as ``dist.all_reduce`` performs it, in a group of two ranks."""
    collectives, guard = collectives_of(recorder), Guard(recorder, "torch.distributed")
    monkeypatch.setattr(collectives_module, "group_of", lambda _: Group("ranks", 2))
    issue = prepared(lambda _: Issue(collectives, "all_reduce"))
    method = observed(ProcessGroup.allreduce, issue, guard, collectives.counts_only)
    works_of(recorder).observe_classes(types.SimpleNamespace(observe=lambda *_: None), guard)
    monkeypatch.setattr(Work, "wait", observed(Work.wait, works_of(recorder).wait, guard))
    group, tensor = ProcessGroup(), types.SimpleNamespace(nbytes=16)
    recorder.begin_step(0)
    recorder.emit(1, 1, 2)

    def run():
        method(group, [tensor], types.SimpleNamespace(asyncOp=False)).wait()

    run()
    yield run
    assert guard.errors == 0


def test_a_collective_inside_an_action_takes_at_most_three_calls(all_reduce, recorder, way):
    """The wrappers of its issue and of the wait for it, which the extension leaves out, and what counts it."""
    recorder.action = (1, 0, 0, 0)
    assert calls_of(all_reduce) == (2 if way == "compiled" else 3)


def test_a_recorded_collective_takes_at_most_eleven_calls(all_reduce):
    assert calls_of(all_reduce) <= 11
