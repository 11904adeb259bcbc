"""Why an order cannot finish: a cycle of actions that wait for each other, or an action that no rank runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.schedules.action import Action
from stagescope.schedules.dependencies import needs
from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagescope.schedules.action import Order

    Position = tuple[int, int]


def diagnose_deadlock(order: Order, done: Mapping[int, int]) -> ScheduleError:
    """Return the error for an order that stopped after `done[rank]` actions of each rank."""
    positions = {
        part: (rank, position)
        for rank, actions in order.items()
        for position, action in enumerate(actions)
        for part in action.parts
    }
    last_stage = max(part.stage for part in positions)
    heads = {rank: (rank, done[rank]) for rank, actions in order.items() if done[rank] < len(actions)}
    waits_for: dict[int, Position] = {}
    for rank, head in heads.items():
        for producers in _producers(order[rank][head[1]], last_stage):
            position = next((positions[each] for each in producers if each in positions), None)
            if position is None:
                return ScheduleError.missing_producer(_named(order, head), str(producers[0]))
            # Of two missing inputs, prefer the one that the rank itself runs later: it makes the shorter cycle.
            if position[1] >= done[position[0]] and waits_for.get(rank, (None,))[0] != rank:
                waits_for[rank] = position
    return ScheduleError.deadlock(_cycle(order, heads, waits_for))


def _producers(action: Action, last_stage: int) -> list[tuple[Action, ...]]:
    """Return one group per input of an action; any action of a group provides the input."""
    return [
        tuple(Action(kind, need.stage, part.microbatch) for kind in need.kinds)
        for part in action.parts
        for need in needs(part.kind, part.stage, last_stage)
    ]


def _cycle(order: Order, heads: Mapping[int, Position], waits_for: Mapping[int, Position]) -> list[str]:
    """Return the actions of one cycle, with the first one repeated at the end.

    The next action of a rank waits for an action of another rank. Unless that action is next on its rank, it in turn
    waits for the one that is.
    """
    # Each stopped rank waits for another stopped rank, so following them from any rank ends in a cycle.
    path: list[int] = [next(iter(heads))]
    while (rank := waits_for[path[-1]][0]) not in path:
        path.append(rank)
    cycle = path[path.index(rank) :]
    names = []
    for each in cycle:
        position = waits_for[each]
        names.append(_named(order, heads[each]))
        if position != heads[position[0]]:
            names.append(_named(order, position))
    return [*names, names[0]]


def _named(order: Order, position: Position) -> str:
    rank, index = position
    return f"{order[rank][index]} on rank {rank}"
