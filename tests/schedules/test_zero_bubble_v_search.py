import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden_orders import golden_cases, words
from stagescope.schedules.costs import Costs
from stagescope.schedules.memory import peak_in_flight
from stagescope.schedules.orders import zb_v
from stagescope.schedules.orders.zero_bubble_v_search import VSearchInput, search_v_order, searched
from stagescope.schedules.registry import Shape
from stagescope.schedules.simulator import simulate
from stagescope.schedules.validation import validate

cost = st.integers(1, 12)


def at_unit_costs(ranks, microbatches):
    return search_v_order(VSearchInput(ranks, microbatches))


@pytest.mark.parametrize(("ranks", "microbatches", "expected"), golden_cases("sailsg_zbv_greedy_zb"))
def test_order_at_unit_costs_equals_the_reference(ranks, microbatches, expected):
    assert words(at_unit_costs(ranks, microbatches)) == expected


@settings(max_examples=80, deadline=None)
@given(
    ranks=st.integers(1, 8),
    microbatches=st.integers(1, 18),
    costs=st.tuples(cost, cost, cost, st.integers(0, 12)),
)
def test_any_costs_give_a_complete_order_in_the_memory_of_1f1b(ranks, microbatches, costs):
    order = search_v_order(VSearchInput(ranks, microbatches, *costs))
    validate(order)
    assert sum(map(len, order.values())) == 3 * 2 * ranks * microbatches
    assert max(peak_in_flight(order).values()) <= min(2 * microbatches, 2 * ranks)


def test_has_fewer_holes_than_the_fixed_order_with_few_micro_batches():
    fixed = zb_v.SCHEDULE.build(zb_v.SCHEDULE.shape(4, 4, None, {}))
    assert simulate(fixed).makespan_ns == 30
    assert simulate(at_unit_costs(4, 4)).makespan_ns == 27


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_no_rank_is_idle_at_unit_costs_with_enough_micro_batches(ranks):
    step = simulate(at_unit_costs(ranks, 2 * ranks))
    assert step.own_span_bubble_fraction == 0


def test_uses_the_median_of_the_stages():
    per_stage = Costs(forward=[9, 5, 5, 5], backward_input=7, backward_weight=2, hop=[1, 99, 1, 0])
    shape = Shape(2, 6, 2, {"costs": per_stage})
    assert searched(shape) == search_v_order(VSearchInput(2, 6, 5, 7, 2, 1))


def test_a_single_rank_sends_no_messages():
    assert searched(Shape(1, 3, 2, {"costs": Costs(hop=50)})) == at_unit_costs(1, 3)


def test_all_actions_cost_the_same_without_costs():
    assert searched(Shape(3, 7, 2)) == at_unit_costs(3, 7)
