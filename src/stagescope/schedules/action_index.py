"""Which rank runs which action: the index that simulation and bounds look things up in."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagescope.schedules.action import Action
from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.schedules.action import Order

NOBODY = -1


class ActionIndex(NamedTuple):
    """Where the actions of an order run; the action of stage s and micro-batch j stands at s * microbatches + j.

    `backward` covers full backwards and input-gradient backwards, which produce the gradient that the stage
    below waits for. `weight` covers full backwards and weight-gradient backwards.
    """

    stages: int
    microbatches: int
    forward: list[int]
    backward: list[int]
    weight: list[int]

    def action(self, kind: str, cell: int) -> Action:
        """Return the action of a cell."""
        return Action(kind, *divmod(cell, self.microbatches))


def index_actions(order: Order) -> ActionIndex:
    """Return which rank runs which action, NOBODY where none does; raises ScheduleError for a action that runs twice."""
    stages, microbatches = _extent(order)
    forward, backward, weight = ([NOBODY] * (stages * microbatches) for _ in range(3))
    index = ActionIndex(stages, microbatches, forward, backward, weight)
    tables = {"F": (forward,), "B": (backward, weight), "I": (backward,), "W": (weight,)}
    for rank, kind, stage, microbatch in actions_of(order):
        cell = stage * microbatches + microbatch
        for table in tables[kind]:
            if table[cell] != NOBODY:
                raise ScheduleError.repeated_action(str(index.action(kind, cell)), (table[cell], rank))
            table[cell] = rank
    return index


def actions_of(order: Order) -> Iterator[tuple[int, str, int, int]]:
    """Yield rank, kind, stage and micro-batch of every action, rank by rank in program order."""
    for rank, actions in order.items():
        for kind, stage, microbatch, partner in actions:
            yield rank, kind, stage, microbatch
            if partner is not None:
                yield rank, partner.kind, partner.stage, partner.microbatch


def _extent(order: Order) -> tuple[int, int]:
    """Return one more than the last stage and one more than the last micro-batch."""
    stages = microbatches = 0
    for _, _, stage, microbatch in actions_of(order):
        if stage >= stages:
            stages = stage + 1
        if microbatch >= microbatches:
            microbatches = microbatch + 1
    return stages, microbatches
