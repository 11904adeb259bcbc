import doctest
import importlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagescope.schedules.costs import Costs
from stagescope.schedules.memory import ActivationSizes
from stagescope.schedules.search.division import divide_costs, divide_sizes, exact_shares, piece_count
from stagescope.vocabulary.errors import ScheduleError


def test_one_of_v_chunks_costs_one_vth() -> None:
    assert divide_costs(Costs(forward=600), ranks=2, stages=6).forward == (200,) * 6


def test_one_number_is_the_cost_of_the_share_of_a_rank() -> None:
    assert sum(divide_costs(Costs(forward=600), ranks=4, stages=8).forward) == 4 * 600


def test_chunks_merged_into_one_stage_cost_their_sum() -> None:
    assert divide_costs(Costs(forward=[1, 2, 3, 4]), ranks=2, stages=2).forward == (3, 7)


def test_stages_across_a_boundary_get_a_share_of_each_piece() -> None:
    assert [str(share) for share in exact_shares([6, 12], 3)] == ["4", "6", "8"]


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=12), st.integers(1, 20))
def test_sums_over_the_model_do_not_change(values: list[int], stages: int) -> None:
    divided = divide_costs(Costs(forward=values, backward=values, overlapped=values), len(values), stages)
    for amount in (divided.forward, divided.backward, divided.overlapped):
        assert len(amount) == stages
        assert sum(amount) == sum(values)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=12), st.integers(1, 20))
def test_shares_differ_from_exact_ones_only_by_rounding(values: list[int], stages: int) -> None:
    rounded = divide_costs(Costs(forward=values), len(values), stages).forward
    assert all(abs(a - b) < 1 for a, b in zip(rounded, exact_shares(values, stages), strict=True))


def test_boundary_costs_do_not_shrink() -> None:
    divided = divide_costs(Costs(forward=8, hop=[1, 2]), ranks=2, stages=4)
    assert divided.hop == (1, 1, 2, 2)
    assert divide_costs(Costs(forward=8, hop=5), ranks=2, stages=4).hop == 5


def test_costs_per_micro_batch_become_their_median() -> None:
    forward = {(0, 0): 10, (0, 1): 90, (0, 2): 20, (1, 0): 30}
    assert divide_costs(Costs(forward=forward, backward=5), ranks=2, stages=2).forward == (20, 30)


def test_rejects_a_piece_without_costs() -> None:
    with pytest.raises(ScheduleError, match=r"no cost for F0\.0"):
        divide_costs(Costs(forward={(1, 0): 3}, backward=5), ranks=2, stages=2)


def test_rejects_costs_of_different_numbers_of_stages() -> None:
    with pytest.raises(ScheduleError, match="2 values for 3 stages"):
        divide_costs(Costs(forward=[1, 2], backward=[1, 2, 3]), ranks=2, stages=4)


def test_counts_the_pieces_in_the_costs() -> None:
    assert piece_count(Costs(forward=[1, 2, 3]), ranks=8) == 3
    assert piece_count(Costs(), ranks=8) == 8


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=8), st.integers(1, 12))
def test_divided_sizes_are_exact(values: list[int], stages: int) -> None:
    sizes, scale = divide_sizes(ActivationSizes(values), len(values), stages)
    assert sum(Fraction(size, scale) for size in sizes.activation) == sum(values)


def test_examples_run() -> None:
    tried = doctest.testmod(importlib.import_module("stagescope.schedules.search.division"))
    assert (tried.failed, tried.attempted > 0) == (0, True)
