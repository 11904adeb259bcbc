from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagescope.schedules import NAMES, order, parse_action
from stagescope.schedules.bounds import RankBound, lower_bound
from stagescope.schedules.costs import Costs
from stagescope.schedules.simulator import simulate
from stagescope.vocabulary.errors import ScheduleError

ALWAYS_TIGHT = ("gpipe", "1f1b", "eager-1f1b", "1f1b-overlap", "interleaved", "interleaved-overlap", "looped-bfs",
                "zb-h1", "zb-2p", "interleaved-zb", "zb-v")  # fmt: skip
DIFFERENCES = {  # at unit costs, by (ranks, micro-batches)
    "dualpipe": {(8, 16): 3, (8, 24): 3},
    "dualpipev": {(4, 8): 3, (4, 12): 3},
    "v-half": {(8, 16): 10},
    "v-min": {(8, 16): 20},
    "chimera": {(8, 8): 3},
}


def drawn(text):
    return {
        rank: [parse_action(word) for word in line.split()] for rank, line in enumerate(text.splitlines())
    }


def test_rank_bound_is_fill_work_and_drain():
    bound = lower_bound(order("1f1b", ranks=3, microbatches=4), Costs(forward=10, backward=20, hop=1))
    assert bound.ranks == {0: RankBound(0, 120, 0), 1: RankBound(11, 120, 21), 2: RankBound(22, 120, 42)}
    assert (bound.makespan_ns, bound.reason, bound.balanced_ns) == (184, "rank 2", 120)


def test_split_backwards_have_no_drain():
    bound = lower_bound(order("zb-h1", ranks=3, microbatches=4))
    assert bound.ranks[2] == RankBound(2, 12, 0)


def test_one_chain_is_the_bound_with_few_micro_batches():
    bound = lower_bound(order("interleaved", ranks=4, microbatches=1, chunks=2))
    assert (bound.makespan_ns, bound.chain_ns, bound.reason) == (24, 24, "one micro-batch")


def test_a_chain_includes_the_weight_gradient_at_its_end():
    bound = lower_bound(drawn("F0.0 I0.0 W0.0\nF1.0 I1.0 W1.0"), Costs(backward_weight=[1, 9]))
    assert bound.chain_ns == 1 + 1 + 1 + 9


def test_a_pair_counts_once_as_work():
    bound = lower_bound(drawn("F0.0 F0.1+B0.0 B0.1"), Costs(forward=10, backward=20, overlapped=22))
    assert bound.makespan_ns == 52


def test_an_optimizer_step_follows_the_work_of_its_rank():
    planned, costs = drawn("F0.0 B0.0\nF1.0 B1.0"), Costs(optimizer=[4, 9])
    assert lower_bound(planned, costs).ranks[1] == RankBound(1, 3, 9)
    assert lower_bound(planned, costs).makespan_ns == simulate(planned, costs).makespan_ns == 13


def test_the_longest_optimizer_step_follows_a_barrier():
    planned, costs = drawn("F0.0 B0.0\nF1.0 B1.0"), Costs(optimizer=[4, 9], optimizer_barrier=True)
    assert lower_bound(planned, costs).makespan_ns == simulate(planned, costs).makespan_ns == 15


def test_balanced_bound_is_the_mean_work():
    bound = lower_bound(order("1f1b", ranks=2, microbatches=2), Costs(forward=[1, 4], backward=[2, 8]))
    assert bound.balanced_ns == 15


def test_bound_of_an_empty_order_is_zero():
    assert lower_bound({0: []}).makespan_ns == 0
    assert lower_bound({}).makespan_ns == 0


def test_reports_the_action_without_a_cost():
    with pytest.raises(ScheduleError, match=r"no cost for F0\.1\+B0\.0"):
        lower_bound(drawn("F0.0 F0.1+B0.0"), Costs(forward={(0, 0): 1}, backward=1))


@pytest.mark.parametrize("name", [name for name in ALWAYS_TIGHT if name in NAMES])
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (3, 6), (4, 8), (4, 12), (8, 16)])
def test_is_tight_at_unit_costs(name, ranks, microbatches):
    planned = order(name, ranks=ranks, microbatches=microbatches)
    assert lower_bound(planned).makespan_ns == simulate(planned).makespan_ns


@pytest.mark.parametrize("name", [name for name in DIFFERENCES if name in NAMES])
def test_is_below_the_makespan_by_known_amounts_at_unit_costs(name):
    for (ranks, microbatches), gap in DIFFERENCES[name].items():
        planned = order(name, ranks=ranks, microbatches=microbatches)
        assert simulate(planned).makespan_ns - lower_bound(planned).makespan_ns == gap


nanoseconds = st.integers(0, 30)
per_stage = st.lists(nanoseconds, min_size=8, max_size=8)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_simulated_step_is_shorter_than_the_bound(name, data):
    ranks, microbatches = data.draw(st.sampled_from([(2, 4), (4, 8)]))
    planned = order(name, ranks=ranks, microbatches=microbatches)
    stages = 1 + max(
        part.stage for actions in planned.values() for action in actions for part in action.parts
    )
    names = (
        "forward",
        "backward_input",
        "backward_weight",
        "hop",
        "optimizer",
        "grad_reduce",
        "message_bytes",
    )
    drawn_costs = {each: data.draw(per_stage)[:stages] for each in names}
    if data.draw(st.booleans()):
        drawn_costs["overlapped"] = data.draw(per_stage)[:stages]
    switches = {each: data.draw(st.booleans()) for each in ("blocking", "optimizer_barrier")}
    costs = Costs(**drawn_costs, **switches, bandwidth=2_000_000_000)
    assert simulate(planned, costs).makespan_ns >= lower_bound(planned, costs).makespan_ns


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_permutation_of_actions_beats_the_bound(data):
    planned = order("1f1b", ranks=3, microbatches=3)
    bound = lower_bound(planned, Costs(forward=[3, 1, 2], backward=[4, 2, 7], hop=1))
    shuffled = {rank: data.draw(st.permutations(actions)) for rank, actions in planned.items()}
    assert lower_bound(shuffled, Costs(forward=[3, 1, 2], backward=[4, 2, 7], hop=1)) == bound
    forwards_first = {
        rank: sorted(actions, key=lambda each: each.kind == "B") for rank, actions in shuffled.items()
    }
    try:
        step = simulate(forwards_first, Costs(forward=[3, 1, 2], backward=[4, 2, 7], hop=1))
    except ScheduleError:
        return  # this order deadlocks, and the bound does not apply
    assert step.makespan_ns >= bound.makespan_ns


def test_numbers_far_beyond_the_actions_are_refused_before_they_take_memory():
    far = {0: [parse_action("F0.0"), parse_action("B0.999999")], 1: [parse_action("F999999.0")]}
    with pytest.raises(
        ScheduleError, match="3 actions are no order of 1000000 stages and 1000000 micro-batches"
    ):
        lower_bound(far)
