"""Why an order got stuck: the circle of actions that wait for each other, or the job that nobody runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.schedules.action import Action
from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagescope.schedules.action import Order

    Place = tuple[int, int]


def stuck(order: Order, done: Mapping[int, int]) -> ScheduleError:
    """Return the error for an order of which each rank has run `done[rank]` actions and can run no more."""
    places = {
        job: (rank, position)
        for rank, actions in order.items()
        for position, action in enumerate(actions)
        for job in action.parts
    }
    last_stage = max(job.stage for job in places)
    heads = {rank: (rank, done[rank]) for rank, actions in order.items() if done[rank] < len(actions)}
    waits_for: dict[int, Place] = {}
    for rank, head in heads.items():
        action = order[rank][head[1]]
        for producers in _producers(action, last_stage):
            place = next((places[each] for each in producers if each in places), None)
            if place is None:
                return ScheduleError.missing_producer(_named(order, head), str(producers[0]))
            # of two missing inputs, one that the rank itself holds back makes the shorter circle
            if place[1] >= done[place[0]] and waits_for.get(rank, (None,))[0] != rank:
                waits_for[rank] = place
    return ScheduleError.deadlock(_cycle(order, heads, waits_for))


def _producers(action: Action, last_stage: int) -> list[tuple[Action, ...]]:
    """Return what an action waits for; of each group of jobs one is enough."""
    needed: list[tuple[Action, ...]] = []
    for kind, stage, microbatch, _ in action.parts:
        if kind == "F" and stage > 0:
            needed.append((Action("F", stage - 1, microbatch),))
        elif kind == "W":
            needed.append((Action("I", stage, microbatch),))
        elif kind in "BI":
            needed.append((Action("F", stage, microbatch),))
            if stage < last_stage:
                needed.append((Action("B", stage + 1, microbatch), Action("I", stage + 1, microbatch)))
    return needed


def _cycle(order: Order, heads: Mapping[int, Place], waits_for: Mapping[int, Place]) -> list[str]:
    """Return the actions of one circle, the first again at its end.

    A rank's next action waits for a job of another rank, and that job, unless it is next there, for the
    action that is.
    """
    path: list[int] = [next(iter(heads))]
    while (rank := waits_for[path[-1]][0]) not in path:
        path.append(rank)
    circle = path[path.index(rank) :]
    names = []
    for each in circle:
        place = waits_for[each]
        names.append(_named(order, heads[each]))
        if place != heads[place[0]]:
            names.append(_named(order, place))
    return [*names, names[0]]


def _named(order: Order, place: Place) -> str:
    rank, position = place
    return f"{order[rank][position]} on rank {rank}"
