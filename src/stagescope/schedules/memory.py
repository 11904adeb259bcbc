"""Activation memory: what a rank keeps of the micro-batches that are in flight on it.

A forward adds what its stage keeps for the backward, from its start on. A full backward gives all of it back
at its end. Where the backward is split, the input gradient gives back the part that only it needs (M_B - M_W
in arXiv 2401.10241, section 2), the weight gradient the rest. Peaks follow from the order alone: within a
rank jobs run one after the other, whatever they cost.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from stagescope.schedules.costs import PerStage, per_stage
from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stagescope.schedules.action import Action, Order
    from stagescope.schedules.simulation import Simulation


class ActivationSizes(NamedTuple):
    """What one micro-batch keeps on one stage, in bytes or, as in the defaults, in chunk activations.

    `held_for_weight` is the part of `activation` that stays until the weight gradient; None is all of it.
    Each is one number or one per stage.
    """

    activation: PerStage = 1
    held_for_weight: PerStage | None = None


class Level(NamedTuple):
    """How much is in flight on a rank from a time on."""

    time_ns: int
    in_flight: int


CHUNKS = ActivationSizes()
"""Count chunk activations, the unit of the papers."""


def peak_in_flight(order: Order, sizes: ActivationSizes = CHUNKS) -> dict[int, int]:
    """Return per rank the most that is in flight at once, in the unit of the sizes.

    >>> from stagescope.schedules.action import parse_action
    >>> peak_in_flight({0: [parse_action(word) for word in "F0.0 F0.1 B0.0 F0.2 B0.1 B0.2".split()]})
    {0: 2}
    """
    changes = _changes_by_kind(order, sizes)
    return {
        rank: max(accumulate(change for action in actions for change in _changes(action, changes)), default=0)
        for rank, actions in order.items()
    }


def in_flight(simulation: Simulation, sizes: ActivationSizes = CHUNKS) -> dict[int, list[Level]]:
    """Return per rank the level over time, one entry per change, in the unit of the sizes.

    Every rank begins with nothing at 0. Changes at one moment are one entry with the level after all of them;
    only a job that takes no time can hide a peak in that.
    """
    changes = _changes_by_kind(simulation.order, sizes)
    levels: dict[int, list[Level]] = {}
    for rank, actions in simulation.order.items():
        added: dict[int, int] = {0: 0}
        times = zip(actions, simulation.starts_ns[rank], simulation.ends_ns[rank], strict=True)
        for action, start_ns, end_ns in times:
            taken, given_back = _changes(action, changes)
            added[start_ns] = added.get(start_ns, 0) + taken
            added[end_ns] = added.get(end_ns, 0) + given_back
        levels[rank] = list(_levels(added.items()))
    return levels


def _levels(added: Iterable[tuple[int, int]]) -> Iterator[Level]:
    """Yield the sums of what is added at growing times, where they change."""
    level = 0
    for number, (time_ns, change) in enumerate(added):
        level += change
        if change or not number:
            yield Level(time_ns, level)


def _changes_by_kind(order: Order, sizes: ActivationSizes) -> dict[str, list[int]]:
    """Return per kind and stage what a job adds to the memory; what it gives back is negative."""
    stages = 1 + max(
        (job.stage for actions in order.values() for action in actions for job in action.parts), default=0
    )
    activation = per_stage("activation", sizes.activation, stages)
    held = activation
    if sizes.held_for_weight is not None:
        held = per_stage("held_for_weight", sizes.held_for_weight, stages)
    if any(part > whole for part, whole in zip(held, activation, strict=True)):
        raise ScheduleError.wrong_cost("held_for_weight", sizes.held_for_weight, "at most the activation")
    return {
        "F": activation,
        "B": [-whole for whole in activation],
        "I": [part - whole for part, whole in zip(held, activation, strict=True)],
        "W": [-part for part in held],
    }


def _changes(action: Action, changes: dict[str, list[int]]) -> tuple[int, int]:
    """Return what an action takes at its start and what it gives back, a negative number, at its end."""
    change = changes[action.kind][action.stage]
    partner = action.partner
    if partner is None:
        return (change, 0) if change > 0 else (0, change)
    other = changes[partner.kind][partner.stage]
    return max(change, 0) + max(other, 0), min(change, 0) + min(other, 0)
