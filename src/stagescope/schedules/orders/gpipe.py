"""GPipe: every forward, then every backward.

Source: arXiv 1811.06965, figure 2c, which runs the backwards last in, first out (`lifo`). ScheduleGPipe of
torch.distributed.pipelining and FThenB of Paddle run them first in, first out, which is the default here.
"""

from __future__ import annotations

from stagescope.schedules.action import Action, Order
from stagescope.schedules.registry import Option, Schedule, Shape


def build(shape: Shape) -> Order:
    """Return m forwards, then m backwards, for every rank."""
    m = range(shape.microbatches)
    backward = m[::-1] if shape.options["lifo"] else m
    return {
        r: [Action("F", r, i) for i in m] + [Action("B", r, i) for i in backward] for r in range(shape.ranks)
    }


SCHEDULE = Schedule(
    name="gpipe",
    title="GPipe, FThenB",
    source="arXiv 1811.06965, figure 2c",
    placement="linear",
    peak_memory="m",
    build=build,
    options=(Option("lifo", False, "True runs the backwards in reverse order, as in the paper's figure"),),
)
