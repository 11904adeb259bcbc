"""Validation of an order: every action occurs once, and no actions wait for each other.

Deadlocks are found by simulating the order, which applies the rule of `dependencies`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.schedules.action import Action
from stagescope.schedules.simulator import simulate
from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from stagescope.schedules.action import Order

Placement = dict[Action, int]
"""The rank of every action; each part of a pair has its own entry."""


def validate(order: Order) -> None:
    """Check that an order is complete and can run to its end.

    Raises ScheduleError for the first fault: an action that occurs twice or is missing, or a backward that is both
    full (B) and split (I or W); otherwise for a deadlock, with its cycle. The numbers of stages and micro-batches
    are taken from the largest indices that occur.
    """
    place = _place_actions(order)
    _check_complete(place)
    simulate(order)


def _place_actions(order: Order) -> Placement:
    place: Placement = {}
    for rank, actions in order.items():
        for part in (part for action in actions for part in action.parts):
            if part in place:
                where = f"already runs on rank {place[part]}" if place[part] != rank else "occurs twice"
                raise ScheduleError.faulty(rank, str(part), where)
            place[part] = rank
    return place


def _check_complete(place: Placement) -> None:
    """Raise for the first micro-batch and stage whose actions are not F and B, or F, I and W."""
    stages = max((part.stage for part in place), default=-1) + 1
    microbatches = max((part.microbatch for part in place), default=-1) + 1
    for microbatch in range(microbatches):
        for stage in range(stages):
            present = "".join(kind for kind in "FBIW" if (kind, stage, microbatch, None) in place)
            if present not in ("FB", "FIW"):
                raise _incomplete(place, stage, microbatch, present)


def _incomplete(place: Placement, stage: int, microbatch: int, present: str) -> ScheduleError:
    if "B" in present and len(present.strip("F")) > 1:
        other = Action(present.strip("FB")[0], stage, microbatch)
        whole = Action("B", stage, microbatch)
        return ScheduleError.faulty(place[other], str(other), f"{whole} already computes it")
    wanted = "FIW" if set(present) & {"I", "W"} else "FB"
    missing = Action(next(kind for kind in wanted if kind not in present), stage, microbatch)
    return ScheduleError.faulty(_rank_of_missing(place, missing), str(missing), "is missing")


def _rank_of_missing(place: Placement, missing: Action) -> int:
    """Return the rank that should run an action: one that runs the same micro-batch there, or else any of the stage."""
    ranks = {part.microbatch: rank for part, rank in place.items() if part.stage == missing.stage}
    return ranks.get(missing.microbatch, next(iter(ranks.values()), 0))
