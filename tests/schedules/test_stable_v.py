import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden_orders import golden_cases, words
from stagescope.schedules.memory import peak_in_flight
from stagescope.schedules.orders.stable_v import V_HALF, V_MIN, v_half_pattern, v_min_pattern
from stagescope.schedules.simulator import simulate
from stagescope.schedules.validation import validate

PATTERNS = {"v-half": v_half_pattern, "v-min": v_min_pattern}
sizes = {"ranks": st.integers(1, 12), "microbatches": st.integers(1, 30)}


def built(schedule, ranks, microbatches):
    return schedule.build(schedule.shape(ranks, microbatches, None, {}))


@pytest.mark.parametrize(("ranks", "microbatches", "expected"), golden_cases("sailsg_v_half"))
def test_v_half_equals_the_reference(ranks, microbatches, expected):
    assert words(built(V_HALF, ranks, microbatches)) == expected


@pytest.mark.parametrize(("ranks", "microbatches", "expected"), golden_cases("sailsg_v_min"))
def test_v_min_equals_the_reference(ranks, microbatches, expected):
    assert words(built(V_MIN, ranks, microbatches)) == expected


@pytest.mark.parametrize("schedule", [V_HALF, V_MIN], ids=["v-half", "v-min"])
@settings(max_examples=40, deadline=None)
@given(**sizes)
def test_orders_are_complete_and_deadlock_free(schedule, ranks, microbatches):
    order = built(schedule, ranks, microbatches)
    validate(order)
    assert sum(map(len, order.values())) == 3 * 2 * ranks * microbatches


@pytest.mark.parametrize("schedule", [V_HALF, V_MIN], ids=["v-half", "v-min"])
@settings(max_examples=40, deadline=None)
@given(**sizes)
def test_each_rank_holds_both_ends_of_the_v(schedule, ranks, microbatches):
    order = built(schedule, ranks, microbatches)
    for rank, actions in order.items():
        assert {action.stage for action in actions} == {rank, 2 * ranks - 1 - rank}


@settings(max_examples=40, deadline=None)
@given(**sizes)
def test_peak_memory_is_half_and_a_third_of_1f1b(ranks, microbatches):
    def peak(schedule):
        return max(peak_in_flight(built(schedule, ranks, microbatches)).values())

    if microbatches <= ranks:
        assert peak(V_HALF) <= min(2 * microbatches, 2 * ((ranks + 2) // 2))
        assert peak(V_MIN) <= min(2 * microbatches, 2 * ((ranks + 4) // 3))
    else:
        assert peak(V_HALF) == 2 * ((ranks + 2) // 2)
        assert peak(V_MIN) == 2 * ((ranks + 4) // 3)


@pytest.mark.parametrize("name", ["v-half", "v-min"])
@pytest.mark.parametrize("ranks", range(1, 33))
def test_slots_of_consecutive_micro_batches_do_not_collide(name, ranks):
    for rank in range(ranks):
        slots = PATTERNS[name](ranks, rank)
        assert len({slot % 6 for slot in slots}) == 4


@pytest.mark.parametrize(
    ("schedule", "ranks", "idle"),
    [(V_HALF, 2, 1), (V_HALF, 4, 5), (V_HALF, 8, 17), (V_MIN, 2, 3), (V_MIN, 4, 11), (V_MIN, 8, 27)],
)
def test_idle_time_at_unit_costs_does_not_grow_with_micro_batches(schedule, ranks, idle):
    for microbatches in (2 * ranks, 3 * ranks + 1):
        step = simulate(built(schedule, ranks, microbatches))
        assert set(step.idle_ns.values()) == {idle}


def test_one_micro_batch_goes_down_and_up_twice():
    assert words(built(V_MIN, 2, 1)) == {
        0: ["F0.0", "F3.0", "I3.0", "W3.0", "I0.0", "W0.0"],
        1: ["F1.0", "F2.0", "I2.0", "I1.0", "W2.0", "W1.0"],
    }
