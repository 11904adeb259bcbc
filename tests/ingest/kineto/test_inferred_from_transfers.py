"""Inferring actions of 1F1B from the order of transfers: planted traces without operators."""

import pytest

from ingest.kineto.planted_traces import in_us, mark, tables_of
from stagescope.ingest.kineto.facts import RankFacts
from stagescope.ingest.kineto.inferred_from_transfers import USUAL_NS, infer_from_transfers

BEHIND_US, BEFORE_US = (round(ns / 1000) for ns in USUAL_NS.values())


@pytest.fixture
def inferred(tmp_path):
    def infer(*events, rank=1, groups=((0, 1, 2),)):
        facts = RankFacts(rank, len(groups[0]), "h", None, has_epoch=True, groups=groups)
        return infer_from_transfers(tables_of(tmp_path, events), facts)

    return infer


def send(start_us, end_us):
    return mark("gloo:send", start_us, end_us)


def receive(start_us, end_us):
    return mark("gloo:recv", start_us, end_us)


def ms(*letters, since=0):
    """Return a transfer per letter; transfers take no time, and each action between them takes 10 ms."""
    kinds = {"S": send, "R": receive}
    return [kinds[one]((since + at) * 10_000, (since + at) * 10_000) for at, one in enumerate(letters)]


MIDDLE = [
    receive(0, 1_000), send(11_000, 31_000), receive(11_000, 12_000),  # F0
    send(32_000, 32_500), receive(32_000, 33_000),  # F1, then the wait for F0's send
    send(53_000, 53_500), receive(53_500, 70_000),  # B0
    send(90_000, 95_000),  # B1
]  # fmt: skip
"""A middle rank of three, two micro-batches."""


def test_an_action_is_between_its_receive_and_its_send(inferred):
    found = inferred(*MIDDLE)
    assert in_us(found.actions, "order")[0] == ("forward", 1_000 + BEHIND_US, 11_000 - BEFORE_US, 0)
    assert in_us(found.actions, "order")[2] == ("backward", 33_000 + BEHIND_US, 53_000 - BEFORE_US, 0)
    assert found.transfers["kind"].to_list() == [
        "recv_forward", "send_forward", "recv_forward", "send_forward", "recv_backward", "send_backward",
        "recv_backward", "send_backward",
    ]  # fmt: skip
    assert found.transfers["order"].to_list() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert found.unmatched == 0


def test_an_action_next_to_a_wait_for_a_send_has_the_typical_duration(inferred):
    actions = inferred(*MIDDLE).actions
    (_, start_us, end_us, _) = in_us(actions, "order")[1]
    assert (start_us, end_us) == (12_000 + BEHIND_US, 22_000)
    assert actions["edge_error_ns"][1] == 9_000_000  # it may have ended as late as the wait


def test_two_actions_without_a_transfer_between_them_share_an_uncertain_interval(inferred):
    last = [receive(0, 1_000), send(31_000, 31_100), receive(31_100, 40_000), send(70_000, 70_100)]
    found = inferred(*last, rank=2)
    actions = in_us(found.actions, "order")
    assert [action[0] for action in actions] == ["forward", "backward"] * 2
    third = (30_000 - BEHIND_US - BEFORE_US) / 3
    assert actions[0][2] == actions[1][1] == pytest.approx(1_000 + BEHIND_US + third, abs=1)
    assert found.actions["edge_error_ns"][0] == pytest.approx(2 * third * 1000, rel=1e-3)


def test_the_actions_of_the_first_rank_end_before_the_optimizer(inferred):
    first = [
        mark("Optimizer.zero_grad#SGD", 0, 100), send(10_100, 20_000), send(20_100, 60_000), receive(20_200, 61_000),
        receive(81_000, 90_000), mark("Optimizer.step#SGD.step", 115_000, 116_000),
    ]  # fmt: skip
    actions = in_us(inferred(*first, rank=0, groups=((0, 1),)).actions, "order")
    assert [action[0] for action in actions] == ["forward", "forward", "backward", "backward"]
    assert actions[2][1:3] == (61_000 + BEHIND_US, 81_000 - BEFORE_US)
    assert actions[3][1:3] == (
        90_000 + BEHIND_US,
        110_000,
    )  # as long as the other one: the remaining time belongs to no action


def test_transfers_in_another_order_are_counted_as_unmatched(inferred):
    gpipe = ms(*"RSRS", *"RSRS")  # on a rank of three, two forwards before any backward is a warm-up of 1F1B
    assert inferred(*gpipe).actions.height == 4
    eager = ms(
        *"RSRSRSRS", *"RSRSRSRS"
    )  # four forwards, then four backwards: not 1F1B's order, but its letters
    assert inferred(*ms(*"RRSS", *"RSRS")).actions.is_empty()
    assert inferred(*ms(*"RRSS", *"RSRS")).unmatched == 8
    assert inferred(*eager, rank=0).actions.is_empty()


def test_an_incomplete_step_is_dropped_and_the_next_one_kept(inferred):
    half = ms(*"RSRS")[1:]
    optimizer = mark("Optimizer.step#SGD.step", 200_000, 201_000)
    found = inferred(*half, optimizer, *ms(*"RSRSRSRS", since=30))
    assert found.unmatched == 3
    assert found.actions["order"].to_list() == [0, 1, 0, 1]


def test_the_process_group_that_explains_the_order_is_the_pipeline(inferred):
    groups = ((0, 1, 2, 3, 4, 5, 6, 7), (1, 5), (0, 1))
    first_of_two = ms(*"SSR", "R")
    assert inferred(*first_of_two, rank=1, groups=groups).actions.height == 4
    assert inferred(*first_of_two, rank=1, groups=((0, 1, 2),)).actions.is_empty()


def test_without_a_rank_or_group_nothing_is_inferred(inferred):
    assert inferred(*MIDDLE, rank=None).actions.is_empty()
    assert inferred(*MIDDLE, groups=((5, 6),)).actions.is_empty()
    assert inferred(mark("epoch", 0, 1)).actions.is_empty()
