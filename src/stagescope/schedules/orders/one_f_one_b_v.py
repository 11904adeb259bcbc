"""1F1B-V: full backwards on a V, with two thirds of 1F1B's memory where there are many ranks.

Source: Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, section 2 (a building block is repeated,
then reordered); decisions as sail-sg/zero-bubble-pipeline-parallelism `scheduler/v1f1b.py`, whose authors name
it 1F1B-V. The order does not depend on costs. An F takes one slot, the full backward two:

    1. The building block: F down and up the V, B down and up again, in slots that do not meet those of the
       next micro-batches, which come every six slots. Three B in a row cover a period; the next one then
       waits three slots more.
    2. Action by action in the order of their slots, each is pulled into the first free slot that its input and the
       same job of the micro-batch before allow; an F only as far as the peak of memory does not rise.
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
    jobs = sorted(
        SlotAction(slot + PERIOD * i, rank, passing, i)
        for passing, slots in enumerate(building_block(p))
        for rank, slot in enumerate(slots)
        for i in range(m)
    )
    order: Order = {rank: [] for rank in range(p)}
    for job in sorted(_pull(jobs, p)):
        stage = job.rank if job.passing in (0, 3) else 2 * p - 1 - job.rank
        order[job.rank].append(Action(_KINDS[job.passing], stage, job.microbatch))
    return order


def building_block(p: int) -> list[list[int]]:
    """Return the first slot of micro-batch 0 by pass and rank, before anything is pulled."""
    forwards = [[PERIOD + 1 + r for r in range(p)], [PERIOD + 2 * p - r for r in range(p)]]
    slot = PERIOD + 2 * p + 1 + (3 if p % 3 == 0 else 0)
    backwards = []
    for number in range(2 * p):
        backwards.append(slot)
        slot += 5 if (number - p) % 3 == 1 else 2
    return [*forwards, backwards[:p], backwards[: p - 1 : -1]]


def _pull(jobs: list[SlotAction], p: int) -> Iterator[SlotAction]:
    """Yield every job in its final slot; `jobs` are sorted."""
    lanes = _lanes(jobs, p)
    limit = max(max(lane.memory) for lane in lanes)
    ends: dict[tuple[int, int, int], int] = {}
    for job in jobs:
        lane, width = lanes[job.rank], _WIDTHS[job.passing]
        lane.reach(job.slot, width)
        before = ends.get((job.passing, job.rank, job.microbatch - 1), 0)
        slot = lane.first_free(max(before, _input_end(job, p, ends)), job.slot, width)
        if slot < job.slot and job.passing in FORWARDS:
            slot = lane.first_free(lane.after_full(slot, job.slot, limit), job.slot)
        if slot < job.slot:
            lane.move(job.slot, slot, width)
            lane.hold(slot + width - 1, job.slot + width - 1, _held(job))
        ends[job.passing, job.rank, job.microbatch] = slot + width
        yield job._replace(slot=slot)


def _input_end(job: SlotAction, p: int, ends: dict[tuple[int, int, int], int]) -> int:
    """Return the slot from which on the input of a job is there."""
    rank = job.rank - 1 if DOWN[job.passing] else job.rank + 1
    if 0 <= rank < p:
        return ends[job.passing, rank, job.microbatch]
    return ends[job.passing - 1, job.rank, job.microbatch] if job.passing else 0


def _held(job: SlotAction) -> int:
    """Return what a job adds to the activations in flight, in its last slot."""
    return 1 if job.passing in FORWARDS else -1


def _lanes(jobs: list[SlotAction], p: int) -> list[Lane]:
    """Return the lane of each rank before anything is pulled."""
    changes: list[list[tuple[int, int]]] = [[] for _ in range(p)]
    for job in jobs:
        changes[job.rank].append((job.slot + _WIDTHS[job.passing] - 1, _held(job)))
    return [Lane(mine, jobs[-1].slot + PERIOD) for mine in changes]


SCHEDULE = Schedule(
    name="1f1b-v",
    title="1F1B, V placement",
    source="arXiv 2405.15362, section 2; v1f1b.py of sail-sg/zero-bubble-pipeline-parallelism",
    placement="v",
    peak_memory="min(2 m, 2 floor((2 p + 3) / 3))",
    build=build,
    chunks=2,
)
