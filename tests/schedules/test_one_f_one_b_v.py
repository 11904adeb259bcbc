import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden_orders import golden_cases, words
from stagescope.schedules.memory import peak_in_flight
from stagescope.schedules.orders.one_f_one_b_v import SCHEDULE, building_block
from stagescope.schedules.simulator import simulate
from stagescope.schedules.validation import validate

sizes = {"ranks": st.integers(1, 12), "microbatches": st.integers(1, 30)}


def built(ranks, microbatches):
    return SCHEDULE.build(SCHEDULE.shape(ranks, microbatches, None, {}))


@pytest.mark.parametrize(("ranks", "microbatches", "expected"), golden_cases("sailsg_v1f1b"))
def test_order_equals_the_reference(ranks, microbatches, expected):
    assert words(built(ranks, microbatches)) == expected


@settings(max_examples=60, deadline=None)
@given(**sizes)
def test_orders_are_complete_and_deadlock_free(ranks, microbatches):
    order = built(ranks, microbatches)
    validate(order)
    assert sum(map(len, order.values())) == 2 * 2 * ranks * microbatches


@settings(max_examples=60, deadline=None)
@given(**sizes)
def test_each_rank_holds_both_ends_of_the_v(ranks, microbatches):
    for rank, actions in built(ranks, microbatches).items():
        assert {action.stage for action in actions} == {rank, 2 * ranks - 1 - rank}


@settings(max_examples=60, deadline=None)
@given(**sizes)
def test_peak_memory_is_two_thirds_of_1f1b(ranks, microbatches):
    peak = max(peak_in_flight(built(ranks, microbatches)).values())
    assert peak == min(2 * microbatches, 2 * ((2 * ranks + 3) // 3))


@pytest.mark.parametrize(("ranks", "idle"), [(2, 4), (4, 15), (8, 33)])
def test_idle_time_at_unit_costs_does_not_grow_with_micro_batches(ranks, idle):
    for microbatches in (2 * ranks, 3 * ranks + 1):
        step = simulate(built(ranks, microbatches))
        assert set(step.idle_ns.values()) == {idle}


@pytest.mark.parametrize("ranks", range(1, 40))
def test_slots_of_consecutive_micro_batches_do_not_collide(ranks):
    f0, f1, b1, b0 = building_block(ranks)
    for slots in zip(f0, f1, b1, b0, [slot + 1 for slot in b1], [slot + 1 for slot in b0], strict=True):
        assert len({slot % 6 for slot in slots}) == 6
