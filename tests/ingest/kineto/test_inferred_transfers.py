"""Matching transfers to actions, and excluding the initial exchange of shapes."""

import pytest

from ingest.kineto.planted_traces import backward_operator, flow, in_us, mark, operator, tables_of
from stagescope.ingest.kineto.inferred_actions import infer_spans


@pytest.fixture
def inferred(tmp_path):
    return lambda *events: infer_spans(tables_of(tmp_path, events))


def receive(at_us):
    return [operator("c10d::recv_", at_us, at_us + 5), mark("gloo:recv", at_us + 2, at_us + 50)]


def send(at_us):
    return [operator("c10d::send", at_us, at_us + 5), mark("gloo:send", at_us + 2, at_us + 50)]


def forward(at_us):
    return [*receive(at_us), operator("aten::mm", at_us + 60, at_us + 160), *send(at_us + 165)]


def backward(number, at_us):
    """Return the backward of the forward that began `number` ms after the trace."""
    ends = flow(number, 1000 * number + 100, at_us + 70)
    return [*receive(at_us), backward_operator(at_us + 60, at_us + 160), *send(at_us + 165), *ends]


STEP = [*forward(1000), *forward(2000), *backward(1, 3000), *backward(2, 4000)]


def kinds(found):
    return found.transfers.select("kind", "order").rows()


TRANSFERS = [
    ("recv_forward", 0), ("send_forward", 0), ("recv_forward", 1), ("send_forward", 1),
    ("recv_backward", 0), ("send_backward", 0), ("recv_backward", 1), ("send_backward", 1),
]  # fmt: skip


def test_every_action_has_its_receive_and_its_send(inferred):
    found = inferred(*STEP)
    assert kinds(found) == TRANSFERS
    assert found.left_out == 0


@pytest.mark.parametrize(
    "between", [mark("Optimizer.step#SGD.step", 4300, 4400), operator("aten::tensor_split", 4300, 4310)]
)
def test_transfers_of_an_evaluation_belong_to_no_action(inferred, between):
    """The forwards of an evaluation record no graph and have no backward."""
    found = inferred(*STEP, between, *forward(5000), *forward(6000))
    assert kinds(found) == TRANSFERS
    assert found.left_out == 4


def test_transfers_of_an_evaluation_before_the_step_belong_to_no_action(inferred):
    found = inferred(*forward(-2000), *forward(-1000), *STEP)
    assert kinds(found) == TRANSFERS
    assert found.left_out == 4


def test_the_initial_shape_exchange_belongs_to_no_step(inferred):
    """In the first step of a run stages exchange shapes: first a length, then the bytes."""
    bytes_made = [operator("aten::set_", -2930, -2925), *send(-2920), *send(-2850)]
    first = [*receive(-3110), operator("aten::mm", -3050, -2950), *bytes_made]
    made_again = [operator("aten::set_", -1830, -1825), *send(-1820), *send(-1750)]
    answer = [*receive(-2010), backward_operator(-1950, -1850), *made_again, *flow(7, -3000, -1900)]
    found = inferred(*first, *answer, *STEP)
    assert kinds(found) == [(kind, order + 1) for kind, order in TRANSFERS]
    assert [kind for kind, *_ in in_us(found.actions)] == ["forward", "forward", "backward", "backward"]
    assert found.left_out == 6


def test_packing_by_data_workers_is_not_a_shape_exchange(inferred):
    """A data loader also makes tensors from bytes: before the forward, which is followed by a single send."""
    found = inferred(operator("aten::set_", 900, 905), *STEP)
    assert kinds(found) == TRANSFERS


def test_a_transfer_that_only_one_of_many_actions_has_belongs_to_none(inferred):
    """A first stage has no receives for its forwards."""
    events = [*STEP, *forward(5000), *backward(5, 6000)]
    received = [1000, 1002, 2000, 2002, 5000, 5002]
    found = inferred(*receive(990), *(event for event in events if event["ts"] not in received))
    assert "recv_forward" not in [kind for kind, _ in kinds(found)]
    assert found.left_out == 1
