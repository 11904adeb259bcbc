"""The rank that runs each action of an order, for look-ups by stage and micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagescope.schedules.action import Action
from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.schedules.action import Order

NO_RANK = -1

FEW_CELLS = 2**22
MOST_CELLS_PER_ACTION = 64
"""An order of some ranks of a run has one action in as many cells as there are ranks; its table is built up to this."""


class ActionIndex(NamedTuple):
    """The rank that runs each action; the entry for stage s and micro-batch j is at s * microbatches + j.

    `backward` covers full backwards (B) and input-gradient backwards (I): both produce the gradient that the previous
    stage waits for. `weight` covers full backwards and weight-gradient backwards (W). Entries are NO_RANK where the
    order lacks the action.
    """

    stages: int
    microbatches: int
    forward: list[int]
    backward: list[int]
    weight: list[int]

    @property
    def by_kind(self) -> dict[str, list[int]]:
        """The table in which the producers of each kind are found: I and B share one."""
        return {"F": self.forward, "B": self.backward, "I": self.backward, "W": self.weight}

    def action(self, kind: str, cell: int) -> Action:
        """Return the action of this kind at an entry."""
        return Action(kind, *divmod(cell, self.microbatches))


def index_actions(order: Order) -> ActionIndex:
    """Return the rank of every action of an order.

    Raises ScheduleError for an action that occurs twice, and for an order that has next to nothing of the stages and
    micro-batches that it numbers: its table would not fit into memory.
    """
    stages, microbatches = _extent(order)
    actions = sum(map(len, order.values()))
    if stages * microbatches > max(FEW_CELLS, MOST_CELLS_PER_ACTION * actions):
        raise ScheduleError.sparse(stages, microbatches, actions)
    forward, backward, weight = ([NO_RANK] * (stages * microbatches) for _ in range(3))
    index = ActionIndex(stages, microbatches, forward, backward, weight)
    # A full backward is entered as a weight gradient too, so that an order with both B and W is an error.
    tables = {"F": (forward,), "B": (backward, weight), "I": (backward,), "W": (weight,)}
    for rank, kind, stage, microbatch in actions_of(order):
        cell = stage * microbatches + microbatch
        for table in tables[kind]:
            if table[cell] != NO_RANK:
                raise ScheduleError.repeated_action(str(index.action(kind, cell)), (table[cell], rank))
            table[cell] = rank
    return index


def actions_of(order: Order) -> Iterator[tuple[int, str, int, int]]:
    """Yield rank, kind, stage and micro-batch of every action, both parts of a pair, in program order."""
    # Runs for every action of large orders: unpacking is several times as fast as `Action.parts`.
    for rank, actions in order.items():
        for kind, stage, microbatch, partner in actions:
            yield rank, kind, stage, microbatch
            if partner is not None:
                yield rank, partner.kind, partner.stage, partner.microbatch


def _extent(order: Order) -> tuple[int, int]:
    """Return the numbers of stages and micro-batches, from the largest indices that occur."""
    stages = microbatches = 0
    for _, _, stage, microbatch in actions_of(order):
        if stage >= stages:
            stages = stage + 1
        if microbatch >= microbatches:
            microbatches = microbatch + 1
    return stages, microbatches
