from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagescope.schedules import NAMES, order, parse_action
from stagescope.schedules.costs import Costs
from stagescope.schedules.memory import ActivationSizes, Level, in_flight, peak_in_flight
from stagescope.schedules.simulator import simulate
from stagescope.vocabulary.errors import ScheduleError


def rank_of(text):
    return {0: [parse_action(word) for word in text.split()]}


def test_a_full_backward_frees_the_activation_of_its_forward():
    step = simulate(rank_of("F0.0 F0.1 B0.0 F0.2 B0.1 B0.2"), Costs(forward=10, backward=20))
    assert in_flight(step) == {
        0: [Level(0, 1), Level(10, 2), Level(70, 1), Level(90, 0)]
    }  # at 40 a backward ends and a forward starts, so the level does not change


def test_a_split_backward_keeps_its_part_until_the_weight_gradient():
    sizes = ActivationSizes(activation=10, held_for_weight=4)
    step = simulate(rank_of("F0.0 I0.0 W0.0"))
    assert in_flight(step, sizes) == {0: [Level(0, 10), Level(2, 4), Level(3, 0)]}


def test_an_overlapped_pair_keeps_both_micro_batches_until_its_end():
    step = simulate(rank_of("F0.0 F0.1+B0.0 B0.1"))
    assert in_flight(step)[0] == [Level(0, 1), Level(1, 2), Level(4, 1), Level(6, 0)]
    assert peak_in_flight(step.order) == {0: 2}


def test_sizes_may_differ_by_stage():
    sizes = ActivationSizes(activation=[5, 7])
    assert peak_in_flight(rank_of("F0.0 F1.0 B1.0 B0.0"), sizes) == {0: 12}


def test_rejects_held_for_weight_above_activation():
    with pytest.raises(ScheduleError, match="held_for_weight: expected at most the activation"):
        peak_in_flight(rank_of("F0.0"), ActivationSizes(activation=1, held_for_weight=2))


def test_rejects_sizes_of_another_number_of_stages():
    with pytest.raises(ScheduleError, match="activation: 3 values for 1 stages"):
        peak_in_flight(rank_of("F0.0"), ActivationSizes(activation=[1, 2, 3]))


def test_zb_h1_has_the_peak_memory_of_its_paper():
    # arXiv 2401.10241, table 2, with i counted from 0: (p - i) M_B + i M_W
    actions = order("zb-h1", ranks=4, microbatches=8)
    sizes = ActivationSizes(activation=10, held_for_weight=4)
    assert peak_in_flight(actions, sizes) == {rank: (4 - rank) * 10 + rank * 4 for rank in range(4)}


@pytest.mark.parametrize("name", NAMES)
@given(st.integers(1, 9), st.integers(1, 9))
def test_peaks_do_not_depend_on_costs(name, forward, backward):
    actions = order(name, ranks=2, microbatches=4)
    levels = in_flight(simulate(actions, Costs(forward=forward, backward=backward, hop=3)))
    assert {rank: max(level.in_flight for level in over_time) for rank, over_time in levels.items()} == (
        peak_in_flight(actions)
    )
    assert all(over_time[-1].in_flight == 0 for over_time in levels.values())


def test_a_rank_without_actions_has_no_memory_in_flight():
    actions = {**rank_of("F0.0 B0.0"), 1: []}
    assert peak_in_flight(actions)[1] == 0
    assert in_flight(simulate(actions))[1] == [Level(0, 0)]
