from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagescope.schedules.costs import Costs, action_costs, link_costs
from stagescope.vocabulary.errors import ScheduleError


def parts(costs, stages=1, microbatches=1):
    """Return full, input and weight backward of the first stage and micro-batch."""
    actions = action_costs(costs, stages, microbatches)
    return actions.backward[0], actions.backward_input[0], actions.backward_weight[0]


def test_defaults_are_unit_costs():
    assert action_costs(Costs(), 1, 1)[:4] == ([1], [2], [1], [1])


@pytest.mark.parametrize(
    ("given_parts", "expected"),
    [
        ({}, (20, 10, 10)),
        ({"backward": 30}, (30, 15, 15)),
        ({"backward": 31}, (31, 16, 15)),
        ({"backward": 30, "backward_input": 12}, (30, 12, 18)),
        ({"backward": 30, "backward_weight": 12}, (30, 18, 12)),
        ({"backward_input": 12, "backward_weight": 7}, (19, 12, 7)),
        ({"backward_input": 12}, (22, 12, 10)),
        ({"backward_weight": 12}, (22, 10, 12)),
        ({"backward": 17, "backward_input": 12, "backward_weight": 7}, (17, 12, 7)),
    ],
)
def test_derives_missing_costs(given_parts, expected):
    assert parts(Costs(forward=10, **given_parts)) == expected


@given(st.integers(0, 99), *[st.none() | st.integers(0, 99)] * 2, st.none() | st.integers(99, 200))
def test_derived_parts_add_up_to_the_full_backward(forward, of_input, of_weight, full):
    if full is None or of_input is None or of_weight is None:
        backward, input_part, weight_part = parts(
            Costs(forward=forward, backward=full, backward_input=of_input, backward_weight=of_weight)
        )
        assert input_part + weight_part == backward


def test_costs_may_differ_by_stage():
    actions = action_costs(Costs(forward=[1, 2], backward_weight=[3, 4]), stages=2, microbatches=2)
    assert actions.forward == [1, 1, 2, 2]
    assert actions.backward == [4, 4, 6, 6]


def test_derives_missing_costs_per_micro_batch():
    actions = action_costs(Costs(forward=5, backward={(0, 0): 9}, backward_input={(0, 1): 6}), 1, 2)
    assert actions.backward == [9, 11]
    assert actions.backward_input == [5, 6]
    assert actions.backward_weight == [4, 5]


def test_a_micro_batch_without_an_entry_has_no_cost():
    assert action_costs(Costs(forward={(0, 1): 3}), 1, 2).forward == [None, 3]


def test_converts_numpy_integers_to_plain_integers():
    costs = Costs(forward=np.array([1, 2]), hop=np.int64(3), backward={(0, 0): np.int32(4)})
    assert costs.forward == (1, 2)
    assert [type(value) for value in (*costs.forward, costs.hop, costs.backward[0, 0])] == [int] * 4


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"forward": 1.5}, "cost forward: expected a whole number, at least 0, found 1.5"),
        ({"forward": -1}, "cost forward: expected a whole number, at least 0, found -1"),
        ({"forward": "12"}, "cost forward: expected a whole number, at least 0, found '12'"),
        ({"backward": [1, None]}, "cost backward: expected a whole number, at least 0, found None"),
        ({"overlapped": {(0, 0): 0.5}}, "cost overlapped: expected a whole number, at least 0, found 0.5"),
        ({"hop": {(0, 0): 1}}, "cost hop: expected one whole number or one per stage, found {(0, 0): 1}"),
        (
            {"bandwidth": 0, "message_bytes": 1},
            "cost bandwidth: expected a whole number, at least 1, found 0",
        ),
        ({"bandwidth": 5}, "cost bandwidth has no effect without message_bytes"),
    ],
)
def test_rejects_invalid_costs(wrong, sentence):
    with pytest.raises(ScheduleError) as caught:
        Costs(**wrong)
    assert str(caught.value) == sentence


def test_rejects_costs_of_another_number_of_stages():
    with pytest.raises(ScheduleError, match="cost forward: 3 values for 2 stages"):
        action_costs(Costs(forward=[1, 2, 3]), 2, 1)


def test_rejects_a_backward_part_that_costs_more_than_the_whole():
    expected = "cost backward_weight: expected at most the full backward of stage 1, 5 ns, found 6"
    with pytest.raises(ScheduleError) as caught:
        action_costs(Costs(backward=[6, 5], backward_weight=6), 2, 3)
    assert str(caught.value) == expected


def test_message_time_is_latency_plus_transmission_rounded_up():
    links = link_costs(Costs(hop=[10, 20], message_bytes=[3, 4], bandwidth=2_000_000_000), 2)
    assert (links.hop_ns, links.wire_ns, links.least_ns) == ([10, 20], [2, 2], [12, 22])


def test_without_bandwidth_bytes_take_no_time():
    assert link_costs(Costs(hop=1, message_bytes=1 << 30), 2).wire_ns == [0, 0]
