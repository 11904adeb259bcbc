"""V-Half and V-Min: zero-bubble orders on a V with about 1/2 and 1/3 of the memory of 1F1B.

Source: Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, section 3 (building blocks on a V: the
time between a pass and its backward determines the memory) and section 2 (blocks are repeated, squeezed and reordered),
with the decisions of `scheduler/zbv_greedy.py` in sail-sg/zero-bubble-pipeline-parallelism. The orders do not depend on
costs:

    1. `v_half_pattern`, `v_min_pattern`: the slots of F and I of micro-batch 0; each further
       micro-batch comes six slots later; W fills free slots, oldest first.
    2. Reorder, with W: actions of the warm-up and the cool-down move to the first free slot that their input allows
       and where the peak of memory does not rise; then all actions are squeezed to the left.
    3. Reorder, without W: F and I of the cool-down move to any slot without F or I, and W makes way.
    4. W fills the remaining slots, first the chunk whose I come first.
"""

from __future__ import annotations

from stagescope.schedules.action import Action, Order
from stagescope.schedules.orders.lane import PERIOD
from stagescope.schedules.orders.reorder import (
    Slots,
    pull_around_weights,
    pull_with_weights,
    weights_by_chunk,
)
from stagescope.schedules.registry import Schedule, Shape


def v_half_pattern(p: int, r: int) -> tuple[int, int, int, int]:
    """Return the slots of F0, F1, I1, I0 of micro-batch 0 on rank r; passes go down half as fast as up."""
    shift = 3 if p % 2 == 0 else 0
    return 2 * r, 3 * p - r - 2, 3 * p + shift + 2 * r - 1, 6 * p + shift - r - 2


def v_min_pattern(p: int, r: int) -> tuple[int, int, int, int]:
    """Return the slots of F0, F1, I1, I0 of micro-batch 0 on rank r; each as early as its input allows."""
    shift = 2 if p % 3 == 0 else 0
    return r, 2 * p - r - 1, 2 * p + shift + r, 4 * p + shift - r - 1


def v_half(shape: Shape) -> Order:
    """Return the order of every rank of V-Half."""
    return _order(shape, [v_half_pattern(shape.ranks, r) for r in range(shape.ranks)])


def v_min(shape: Shape) -> Order:
    """Return the order of every rank of V-Min."""
    return _order(shape, [v_min_pattern(shape.ranks, r) for r in range(shape.ranks)])


def _order(shape: Shape, pattern: list[tuple[int, int, int, int]]) -> Order:
    p, m = shape.ranks, shape.microbatches
    slots: Slots = [
        [list(range(first, first + PERIOD * m, PERIOD)) for first in firsts] for firsts in pattern
    ]
    slots = pull_around_weights(pull_with_weights(slots))
    return {r: _actions(p, r, [*slots[r], *weights_by_chunk(slots[r])]) for r in range(p)}


def _actions(p: int, r: int, slots: list[list[int]]) -> list[Action]:
    """Return the actions of a rank from the slots of its F0, F1, I1, I0, W1 and W0."""
    low, high = r, 2 * p - 1 - r
    actions = zip("FFIIWW", (low, high, high, low, high, low), slots, strict=True)
    timed = (
        (slot, Action(kind, stage, microbatch))
        for kind, stage, times in actions
        for microbatch, slot in enumerate(times)
    )
    return [action for _, action in sorted(timed)]


V_HALF = Schedule(
    name="v-half",
    title="V-Half, half the memory of 1F1B",
    source="arXiv 2405.15362, section 3",
    placement="v",
    peak_memory="min(2 m, 2 floor((p + 2) / 2))",
    build=v_half,
    chunks=2,
)

V_MIN = Schedule(
    name="v-min",
    title="V-Min, a third of the memory of 1F1B",
    source="arXiv 2405.15362, section 3",
    placement="v",
    peak_memory="min(2 m, 2 floor((p + 4) / 3))",
    build=v_min,
    chunks=2,
)
