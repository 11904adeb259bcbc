import pytest

from stagescope.schedules.costs import Costs
from stagescope.schedules.orders.searched_costs import StageCosts, stage_costs, upper_median
from stagescope.schedules.registry import Shape
from stagescope.vocabulary.errors import ScheduleError


def shape(costs, microbatches=3):
    return Shape(2, microbatches, 1, {"costs": costs})


def test_without_costs_every_action_costs_one_and_messages_nothing():
    assert stage_costs(shape(None), 2) == StageCosts([1, 1], [1, 1], [1, 1], [0, 0])


def test_costs_per_stage_are_taken_as_they_are():
    costs = Costs(forward=[3, 4], backward=[8, 9], backward_weight=[2, 3], hop=[5, 0])
    assert stage_costs(shape(costs), 2) == StageCosts([3, 4], [6, 6], [2, 3], [5, 0])


def test_costs_per_micro_batch_count_with_the_median_of_those_that_are_known():
    forward = {(0, 0): 9, (0, 1): 5, (1, 0): 1, (1, 1): 2, (1, 2): 30}
    assert stage_costs(shape(Costs(forward=forward)), 2).forward == [9, 2]


def test_a_stage_without_any_cost_is_refused():
    with pytest.raises(ScheduleError, match=r"no cost for F1\.0"):
        stage_costs(shape(Costs(forward={(0, 0): 9}, backward_input=1, backward_weight=1)), 2)


def test_time_on_the_wire_counts_into_the_hop():
    costs = Costs(hop=7, bandwidth=1_000_000_000, message_bytes=20)
    assert stage_costs(shape(costs), 2).hop == [27, 27]


@pytest.mark.parametrize(("values", "middle"), [([4], 4), ([1, 9], 9), ([5, 1, 9], 5)])
def test_upper_median_is_one_of_the_values(values, middle):
    assert upper_median(values) == middle
