"""The truth simulator agrees with closed forms, and its own rules hold in every run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from truth.causes import Place, slow_rank, slow_stages, unequal_microbatches, uniform_latency
from truth.engine import DeadlockError, simulate
from truth.orders import SCHEDULES
from truth.plan import MS, Costs, Shape, make_plan

EXACT = Costs(latency=0, occupancy=0, launch=0, reduce=0, optimizer=0, between=0, noise=0, message_noise=0)
"""Only actions take time, and all of the same kind take the same."""

CHUNKS = {"interleaved": 2, "zb-v": 2, "dualpipev": 2}


def shape_of(schedule, **sizes):
    return Shape(schedule, chunks=CHUNKS.get(schedule, 1), **{"microbatches": 8, "steps": 2, **sizes})


def iteration_ms(plan):
    return simulate(plan).iteration_ns / MS


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 3), (2, 2), (4, 8), (6, 7)])
def test_bubble_of_gpipe_and_1f1b_is_p_minus_1_over_m(schedule, ranks, microbatches):
    run = simulate(make_plan(Shape(schedule, ranks, 1, microbatches, 2), EXACT))
    work = 30 * MS * microbatches
    assert run.iteration_ns == work * (1 + (ranks - 1) / microbatches)
    assert np.all(run.idle_ns() == run.iteration_ns - work)


@pytest.mark.parametrize("chunks", [2, 3])
def test_bubble_of_interleaved_is_divided_by_the_chunks(chunks):
    shape = Shape("interleaved", 4, 1, 8, 2, chunks)
    assert iteration_ms(make_plan(shape, EXACT)) == pytest.approx(30 * 8 * (1 + 3 / (8 * chunks)), abs=1e-3)


def test_bubble_of_zb_h1_is_p_minus_1_times_f_plus_i_minus_w():
    shape = Shape("zb-h1", 4, 1, 8, 2)
    assert iteration_ms(make_plan(shape, EXACT)) == 30 * 8 + 3 * (10 + 10 - 10)


def test_bubble_of_zb_v_vanishes_within_a_rank_with_equal_parts():
    # The span of rank 0 has no idle time; the others wait for their first input and for the last rank.
    run = simulate(make_plan(Shape("zb-v", 4, 1, 8, 1, 2), EXACT))
    own = [entry.rank == 0 for entry in run.program.entries]
    assert run.end[0, own].max() - run.start[0, own].min() == 30 * 8 * MS


def test_slowest_stage_determines_a_long_1f1b_run():
    plan = slow_stages(make_plan(Shape("1f1b", 4, 1, 8, 1), EXACT), {3: 1.5})
    assert iteration_ms(plan) == 8 * 45 + 3 * 30


def test_latency_delays_the_last_rank_by_one_message_per_hop():
    base = make_plan(Shape("gpipe", 4, 1, 8, 1), EXACT)
    assert iteration_ms(uniform_latency(base, 2 * MS)) == iteration_ms(base) + 2 * 3 * 2


def test_blocking_sends_add_to_the_time_of_every_action_that_sends():
    base = make_plan(Shape("gpipe", 2, 1, 8, 1), EXACT)
    run = simulate(uniform_latency(base, 2 * MS).with_network(blocking=True))
    # Rank 0 sends 8 activations; rank 1 sends 8 gradients, the last of which rank 0 waits for.
    assert run.iteration_ns / MS == 8 * 12 + 10 + 8 * 22 + 20
    assert run.blocked_ns().ravel().tolist() == [16 * MS, 16 * MS]


def test_reduction_optimizer_and_pause_add_to_the_iteration():
    base = make_plan(Shape(replicas=2), EXACT)
    later = base.with_end(reduce_ns=60 * MS, optimizer_ns=20 * MS, between_ns=MS)
    assert iteration_ms(later) == iteration_ms(base) + 81


def test_slow_replica_delays_all_replicas():
    base = make_plan(Shape(replicas=3), EXACT)
    run = simulate(slow_rank(base, Place(1, 2), 1.5))
    alone = simulate(slow_rank(make_plan(Shape(), EXACT), Place(1), 1.5))
    # Stages reduce independently of each other, so that fast replicas begin stage 0 at most as early as slow ones.
    assert run.iteration_ns == pytest.approx(alone.iteration_ns, rel=1e-9)
    assert (run.synced == run.synced[:, :, :1]).all()


def test_time_between_steps_includes_loading_on_the_first_rank():
    base = make_plan(Shape(), EXACT)
    assert iteration_ms(replace(base, step_load_ns=base.step_load_ns + 15 * MS)) == iteration_ms(base) + 15


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_action_follows_its_input_and_no_rank_does_two_things_at_once(schedule):
    plan = unequal_microbatches(make_plan(shape_of(schedule, replicas=2), Costs(noise=0.1)), 0.3)
    run = simulate(plan)
    for rank in range(4):
        own = [number for number, entry in enumerate(run.program.entries) if entry.rank == rank]
        assert (run.start[:, own[1:]] >= run.end[:, own[:-1]]).all()
    for number, inputs in enumerate(run.program.inputs):
        for message in inputs:
            assert (run.start[:, number] >= run.arrived[:, message]).all()
            assert (run.arrived[:, message] > run.issued[:, message]).all()
    assert (run.began[1:] == run.over[:-1]).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_waiting_rules_can_only_make_a_run_longer(schedule):
    base = make_plan(shape_of(schedule, replicas=2), Costs())
    usual = iteration_ms(base)
    assert iteration_ms(uniform_latency(base, 0)) <= usual <= iteration_ms(base.with_end(barrier=True))
    assert iteration_ms(slow_rank(base, Place(0, 1), 1.2)) > usual


def test_order_of_replicas_does_not_matter():
    plan = make_plan(Shape(replicas=3), Costs(noise=0.1, message_noise=0.0))
    turned = replace(plan, action_ns=plan.action_ns[:, :, ::-1])
    assert (simulate(turned).end[:, :, ::-1] == simulate(plan).end).all()


def test_finite_buffers_block_the_senders_before_a_slow_stage():
    plan = slow_stages(make_plan(Shape("gpipe"), EXACT), {3: 2.0})
    free = simulate(plan.with_network(blocking=True))
    blocked = simulate(plan.with_network(blocking=True, buffers=1))
    assert not free.blocked_ns().any()
    assert blocked.blocked_ns()[2, 0] > 0


def test_sends_that_wait_for_each_other_are_a_deadlock():
    with pytest.raises(DeadlockError):
        simulate(make_plan(Shape(), EXACT).with_network(blocking=True, buffers=0))


def test_noise_has_the_stated_deviation_and_mean():
    for normal in (False, True):
        costs = Costs(noise=0.05, normal=normal)
        actions = make_plan(Shape(ranks=8, replicas=4, microbatches=16), costs).action_ns[0]
        assert actions.mean() == pytest.approx(10 * MS, rel=0.005)
        assert actions.std() / actions.mean() == pytest.approx(0.05, rel=0.05)


@pytest.mark.parametrize("barrier", [False, True])
def test_parts_of_a_step_sum_to_its_length_on_every_rank(barrier):
    costs = Costs(reduce=60 * MS, optimizer=20 * MS)
    plan = slow_rank(make_plan(Shape(replicas=3), costs), Place(1, 2), 1.5).with_end(barrier=barrier)
    run = simulate(replace(plan, step_load_ns=plan.step_load_ns + 15 * MS))
    parts = run.parts_ns()
    assert (sum(parts.values()) == run.over - run.began).all()
    assert all((part >= 0).all() for part in parts.values())
    assert not parts["data-parallel wait"][:, 1, 2].any()
    assert (parts["data-parallel wait"][:, 1, :2] > 50 * MS).all()
    assert parts["wait for the optimizer"].any() == barrier
