"""The catalog: every schedule that stagescope knows, and the orders built from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.schedules.orders import (
    chimera,
    dualpipe,
    gpipe,
    interleaved,
    looped_bfs,
    one_f_one_b,
    one_f_one_b_v,
    stable_v,
    zb_v,
    zero_bubble,
    zero_bubble_search,
)
from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from stagescope.schedules.action import Order
    from stagescope.schedules.registry import Schedule

SCHEDULES: tuple[Schedule, ...] = (
    gpipe.SCHEDULE,
    one_f_one_b.ONE_F_ONE_B,
    one_f_one_b.EAGER,
    one_f_one_b.OVERLAPPED,
    interleaved.INTERLEAVED,
    interleaved.OVERLAPPED,
    looped_bfs.SCHEDULE,
    zero_bubble.H1,
    zero_bubble.H2,
    zero_bubble_search.ZB_1P,
    zero_bubble_search.ZB_2P,
    zero_bubble.INTERLEAVED,
    zb_v.SCHEDULE,
    stable_v.V_HALF,
    stable_v.V_MIN,
    one_f_one_b_v.SCHEDULE,
    chimera.SCHEDULE,
    dualpipe.DUALPIPE,
    dualpipe.DUALPIPEV,
)
"""Every schedule, with related ones next to each other. Of equal orders, recognition names the first one here."""

NAMES: tuple[str, ...] = tuple(schedule.name for schedule in SCHEDULES)
"""The names of all schedules, in the order of SCHEDULES."""

MOST_FORWARDS = 10_000_000
"""Of one order, which is in memory as a whole: 40 times those of 512 ranks and 512 micro-batches."""

_BY_NAME = {schedule.name: schedule for schedule in SCHEDULES}


def find_schedule(name: str) -> Schedule:
    """Return the schedule of this name; raises ScheduleError for a name that is not in `NAMES`."""
    if name not in _BY_NAME:
        raise ScheduleError.unknown(name, NAMES)
    return _BY_NAME[name]


def order(name: str, *, ranks: int, microbatches: int, chunks: int | None = None, **options: object) -> Order:
    """Return the actions of every rank in one training step, in program order.

    `chunks` is the number of model chunks per rank, None for the default of the schedule; docs/schedules.md lists the
    options and constraints of each schedule. Raises ScheduleError for an unknown name or option and for sizes that
    the schedule cannot have; the message has the constraint, its source and the nearest valid sizes.

    >>> print(*order("1f1b", ranks=2, microbatches=3)[0])
    F0.0 F0.1 B0.0 F0.2 B0.1 B0.2
    """
    schedule = find_schedule(name)
    shape = schedule.shape(ranks, microbatches, chunks, options)
    if (size := ranks * microbatches * (chunks or 1)) > MOST_FORWARDS:
        raise ScheduleError.too_large(size, MOST_FORWARDS)
    return schedule.build(shape)
