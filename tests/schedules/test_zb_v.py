from stagescope.schedules import order
from stagescope.schedules.memory import peak_in_flight
from stagescope.schedules.simulator import simulate


def test_every_rank_runs_2p_forwards_before_its_first_backward():
    for actions in order("zb-v", ranks=4, microbatches=12).values():
        assert [action.kind for action in actions].index("I") == 2 * 4


def test_no_rank_is_idle_within_its_own_span_at_equal_costs():
    built = order("zb-v", ranks=4, microbatches=8)
    run = simulate(built)
    for rank, actions in built.items():
        own = [each for each in run.actions if each.rank == rank]
        assert own[-1].end_ns - own[0].start_ns == len(actions)


def test_memory_equals_1f1b_on_every_rank():
    assert set(peak_in_flight(order("zb-v", ranks=4, microbatches=12)).values()) == {2 * 4}


def test_omits_micro_batches_that_do_not_exist():
    short, full = order("zb-v", ranks=3, microbatches=2), order("zb-v", ranks=3, microbatches=5)
    assert short == {rank: [action for action in full[rank] if action.microbatch < 2] for rank in range(3)}
