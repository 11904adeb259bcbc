"""Simulate a theoretical schedule as a Timeline, which can be used wherever a recorded one can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stagescope.ingest.simulation import timeline_of_simulation
from stagescope.model.simulated import COST_UNIT_NS
from stagescope.schedules import Costs, order
from stagescope.schedules.bounds import lower_bound
from stagescope.schedules.catalog import find_schedule
from stagescope.schedules.memory import peak_in_flight
from stagescope.schedules.simulator import simulate as run_order
from stagescope.schedules.validation import validate

if TYPE_CHECKING:
    from typing import Any

    from stagescope.model import Timeline
    from stagescope.schedules import Order
    from stagescope.schedules.bounds import LowerBound
    from stagescope.schedules.simulation import Simulation

SEARCHED_BY_COST = {"costs", "memory_limit"}
"""Options that together mark a schedule which searches its own order for given costs."""


@dataclass(frozen=True)
class SimulatedStep:
    """One simulated step: its timeline, its times, the lower bound of the makespan, and the memory of each rank.

    `peak_in_flight` is the largest number of chunk activations that each rank holds at once. `in_cost_units` is True
    if costs were relative: 1 ms of the timeline is then a cost of 1.
    """

    timeline: Timeline
    simulation: Simulation
    bound: LowerBound
    peak_in_flight: dict[int, int]
    in_cost_units: bool = False

    def __repr__(self) -> str:
        makespan_ns, bubble = self.simulation.makespan_ns, self.simulation.bubble_fraction
        return (
            f"SimulatedStep({len(self.peak_in_flight)} ranks, makespan_ns={makespan_ns}, bubble={bubble:.4f})"
        )


def simulate(
    schedule: str | Order,
    costs: Costs | None = None,
    *,
    ranks: int | None = None,
    microbatches: int | None = None,
    name: str | None = None,
    in_cost_units: bool | None = None,
    **options: Any,
) -> SimulatedStep:
    """Return one step of a theoretical schedule, without noise.

    `schedule` is a name of `schedules.NAMES`, with `ranks` and `microbatches` and the `options` of `schedules.order`
    such as `chunks`, or an order of its own: a list of actions per rank. `costs` are in nanoseconds; without them
    every forward, backward-input and backward-weight costs 1 unit, and `in_cost_units` is True. `name` is the name of
    the timeline's schedule, by default that of the schedule.

    Raises ScheduleError for an unknown schedule, for an order that is incomplete or deadlocks, and for costs that
    do not cover it; TypeError if `ranks` or `microbatches` is missing.

    >>> from stagescope import schedules
    >>> step = simulate("1f1b", schedules.Costs(forward=10, backward=20), ranks=2, microbatches=4)
    >>> step
    SimulatedStep(2 ranks, makespan_ns=150, bubble=0.2000)
    >>> step.bound.makespan_ns, step.peak_in_flight, step.timeline.spans.height
    (150, {0: 2, 1: 1}, 16)
    """
    relative = costs is None if in_cost_units is None else in_cost_units
    costs = costs or Costs(forward=COST_UNIT_NS)
    if isinstance(schedule, str):
        if ranks is None or microbatches is None:
            raise TypeError(f"simulate({schedule!r}) needs ranks= and microbatches=")
        name = name or schedule
        if {option.name for option in find_schedule(schedule).options} >= SEARCHED_BY_COST:
            options.setdefault("costs", costs)
        actions = order(schedule, ranks=ranks, microbatches=microbatches, **options)
    elif ranks is None and microbatches is None and not options:
        actions = schedule
    else:
        raise TypeError(
            "ranks, microbatches and options are only for the name of a schedule, not for an order"
        )
    validate(actions)
    simulation = run_order(actions, costs)
    return SimulatedStep(
        timeline_of_simulation(simulation, schedule=name, in_cost_units=relative),
        simulation,
        lower_bound(actions, costs),
        peak_in_flight(actions),
        relative,
    )
