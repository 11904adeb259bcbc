import pytest

from stagescope.schedules.costs import Costs
from stagescope.schedules.orders.searched_costs import StageCosts, stage_costs, upper_median
from stagescope.schedules.registry import Shape
from stagescope.vocabulary.errors import ScheduleError


def shape(costs, microbatches=3):
    return Shape(2, microbatches, 1, {"costs": costs})


def test_defaults_to_unit_costs_and_free_messages():
    assert stage_costs(shape(None), 2) == StageCosts([1, 1], [1, 1], [1, 1], [0, 0])


def test_keeps_costs_per_stage():
    costs = Costs(forward=[3, 4], backward=[8, 9], backward_weight=[2, 3], hop=[5, 0])
    assert stage_costs(shape(costs), 2) == StageCosts([3, 4], [6, 6], [2, 3], [5, 0])


def test_uses_the_median_of_known_costs_per_micro_batch():
    forward = {(0, 0): 9, (0, 1): 5, (1, 0): 1, (1, 1): 2, (1, 2): 30}
    assert stage_costs(shape(Costs(forward=forward)), 2).forward == [9, 2]


def test_rejects_a_stage_without_costs():
    with pytest.raises(ScheduleError, match=r"no cost for F1\.0"):
        stage_costs(shape(Costs(forward={(0, 0): 9}, backward_input=1, backward_weight=1)), 2)


def test_hop_includes_transmission_time():
    costs = Costs(hop=7, bandwidth=1_000_000_000, message_bytes=20)
    assert stage_costs(shape(costs), 2).hop == [27, 27]


@pytest.mark.parametrize(("values", "middle"), [([4], 4), ([1, 9], 9), ([5, 1, 9], 5)])
def test_upper_median_is_one_of_the_values(values, middle):
    assert upper_median(values) == middle
