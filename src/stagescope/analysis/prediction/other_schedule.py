"""The gain of another schedule: simulated with the measured mean costs, compared with the measured order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagescope.analysis.prediction.mean_costs import PAIR, fit_costs
from stagescope.analysis.prediction.slow_devices import moving_conditions
from stagescope.schedules.action_index import index_actions
from stagescope.schedules.catalog import find_schedule, order
from stagescope.schedules.simulator import simulate
from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.analysis.prediction.mean_costs import MeanCosts
    from stagescope.analysis.prediction.slow_devices import SlowDevice
    from stagescope.schedules.action import Order


TWICE = "if every stage can be held by two ranks"


class MeasuredOrder(NamedTuple):
    """The order of the steps of one size, and the share of all steps that have it."""

    order: Order
    share: float


class Saving(NamedTuple):
    """How much shorter a step is, None if unknown, with a note on how it was found or why it is unknown.

    `condition` is what the prediction assumes beyond the measurement, as a clause that begins with "if"; empty:
    nothing.
    """

    saved_ns: float | None
    note: str
    condition: str = ""


def simulate_saving(measured: Order, before: MeanCosts, after: MeanCosts, name: str) -> Saving:
    """Return what a schedule saves compared with the measured order, at the same or changed costs.

    Both are simulated, so that what a simulation does not model, such as jitter, cancels. Raises ScheduleError for an
    unknown schedule, and for one that does not support these ranks and micro-batches.
    """
    return simulate_mean_saving([MeasuredOrder(measured, 1.0)], before, after, name)


def simulate_mean_saving(
    measured: Sequence[MeasuredOrder],
    before: MeanCosts,
    after: MeanCosts,
    name: str,
    devices: Sequence[SlowDevice] = (),
) -> Saving:
    """Return the same for the mean of steps that differ in size.

    An evaluation between steps that train has the forwards of the schedule. If no step has backwards, they may be
    missing. `devices` are those whose stages the schedule may move.
    """
    trains = any(_has_backwards(run) for run, _ in measured)
    same_ns, other_ns, conditions = 0.0, 0.0, list[str]()
    for run, share in measured:
        try:
            base = index_actions(run)
            same = _makespan_ns(run, before)
        except ScheduleError as error:
            return Saving(None, f"the measured order cannot be simulated: {error}")
        other = other_order(name, ranks=len(run), microbatches=base.microbatches, stages=base.stages)
        if trains and not _has_backwards(run):
            other = _forwards(other)
        changed = _makespan_ns(other, after)
        if same is None or changed is None:
            return Saving(None, "the costs of some of its actions were not measured")
        same_ns, other_ns = same_ns + share * same[0], other_ns + share * changed[0]
        conditions += [*same[1], *changed[1]]
        if _is_shared(other) and not _is_shared(run):
            conditions.append(TWICE)
        conditions += moving_conditions(devices, run, other)
    note = f"simulated {other_ns / 1e6:.4g} ms, compared with {same_ns / 1e6:.4g} ms for the measured order"
    return Saving(same_ns - other_ns, note, " and ".join(dict.fromkeys(conditions)))


def _has_backwards(run: Order) -> bool:
    """Return whether an order has any backward: an evaluation has none."""
    return any(part.kind != "F" for actions in run.values() for action in actions for part in action.parts)


def _forwards(run: Order) -> Order:
    """Return the forwards of an order."""
    return {
        rank: [part for each in actions for part in each.parts if part.kind == "F"]
        for rank, actions in run.items()
    }


def other_order(name: str, *, ranks: int, microbatches: int, stages: int | None = None) -> Order:
    """Return the order that a prediction of another schedule simulates.

    `stages` is how many stages the model has; None: one per rank. A schedule with a free number of chunks per rank gets
    as many as that makes, another one its own. Raises ScheduleError as schedules.order does.
    """
    cut = stages or ranks
    chunks = cut // ranks if find_schedule(name).least_chunks is not None and cut > ranks else None
    return order(name, ranks=ranks, microbatches=microbatches, chunks=chunks)


def _is_shared(run: Order) -> bool:
    """Return whether a stage is held by several ranks, as in bidirectional schedules."""
    held = [{part.stage for action in actions for part in action.parts} for actions in run.values()]
    return sum(map(len, held)) > len(set().union(*held))


def _makespan_ns(run: Order, mean: MeanCosts) -> tuple[int, tuple[str, ...]] | None:
    """Return how long an order takes at these costs, and the assumptions behind them; None if costs are missing."""
    letters = {part.kind for actions in run.values() for action in actions for part in action.parts}
    if any(action.partner for actions in run.values() for action in actions):
        letters.add(PAIR)
    fitted = fit_costs(mean, index_actions(run).stages, letters)
    if fitted is None:
        return None
    return simulate(run, fitted.costs).makespan_ns, fitted.conditions
