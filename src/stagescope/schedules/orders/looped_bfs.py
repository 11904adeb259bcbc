"""Looped BFS (breadth first): each chunk runs all micro-batches before the next chunk starts.

Source: arXiv 2211.05953; the backwards run in reverse order of micro-batches, as in LoopedBFS of
torch.distributed.pipelining.
"""

from __future__ import annotations

from stagescope.schedules.action import Action, Order
from stagescope.schedules.placement import stages_of
from stagescope.schedules.registry import Schedule, Shape


def build(shape: Shape) -> Order:
    """Return all forwards chunk by chunk, then all backwards from the last action to the first."""
    order: Order = {}
    for r in range(shape.ranks):
        stages = stages_of("loop", shape.ranks, shape.chunks, r)
        forwards = [Action("F", stage, i) for stage in stages for i in range(shape.microbatches)]
        order[r] = forwards + [action._replace(kind="B") for action in reversed(forwards)]
    return order


SCHEDULE = Schedule(
    name="looped-bfs",
    title="Looped breadth-first pipeline",
    source="arXiv 2211.05953; LoopedBFS of torch.distributed.pipelining",
    placement="loop",
    peak_memory="m v",
    build=build,
    chunks=2,
    least_chunks=1,
)
