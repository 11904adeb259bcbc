"""What another schedule would save: simulated with the measured mean costs, beside the measured order itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagescope.analysis.prediction.mean_costs import PAIR, fit_costs
from stagescope.schedules.action_index import index_actions
from stagescope.schedules.catalog import find_schedule, order
from stagescope.schedules.simulator import simulate
from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from stagescope.analysis.prediction.mean_costs import MeanCosts
    from stagescope.schedules.action import Order


TWICE = "if every stage can be held by two ranks"


class Saving(NamedTuple):
    """How much shorter a step is, None where that cannot be said, and what it rests on or why not.

    `condition` is what must hold for it and was not measured, as a clause that begins with "if"; empty: nothing.
    """

    saved_ns: float | None
    note: str
    condition: str = ""


def simulate_saving(measured: Order, before: MeanCosts, after: MeanCosts, name: str) -> Saving:
    """Return what a schedule saves against a measured order, at other costs or the same ones.

    Both are simulated, so that what a simulation does not have, such as the spread of durations, cancels out.
    Raises ScheduleError for a schedule that does not exist, or not for these ranks and micro-batches.
    """
    try:
        base = index_actions(measured)
        same_ns = _makespan_ns(measured, before)
    except ScheduleError as error:
        return Saving(None, f"the measured order cannot be simulated: {error}")
    other = other_order(name, ranks=len(measured), microbatches=base.microbatches, stages=base.stages)
    other_ns = _makespan_ns(other, after)
    if same_ns is None or other_ns is None:
        return Saving(None, "the costs of some of its actions were not measured")
    conditions = [*same_ns[1], *other_ns[1]]
    if _is_shared(other) and not _is_shared(measured):
        conditions.append(TWICE)
    note = f"simulated {other_ns[0] / 1e6:.4g} ms beside {same_ns[0] / 1e6:.4g} ms for the measured order"
    return Saving(same_ns[0] - other_ns[0], note, " and ".join(dict.fromkeys(conditions)))


def other_order(name: str, *, ranks: int, microbatches: int, stages: int | None = None) -> Order:
    """Return the order that a prediction of another schedule simulates.

    `stages` is how many the model was cut into, None for one per rank: a schedule that can have as many chunks per
    rank as that makes has them, another one its own. Raises ScheduleError as schedules.order does.
    """
    cut = stages or ranks
    chunks = cut // ranks if find_schedule(name).least_chunks is not None and cut > ranks else None
    return order(name, ranks=ranks, microbatches=microbatches, chunks=chunks)


def _is_shared(run: Order) -> bool:
    """Return whether some stage is held by several ranks, as in bidirectional schedules."""
    held = [{job.stage for action in actions for job in action.parts} for actions in run.values()]
    return sum(map(len, held)) > len(set().union(*held))


def _makespan_ns(run: Order, mean: MeanCosts) -> tuple[int, tuple[str, ...]] | None:
    """Return how long an order takes at these costs, and what was assumed for them."""
    letters = {job.kind for actions in run.values() for action in actions for job in action.parts}
    if any(action.partner for actions in run.values() for action in actions):
        letters.add(PAIR)
    fitted = fit_costs(mean, index_actions(run).stages, letters)
    if fitted is None:
        return None
    return simulate(run, fitted.costs).makespan_ns, fitted.conditions
