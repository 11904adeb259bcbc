"""Whether an order can be run at all: every job there, none twice, and none waiting for itself.

What a job waits for is said, once, in `simulate`, which runs every order that is whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.schedules.action import Action
from stagescope.schedules.simulator import simulate
from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from stagescope.schedules.action import Order

Place = dict[Action, int]
"""The rank of every job, pairs taken apart."""


def validate(order: Order) -> None:
    """Return nothing where an order is whole and can be run to its end.

    Raises ScheduleError for the first fault: a job that stands twice, that is missing, or that stands beside
    the other form of the same backward (B beside I or W); else for a deadlock, with its cycle. The numbers of
    stages and micro-batches are taken from the largest ones that occur.
    """
    place = _place_actions(order)
    _check_complete(place)
    simulate(order)


def _place_actions(order: Order) -> Place:
    place: Place = {}
    for rank, actions in order.items():
        for job in (job for action in actions for job in action.parts):
            if job in place:
                where = f"stands on rank {place[job]} already" if place[job] != rank else "stands twice"
                raise ScheduleError.faulty(rank, str(job), where)
            place[job] = rank
    return place


def _check_complete(place: Place) -> None:
    """Raise for the first micro-batch, and in it the first stage, whose jobs are not F and B, or F, I and W."""
    stages = max((job.stage for job in place), default=-1) + 1
    microbatches = max((job.microbatch for job in place), default=-1) + 1
    for microbatch in range(microbatches):
        for stage in range(stages):
            present = "".join(kind for kind in "FBIW" if (kind, stage, microbatch, None) in place)
            if present not in ("FB", "FIW"):
                raise _incomplete(place, stage, microbatch, present)


def _incomplete(place: Place, stage: int, microbatch: int, present: str) -> ScheduleError:
    if "B" in present and len(present.strip("F")) > 1:
        other = Action(present.strip("FB")[0], stage, microbatch)
        whole = Action("B", stage, microbatch)
        return ScheduleError.faulty(place[other], str(other), f"stands beside {whole}, which computes it too")
    wanted = "FIW" if set(present) & {"I", "W"} else "FB"
    missing = Action(next(kind for kind in wanted if kind not in present), stage, microbatch)
    return ScheduleError.faulty(_rank_of_missing(place, missing), str(missing), "is missing")


def _rank_of_missing(place: Place, missing: Action) -> int:
    """Return the rank that should do a job: that of the same micro-batch's other jobs there, or any of the stage."""
    there = {job.microbatch: rank for job, rank in place.items() if job.stage == missing.stage}
    return there.get(missing.microbatch, next(iter(there.values()), 0))
