"""Activation memory of each rank: the activations of its micro-batches in flight.

A forward allocates the activations of its stage at its start; a full backward frees them at its end. Where the
backward is split, the input gradient frees the part that only it needs (M_B - M_W in arXiv 2401.10241, section 2), and
the weight gradient frees the rest. Peaks follow from the order alone, since the actions of a rank run one after the
other whatever they cost.
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
    """Activation memory of one micro-batch on one stage, in bytes or, as in the defaults, in chunk activations.

    `held_for_weight` is the part of `activation` that is kept until the weight gradient; None means all of it. Each is
    one number, or one per stage.
    """

    activation: PerStage = 1
    held_for_weight: PerStage | None = None


class Level(NamedTuple):
    """The memory in flight on a rank from `time_ns` until the next level."""

    time_ns: int
    in_flight: int


CHUNKS = ActivationSizes()
"""Sizes that count chunk activations, the unit of the papers."""


def peak_in_flight(order: Order, sizes: ActivationSizes = CHUNKS) -> dict[int, int]:
    """Return per rank the peak of the memory in flight, in the unit of `sizes`.

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
    """Return per rank the memory in flight over time, one entry per change, in the unit of `sizes`.

    Every rank starts at time 0 with level 0. Changes at one time are merged into one entry with the level after all of
    them, so that only an action without duration can hide a peak.
    """
    changes = _changes_by_kind(simulation.order, sizes)
    levels: dict[int, list[Level]] = {}
    for rank, actions in simulation.order.items():
        added: dict[int, int] = {0: 0}
        times = zip(actions, simulation.starts_ns[rank], simulation.ends_ns[rank], strict=True)
        for action, start_ns, end_ns in times:
            allocated, freed = _changes(action, changes)
            added[start_ns] = added.get(start_ns, 0) + allocated
            added[end_ns] = added.get(end_ns, 0) + freed
        levels[rank] = list(_levels(added.items()))
    return levels


def _levels(added: Iterable[tuple[int, int]]) -> Iterator[Level]:
    """Yield the running sum of changes by time, at the times where it changes."""
    level = 0
    for number, (time_ns, change) in enumerate(added):
        level += change
        if change or not number:
            yield Level(time_ns, level)


def _changes_by_kind(order: Order, sizes: ActivationSizes) -> dict[str, list[int]]:
    """Return per kind and stage how an action changes the memory; negative values are freed."""
    stages = 1 + max(
        (part.stage for actions in order.values() for action in actions for part in action.parts), default=0
    )
    activation = per_stage("activation", sizes.activation, stages)
    held = activation
    if sizes.held_for_weight is not None:
        held = per_stage("held_for_weight", sizes.held_for_weight, stages)
    # A W that frees more than its F allocated would make the level negative.
    if any(part > whole for part, whole in zip(held, activation, strict=True)):
        raise ScheduleError.wrong_cost("held_for_weight", sizes.held_for_weight, "at most the activation")
    return {
        "F": activation,
        "B": [-whole for whole in activation],
        "I": [part - whole for part, whole in zip(held, activation, strict=True)],
        "W": [-part for part in held],
    }


def _changes(action: Action, changes: dict[str, list[int]]) -> tuple[int, int]:
    """Return what an action allocates at its start and frees (a negative number) at its end."""
    change = changes[action.kind][action.stage]
    partner = action.partner
    if partner is None:
        return (change, 0) if change > 0 else (0, change)
    other = changes[partner.kind][partner.stage]
    return max(change, 0) + max(other, 0), min(change, 0) + min(other, 0)
