"""1F1B-V: full backwards on a V, with two thirds of the memory of 1F1B for many ranks.

Source: Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, section 2 (a building block is repeated,
then reordered), with the decisions of `scheduler/v1f1b.py` in sail-sg/zero-bubble-pipeline-parallelism, which also has
the name 1F1B-V. The order does not depend on costs. An F takes one slot, the full backward two:

    1. The building block: F down and up the V, B down and up again, in slots that do not collide with
       those of the next micro-batches, one every six slots. Three consecutive B fill a period; the next one then waits
       three more slots.
    2. In the order of their slots, each action moves to the first free slot that its input and the same pass of the
       previous micro-batch allow; an F only as far as the peak of memory does not rise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.schedules.action import Action, Order
from stagescope.schedules.orders.lane import DOWN, FORWARDS, PERIOD, Lane, SlotAction
from stagescope.schedules.registry import Schedule, Shape

if TYPE_CHECKING:
    from collections.abc import Iterator

_KINDS = ("F", "F", "B", "B")
_WIDTHS = (1, 1, 2, 2)


def build(shape: Shape) -> Order:
    """Return the order of every rank."""
    p, m = shape.ranks, shape.microbatches
    actions = sorted(
        SlotAction(slot + PERIOD * i, rank, passing, i)
        for passing, slots in enumerate(building_block(p))
        for rank, slot in enumerate(slots)
        for i in range(m)
    )
    order: Order = {rank: [] for rank in range(p)}
    for each in sorted(_pull(actions, p)):
        stage = each.rank if each.passing in (0, 3) else 2 * p - 1 - each.rank
        order[each.rank].append(Action(_KINDS[each.passing], stage, each.microbatch))
    return order


def building_block(p: int) -> list[list[int]]:
    """Return the first slot of micro-batch 0 by pass and rank, before any action is moved."""
    forwards = [[PERIOD + 1 + r for r in range(p)], [PERIOD + 2 * p - r for r in range(p)]]
    # A B takes two slots, so three of them fill a period of six. The shift for multiples of 3 is that of the source.
    slot = PERIOD + 2 * p + 1 + (3 if p % 3 == 0 else 0)
    backwards = []
    for number in range(2 * p):
        backwards.append(slot)
        slot += 5 if (number - p) % 3 == 1 else 2
    return [*forwards, backwards[:p], backwards[: p - 1 : -1]]


def _pull(actions: list[SlotAction], p: int) -> Iterator[SlotAction]:
    """Yield every action in its final slot; `actions` are sorted."""
    lanes = _lanes(actions, p)
    limit = max(max(lane.memory) for lane in lanes)
    ends: dict[tuple[int, int, int], int] = {}
    for action in actions:
        lane, width = lanes[action.rank], _WIDTHS[action.passing]
        lane.reach(action.slot, width)
        # The actions of a pass keep the order of micro-batches.
        before = ends.get((action.passing, action.rank, action.microbatch - 1), 0)
        slot = lane.first_free(max(before, _input_end(action, p, ends)), action.slot, width)
        # A B frees memory, so moving it to an earlier slot never raises the peak. An F moved forward may.
        if slot < action.slot and action.passing in FORWARDS:
            slot = lane.first_free(lane.after_full(slot, action.slot, limit), action.slot)
        if slot < action.slot:
            lane.move(action.slot, slot, width)
            lane.hold(slot + width - 1, action.slot + width - 1, _held(action))
        ends[action.passing, action.rank, action.microbatch] = slot + width
        yield action._replace(slot=slot)


def _input_end(action: SlotAction, p: int, ends: dict[tuple[int, int, int], int]) -> int:
    """Return the first slot after the input of an action."""
    rank = action.rank - 1 if DOWN[action.passing] else action.rank + 1
    if 0 <= rank < p:
        return ends[action.passing, rank, action.microbatch]
    return ends[action.passing - 1, action.rank, action.microbatch] if action.passing else 0


def _held(action: SlotAction) -> int:
    """Return the change of the activations in flight, in the last slot of an action."""
    return 1 if action.passing in FORWARDS else -1


def _lanes(actions: list[SlotAction], p: int) -> list[Lane]:
    """Return the lane of each rank before any action is moved."""
    changes: list[list[tuple[int, int]]] = [[] for _ in range(p)]
    for action in actions:
        changes[action.rank].append((action.slot + _WIDTHS[action.passing] - 1, _held(action)))
    return [Lane(own, actions[-1].slot + PERIOD) for own in changes]


SCHEDULE = Schedule(
    name="1f1b-v",
    title="1F1B, V placement",
    source="arXiv 2405.15362, section 2; v1f1b.py of sail-sg/zero-bubble-pipeline-parallelism",
    placement="v",
    peak_memory="min(2 m, 2 floor((2 p + 3) / 3))",
    build=build,
    chunks=2,
)
