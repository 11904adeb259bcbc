"""The end of a step after its actions: gradient reductions and optimizer steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.schedules.costs import per_stage
from stagescope.schedules.simulation import Interval, Reduction

if TYPE_CHECKING:
    from stagescope.schedules.action import Order
    from stagescope.schedules.costs import Costs

    Ends = dict[int, list[int]]
    Held = dict[int, dict[int, int]]


def gradients_complete(order: Order, ends_ns: Ends) -> Held:
    """Return per stage and rank when the gradient of the stage includes its last micro-batch."""
    complete: Held = {}
    for rank, actions in order.items():
        for (kind, stage, _, partner), end_ns in zip(actions, ends_ns[rank], strict=True):
            if kind in "BW":
                complete.setdefault(stage, {})[rank] = end_ns
            if partner is not None and partner.kind in "BW":
                complete.setdefault(partner.stage, {})[rank] = end_ns
    return complete


def reduce_gradients(complete: Held, costs: Costs, stages: int) -> tuple[Reduction, ...]:
    """Return the reductions by start time; each rank takes part in one at a time."""
    reduce_ns = per_stage("grad_reduce", costs.grad_reduce, stages)
    free_ns: dict[int, int] = {}
    reductions = []
    # A collective starts when the last rank has its gradient.
    for ready_ns, stage in sorted((max(held.values()), stage) for stage, held in complete.items()):
        if reduce_ns[stage]:
            ranks = tuple(sorted(complete[stage]))
            start_ns = max(ready_ns, *(free_ns.get(rank, 0) for rank in ranks))
            reductions.append(Reduction(stage, ranks, start_ns, start_ns + reduce_ns[stage]))
            free_ns.update(dict.fromkeys(ranks, start_ns + reduce_ns[stage]))
    return tuple(reductions)


def step_optimizers(
    complete: Held, reductions: tuple[Reduction, ...], ends_ns: Ends, costs: Costs, stages: int
) -> dict[int, Interval]:
    """Return the optimizer step of every rank that has a stage with a gradient and a nonzero optimizer cost."""
    optimizer_ns = per_stage("optimizer", costs.optimizer, stages)
    ready_ns = {rank: ends[-1] for rank, ends in ends_ns.items() if ends}
    for reduction in reductions:
        for rank in reduction.ranks:
            ready_ns[rank] = max(ready_ns[rank], reduction.end_ns)
    # The global gradient norm needs the gradients of all ranks.
    if costs.optimizer_barrier and ready_ns:
        ready_ns = dict.fromkeys(ready_ns, max(ready_ns.values()))
    duration_ns: dict[int, int] = {}
    for stage, held in complete.items():
        for rank in held:
            duration_ns[rank] = duration_ns.get(rank, 0) + optimizer_ns[stage]
    return {
        rank: Interval(ready_ns[rank], ready_ns[rank] + duration_ns[rank])
        for rank in ends_ns
        if duration_ns.get(rank)
    }
