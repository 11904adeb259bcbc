"""Causes to plant: each function returns the plan with the cause, and the plan that it got is the run without it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from truth.plan import KINDS, InnerReduction

if TYPE_CHECKING:
    from truth.plan import Plan


class Place(NamedTuple):
    """One rank of the run: its pipeline rank and its replica."""

    rank: int
    replica: int = 0


def global_rank(plan: Plan, place: Place) -> int:
    """Return the number of a rank in the span table."""
    return place.replica * plan.shape.ranks + place.rank


def slow_rank(plan: Plan, place: Place, factor: float, steps: slice = slice(None)) -> Plan:
    """Slow a rank down in some steps."""
    return plan.scaled(_rank_factor(plan, place, np.full(plan.shape.steps, factor), steps))


def drifting_rank(plan: Plan, place: Place, last: float) -> Plan:
    """Slow a rank down more and more, from nothing in the first step to `last` in the last one."""
    return plan.scaled(_rank_factor(plan, place, np.linspace(1, last, plan.shape.steps), slice(None)))


def _rank_factor(plan: Plan, place: Place, factors: np.ndarray, steps: slice) -> np.ndarray:
    shape = plan.shape
    factor = np.ones((shape.steps, shape.replicas, shape.stages, 1))
    for stage in shape.placement[place.rank]:
        factor[steps, place.replica, stage, 0] = factors[steps]
    return factor


def slow_replica(plan: Plan, replica: int, factor: float) -> Plan:
    """Slow all ranks of one pipeline down."""
    factors = np.ones((1, plan.shape.replicas, 1, 1))
    factors[:, replica] = factor
    return plan.scaled(factors)


def slow_stages(plan: Plan, factors: dict[int, float]) -> Plan:
    """Give virtual stages more or less work, in all replicas."""
    return plan.scaled(_stage_factor(plan, factors))


def equal_stages(plan: Plan, factors: dict[int, float]) -> Plan:
    """Spread the work of `slow_stages` evenly over all stages: what moving layers would give."""
    return plan.scaled(np.array(_stage_factor(plan, factors).mean()))


def _stage_factor(plan: Plan, factors: dict[int, float]) -> np.ndarray:
    factor = np.ones((1, 1, plan.shape.stages, 1))
    for stage, value in factors.items():
        factor[:, :, stage] = value
    return factor


def unequal_microbatches(plan: Plan, deviation: float, seed: int = 0) -> Plan:
    """Let micro-batches differ in length, on all stages alike: log-normal factors whose mean over the run is 1."""
    shape = plan.shape
    sigma = np.sqrt(np.log1p(deviation**2))
    draws = np.random.default_rng([seed, 1]).normal(size=(shape.steps, shape.replicas, 1, shape.microbatches))
    lengths = np.exp(sigma * draws)
    return plan.scaled(lengths / lengths.mean())


class Excess(NamedTuple):
    """Time added to one action."""

    step: int
    replica: int
    stage: int
    microbatch: int
    extra_ns: int
    kind: str = "F"


def set_up(plan: Plan, factor: float) -> Plan:
    """Let the first step take longer, as where a training sets itself up, and number steps from 1."""
    factors = np.ones((plan.shape.steps, 1, 1, 1))
    factors[0] = factor
    return replace(plan.scaled(factors), first_step=1)


def slow_actions(plan: Plan, excesses: list[Excess]) -> Plan:
    """Let single actions take longer."""
    action_ns = plan.action_ns.copy()
    for each in excesses:
        action_ns[KINDS.index(each.kind), each.step, each.replica, each.stage, each.microbatch] += (
            each.extra_ns
        )
    return plan.with_actions(action_ns)


def collected_garbage(plan: Plan, extra_ns: int, seed: int = 0) -> Plan:
    """Interrupt each rank once, in rank order: a forward per rank, in one step after the other."""
    rng, shape = np.random.default_rng([seed, 2]), plan.shape
    excesses = []
    for rank in range(shape.ranks):
        microbatch, factor = int(rng.integers(shape.microbatches)), rng.uniform(0.8, 1.2)
        excesses.append(Excess(rank % shape.steps, 0, rank, microbatch, round(extra_ns * factor)))
    return slow_actions(plan, excesses)


def slow_link(plan: Plan, direction: int, stage: int, extra_ns: int) -> Plan:
    """Let the messages that a stage of replica 0 sends in one direction occupy their link for longer."""
    occupancy_ns = plan.network.occupancy_ns.copy()
    occupancy_ns[direction, :, 0, stage] += extra_ns
    return plan.with_network(occupancy_ns=occupancy_ns)


def uniform_latency(plan: Plan, latency_ns: int) -> Plan:
    """Let all messages take the same time on a link that is never busy."""
    network = plan.network
    return plan.with_network(
        latency_ns=np.full_like(network.latency_ns, latency_ns),
        occupancy_ns=np.zeros_like(network.occupancy_ns),
    )


def reducing_inside(
    plan: Plan, every_ns: int, extra_ns: dict[int, int] | None = None, overlap: float = 0.0
) -> Plan:
    """Reduce the gradients of each stage inside its last backward instead of after the step, some for longer."""
    reduce_ns = np.full((plan.shape.steps, plan.shape.stages), every_ns, np.int64)
    for stage, value in (extra_ns or {}).items():
        reduce_ns[:, stage] += value
    return replace(plan.with_end(reduce_ns=0), inner=InnerReduction(reduce_ns, overlap))


def late_rank(plan: Plan, place: Place, extra_ns: int, activity: str = "") -> Plan:
    """Let a rank come late to the norm of the gradients in every iteration; `activity` is what is recorded of that."""
    shape = plan.shape
    late_ns = np.zeros((shape.steps, shape.ranks, shape.replicas), np.int64)
    late_ns[:, place.rank, place.replica] = extra_ns
    return replace(plan, late_ns=late_ns, records_late=activity)


def slow_optimizer(plan: Plan, place: Place, extra_ns: int) -> Plan:
    """Let the optimizer step of a rank take longer."""
    optimizing_ns = np.zeros((plan.shape.ranks, plan.shape.replicas), np.int64)
    optimizing_ns[place] = extra_ns
    return replace(plan, optimizing_ns=optimizing_ns)


def pausing_rank(plan: Plan, place: Place, extra_ns: int, activity: str = "") -> Plan:
    """Let a rank do something between its optimizer step and the next step; `activity` is what is recorded of that."""
    pausing_ns = np.zeros((plan.shape.ranks, plan.shape.replicas), np.int64)
    pausing_ns[place] = extra_ns
    return replace(plan, pausing_ns=pausing_ns, records_pause=activity)


def randomly_late(plan: Plan, mean_ns: int, seed: int = 0) -> Plan:
    """Let all ranks come to the norm of the gradients at random times."""
    shape = plan.shape
    rng = np.random.default_rng([seed, 4])
    late_ns = rng.exponential(mean_ns, (shape.steps, shape.ranks, shape.replicas))
    return replace(plan, late_ns=np.rint(late_ns).astype(np.int64))


def loading(plan: Plan, per_microbatch_ns: int = 0, per_step_ns: int = 0, *, recorded: bool = False) -> Plan:
    """Let the first rank of every replica load data, before each forward or at the start of each step."""
    return replace(
        plan,
        load_ns=plan.load_ns + per_microbatch_ns,
        step_load_ns=plan.step_load_ns + per_step_ns,
        records_loading=recorded,
    )
