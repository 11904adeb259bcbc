"""Inferring the actions of a schedule without annotations."""

import pytest

from ingest.kineto.planted_traces import backward_operator, flow, in_us, mark, operator, tables_of
from stagescope.ingest.kineto.inferred_actions import infer_spans


@pytest.fixture
def inferred(tmp_path):
    return lambda *events: infer_spans(tables_of(tmp_path, events))


FORWARDS = [
    mark("gloo:recv", 0, 100),
    operator("aten::mm", 100, 200),
    operator("c10d::send", 200, 210),
    mark("gloo:send", 205, 900),
    mark("gloo:recv", 215, 300),
    operator("aten::mm", 300, 400),
    operator("c10d::send", 400, 410),
]
BACKWARDS = [
    mark("gloo:recv", 410, 500),
    backward_operator(500, 700),
    operator("c10d::send", 700, 710),
    mark("gloo:recv", 710, 800),
    backward_operator(800, 1000),
]
FLOWS = [*flow(1, 110, 510), *flow(2, 310, 810)]


def test_flows_match_backwards_to_forwards(inferred):
    found = inferred(*FORWARDS, *BACKWARDS, operator("c10d::send", 1000, 1010), *FLOWS)
    assert in_us(found.actions, "order") == [
        ("forward", 100, 200, 0), ("forward", 300, 400, 1), ("backward", 500, 700, 0), ("backward", 800, 1000, 1),
    ]  # fmt: skip
    assert found.unmatched == 0
    assert found.actions["edge_error_ns"].to_list() == [0, 0, 0, 0]


def test_an_end_without_a_following_event_has_a_large_stated_error(inferred):
    last = inferred(*FORWARDS, *BACKWARDS, *FLOWS).actions.sort("start_ns")[-1]
    ((_, _, end_us),) = in_us(last)
    assert 1000 < end_us <= 1200
    assert last["edge_error_ns"][0] >= (end_us - 1000) * 1000


def test_a_receive_belongs_to_the_next_action_and_a_send_to_the_previous_one(inferred):
    found = inferred(*FORWARDS, *BACKWARDS, *FLOWS).transfers
    kinds = found.select("kind", "order").rows()
    assert kinds == [
        ("recv_forward", 0), ("send_forward", 0), ("recv_forward", 1), ("recv_backward", 0), ("recv_backward", 1),
    ]  # fmt: skip


def test_a_reused_flow_id_belongs_to_the_last_forward_before_the_backward(inferred):
    later = [{**one, "ts": one["ts"] + 10_000} for one in [*FORWARDS, *BACKWARDS, *FLOWS]]
    found = inferred(*FORWARDS, *BACKWARDS, *FLOWS, *later)
    backwards = found.actions.filter(found.actions["kind"] == "backward").sort("start_ns")
    assert backwards["order"].to_list() == [0, 1, 2, 3]


def test_a_backward_without_a_forward_is_counted(inferred):
    found = inferred(*FORWARDS, *BACKWARDS, *flow(1, 110, 510), *flow(2, 310, 320), *flow(3, -50, 810))
    assert found.unmatched == 1
    assert len(found.actions.filter(found.actions["kind"] == "backward")) == 1


def test_splitting_the_batch_belongs_to_no_action(inferred):
    split = [operator("aten::tensor_split", 0, 40), operator("aten::slice", 10, 20)]
    found = inferred(*split, operator("aten::mm", 100, 200), *BACKWARDS, *flow(1, 110, 510))
    (kind, start_us, _), *_ = in_us(found.actions)
    assert (kind, start_us) == ("forward", 70)


def test_a_backward_begins_after_its_loss(inferred):
    found = inferred(
        operator("aten::mm", 0, 100),
        operator("aten::mse_loss", 110, 150),
        operator("aten::ones_like", 900, 910),
        backward_operator(920, 1000),
        *flow(1, 50, 930),
    )
    rows = {kind: (start, end) for kind, start, end in in_us(found.actions)}
    assert rows["loss"][1] == 150
    start_us = rows["backward"][0]
    assert 150 <= start_us <= 250
    error_ns = found.actions.filter(found.actions["kind"] == "backward")["edge_error_ns"][0]
    assert error_ns >= 1000 * max(start_us - 150, 900 - start_us)


def test_operators_before_the_splitting_of_the_batch_belong_to_no_action(inferred):
    """The training creates or loads its batch with operators that record no graph."""
    found = inferred(
        operator("aten::randn", -900, -600),
        operator("aten::tensor_split", -400, -360),
        operator("aten::embedding", -300, -250),
        operator("aten::mm", -200, -100),
        *BACKWARDS,
        *flow(1, -190, 510),
    )
    (kind, start_us, _), *_ = in_us(found.actions)
    assert kind == "forward"
    assert -360 <= start_us <= -300


def test_a_split_inside_the_model_belongs_to_its_forward(inferred):
    split = operator("aten::tensor_split", 110, 140)
    found = inferred(
        operator("aten::mm", 0, 100), split, operator("aten::mm", 150, 400), *BACKWARDS, *flow(1, 10, 510)
    )
    (_, start_us, _), *_ = in_us(found.actions)
    assert start_us <= 0


def test_a_forward_with_an_unrecognized_loss_is_entirely_uncertain(inferred):
    loss = [
        operator("aten::sub", 100, 120),
        operator("aten::abs", 120, 150),
        operator("aten::mean", 150, 170),
    ]
    found = inferred(
        mark("gloo:recv", -50, 0),
        operator("aten::mm", 0, 100),
        *loss,
        backward_operator(200, 300),
        *flow(1, 50, 210),
    )
    forward, backward = found.actions.sort("start_ns").to_dicts()
    assert forward["holds_loss"]
    assert not backward["holds_loss"]
    assert forward["edge_error_ns"] >= 70_000


@pytest.mark.parametrize("pause_us", [1, 60, 300, 3000])
def test_a_backward_does_not_begin_before_the_previous_forward_ends(inferred, pause_us):
    """A rank runs one action at a time: uncertain edges must not make actions overlap."""
    began_us = 200 + pause_us
    found = inferred(
        mark("gloo:recv", -50, 0),
        operator("aten::mm", 0, 200),
        backward_operator(began_us, began_us + 100),
        *flow(1, 50, began_us + 10),
    )
    forward, backward = found.actions.sort("start_ns").to_dicts()
    assert forward["end_ns"] <= backward["start_ns"] <= backward["mark_start_ns"]


def test_work_of_the_schedule_after_the_last_backward_is_excluded(inferred):
    """The schedule divides the gradients by the number of micro-batches."""
    found = inferred(
        *FORWARDS, *BACKWARDS, operator("aten::div_", 1040, 1050), operator("aten::div_", 1060, 1070), *FLOWS
    )
    last = found.actions.sort("start_ns")[-1]
    ((_, _, end_us),) = in_us(last)
    assert 1000 <= end_us <= 1040
    assert last["edge_error_ns"][0] >= 1000 * max(end_us - 1000, 1040 - end_us)


def test_the_stated_error_reaches_back_to_the_end_of_the_previous_action(inferred):
    """A first stage goes from a backward to the next forward without a transfer, or is descheduled in between."""
    found = inferred(
        operator("aten::mm", 0, 100),
        *BACKWARDS[:2],
        operator("aten::mm", 3000, 3100),
        backward_operator(4000, 4100),
        *flow(1, 10, 510),
        *flow(2, 3010, 4010),
    )
    (late,) = found.actions.filter(
        (found.actions["order"] == 1) & (found.actions["kind"] == "forward")
    ).to_dicts()
    assert late["edge_error_ns"] >= 2_000_000


def test_without_flows_nothing_is_inferred(inferred):
    assert inferred(*FORWARDS, *BACKWARDS).actions.is_empty()
