"""Chimera: two replicas of the model, a pipeline down and a pipeline up the ranks, in units of p micro-batches.

Source: arXiv 2107.06925; chimera_pipeline_rank.py of its repository, with two pipelines. A unit is p micro-batches,
half of them in each direction. With equal slots for forwards and backwards, micro-batch i of a direction runs its
forward on stage s in slot 2 i + s and its backward in slot 2 i + 2 p - 1 - s, which never collides with the other
direction because p is even. A unit starts every 2 p slots ("direct concatenation"); the sequence of slots is the
order. The generator of the repository agrees where it is complete: it repeats no unit of 2 ranks and has collisions
after the second unit with 6 or more ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.schedules.action import Action, Order
from stagescope.schedules.placement import stages_of
from stagescope.schedules.registry import Constraint, Schedule, Shape

if TYPE_CHECKING:
    from collections.abc import Iterator


def build(shape: Shape) -> Order:
    """Return the actions of each rank by slot; the first p/2 micro-batches of a unit go down the ranks."""
    p, m = shape.ranks, shape.microbatches
    return {r: [action for _, action in sorted(_slots(p, m, r))] for r in range(p)}


def _slots(p: int, m: int, r: int) -> Iterator[tuple[int, Action]]:
    half = p // 2
    for microbatch in range(m):
        unit, place = divmod(microbatch, p)
        direction, i = divmod(place, half)
        s = stages_of("bidirectional", p, 2, r)[direction]
        # Consecutive micro-batches of a direction start two slots apart, which leaves the odd slots to the other one.
        start = 2 * p * unit + 2 * i
        yield start + s, Action("F", s, microbatch)
        yield start + 2 * p - 1 - s, Action("B", s, microbatch)


SCHEDULE = Schedule(
    name="chimera",
    title="Chimera, bidirectional",
    source="arXiv 2107.06925",
    placement="bidirectional",
    peak_memory="p / 2 + 1 + min(r, p - 1 - r)",
    build=build,
    chunks=2,
    constraints=(
        Constraint("an even number of ranks", "arXiv 2107.06925", lambda s: s.ranks % 2 == 0, "ranks"),
        Constraint(
            "micro-batches in multiples of ranks", "arXiv 2107.06925", lambda s: s.microbatches % s.ranks == 0
        ),
    ),
)
