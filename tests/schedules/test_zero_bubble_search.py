import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden_orders import GOLDEN, golden_cases, words
from stagescope.schedules.costs import Costs
from stagescope.schedules.memory import ActivationSizes, peak_in_flight
from stagescope.schedules.orders import zero_bubble
from stagescope.schedules.orders.zero_bubble_search import ZB_1P, ZB_2P
from stagescope.schedules.simulator import simulate
from stagescope.schedules.validation import validate
from stagescope.vocabulary.errors import ScheduleError

PAPER = json.loads((GOLDEN / "zb_paper_table5.json").read_text())
MODELS = {"1.5B": (2304, 24), "6.2B": (4096, 32), "14.6B": (5120, 40), "28.3B": (6144, 48)}
"""Hidden size and attention heads, arXiv 2401.10241, Table 3; the sequence length is 1024."""


def built(schedule, ranks, microbatches, **options):
    return schedule.build(schedule.shape(ranks, microbatches, None, options))


@pytest.mark.parametrize(("ranks", "microbatches", "expected"), golden_cases("sailsg_zb1p_mem_p"))
def test_zb_1p_at_unit_costs_equals_the_reference(ranks, microbatches, expected):
    assert words(built(ZB_1P, ranks, microbatches)) == expected


@pytest.mark.parametrize(("ranks", "microbatches", "expected"), golden_cases("sailsg_zb2p_mem_2p"))
def test_zb_2p_at_unit_costs_equals_the_reference(ranks, microbatches, expected):
    assert words(built(ZB_2P, ranks, microbatches)) == expected


@pytest.mark.parametrize("row", PAPER["rows"], ids=lambda row: f"{row['model']}-{row['p']}x{row['m']}")
def test_reproduces_bubble_rates_of_the_zero_bubble_paper_to_four_digits(row):
    costs = Costs(
        forward=round(row["T_F"] * 1e6),
        backward_input=round(row["T_B"] * 1e6),
        backward_weight=round(row["T_W"] * 1e6),
        hop=round(row["T_comm"] * 1e6),
    )
    hidden, heads = MODELS[row["model"]]
    sizes = ActivationSizes(activation=34 * hidden + 5 * heads * 1024, held_for_weight=32 * hidden)
    for schedule, column in ((ZB_1P, "ZB-1p"), (ZB_2P, "ZB-2p")):
        order = built(schedule, row["p"], row["m"], costs=costs, sizes=sizes)
        printed = row["paper_table5"][PAPER["columns"].index(column)]
        assert round(simulate(order, costs).own_span_bubble_fraction, 4) == printed


cost = st.integers(1, 12)


@st.composite
def problems(draw):
    """Draw sizes, costs per stage, activation sizes per stage and a limit per stage of at least one activation."""
    ranks = draw(st.integers(1, 7))

    def per_stage(values):
        return draw(st.lists(values, min_size=ranks, max_size=ranks))

    costs = Costs(
        forward=per_stage(cost),
        backward_input=per_stage(cost),
        backward_weight=per_stage(cost),
        hop=draw(st.integers(0, 6)),
    )
    activation = per_stage(st.integers(1, 20))
    held = [draw(st.integers(0, size)) for size in activation]
    limit = [size * draw(st.integers(1, 2 * ranks)) + draw(st.integers(0, 5)) for size in activation]
    sizes = ActivationSizes(tuple(activation), tuple(held))
    return ranks, draw(st.integers(1, 16)), costs, sizes, limit


@settings(max_examples=150, deadline=None)
@given(problem=problems())
def test_any_costs_and_limits_give_a_complete_order_within_the_limits(problem):
    ranks, microbatches, costs, sizes, limit = problem
    order = built(ZB_2P, ranks, microbatches, costs=costs, sizes=sizes, memory_limit=limit)
    validate(order)
    assert sum(map(len, order.values())) == 3 * ranks * microbatches
    peaks = peak_in_flight(order, sizes)
    assert all(peaks[rank] <= limit[rank] for rank in order)


@settings(max_examples=60, deadline=None)
@given(ranks=st.integers(1, 10), microbatches=st.integers(1, 24))
def test_default_limits_are_p_and_2p_activations(ranks, microbatches):
    for schedule, limit in ((ZB_1P, ranks), (ZB_2P, 2 * ranks)):
        order = built(schedule, ranks, microbatches)
        assert max(peak_in_flight(order).values()) <= min(microbatches, limit)
        assert order == built(schedule, ranks, microbatches, memory_limit=limit)


@settings(max_examples=40, deadline=None)
@given(ranks=st.integers(1, 8), microbatches=st.integers(1, 20), factor=st.integers(1, 1000))
def test_only_ratios_of_costs_and_of_memory_matter(ranks, microbatches, factor):
    scaled = Costs(forward=factor, backward_input=factor, backward_weight=factor)
    order = built(ZB_2P, ranks, microbatches, costs=scaled, sizes=ActivationSizes(factor))
    assert order == built(ZB_2P, ranks, microbatches)


def test_twice_the_memory_leaves_no_bubble_at_unit_costs():
    assert simulate(built(ZB_1P, 4, 12)).own_span_bubble_fraction == pytest.approx(3 / 39)
    assert simulate(built(ZB_2P, 4, 12)).own_span_bubble_fraction == 0


@pytest.mark.parametrize("ranks", range(1, 7))
def test_zb_1p_at_unit_costs_is_zb_h1_with_more_micro_batches_than_ranks(ranks):
    for microbatches in range(ranks + 1, 3 * ranks + 2):
        handcrafted = zero_bubble.H1.build(zero_bubble.H1.shape(ranks, microbatches, None, {}))
        assert built(ZB_1P, ranks, microbatches) == handcrafted


def test_a_limit_of_one_activation_runs_one_micro_batch_at_a_time():
    assert words(built(ZB_1P, 2, 2, memory_limit=1)) == {
        0: ["F0.0", "I0.0", "W0.0", "F0.1", "I0.1", "W0.1"],
        1: ["F1.0", "I1.0", "W1.0", "F1.1", "I1.1", "W1.1"],
    }


def test_uses_the_median_of_costs_per_micro_batch():
    varying = {
        (stage, microbatch): 10 + 7 * (microbatch == 3) for stage in range(4) for microbatch in range(8)
    }
    assert built(ZB_2P, 4, 8, costs=Costs(forward=varying)) == built(ZB_2P, 4, 8, costs=Costs(forward=10))


def test_rejects_costs_that_lack_a_stage():
    partial = Costs(forward={(0, 0): 1}, backward_input=1, backward_weight=1)
    with pytest.raises(ScheduleError, match=r"no cost for F1\.0"):
        built(ZB_1P, 2, 2, costs=partial)


def test_suggests_a_memory_limit_of_at_least_one_activation():
    with pytest.raises(ScheduleError, match="zb-1p needs a memory_limit of at least one activation") as error:
        built(ZB_1P, 4, 8, memory_limit=2, sizes=ActivationSizes(5))
    assert "memory_limit=5" in error.value.hint


def test_rejects_a_weight_gradient_that_frees_more_than_was_allocated():
    with pytest.raises(ScheduleError, match="held_for_weight from 0 to activation"):
        built(ZB_1P, 4, 8, sizes=ActivationSizes(5, 6))


def test_rejects_memory_limits_of_another_number_of_stages():
    with pytest.raises(ScheduleError, match="memory_limit: 3 values for 4 stages"):
        built(ZB_1P, 4, 8, memory_limit=[4, 4, 4])


def test_rejects_memory_limits_that_are_not_integers():
    with pytest.raises(ScheduleError, match="for option memory_limit"):
        built(ZB_1P, 2, 8, memory_limit=[4, "4"])
