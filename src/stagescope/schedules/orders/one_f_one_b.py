"""1F1B and its relatives with one stage per rank; they differ in their warm-up, and in what a turn is.

1f1b          warm-up p - r - 1, then F and B in turn     arXiv 2104.04473, section 2.2 (PipeDream-flush)
eager-1f1b    warm-up 2 (p - r - 1), hides the steady     arXiv 2211.05322, eager-1F1B
              phase's communication
1f1b-overlap  warm-up 2 (p - r - 1) + 1, then F+B pairs   PP-Schedule-Visualization, 1F1B with batch
              whose communication hides behind the other  overlap, for mixture-of-experts all-to-all
"""

from __future__ import annotations

from stagescope.schedules.action import Action, Order
from stagescope.schedules.recognition.alternation import alternate, overlap
from stagescope.schedules.registry import Schedule, Shape


def forwards_and_backwards(stage: int, microbatches: int) -> tuple[list[Action], list[Action]]:
    """Return a stage's forwards and its backwards, both in the order of micro-batches."""
    m = range(microbatches)
    return [Action("F", stage, i) for i in m], [Action("B", stage, i) for i in m]


def one_f_one_b(shape: Shape) -> Order:
    """Return 1F1B: as few forwards ahead as keep the last rank busy."""
    return {r: rank_order(r, shape.ranks, shape.microbatches) for r in range(shape.ranks)}


def rank_order(rank: int, ranks: int, microbatches: int) -> list[Action]:
    """Return what one rank does in 1F1B, without what all the others do."""
    return alternate(*forwards_and_backwards(rank, microbatches), ranks - rank - 1)


def eager(shape: Shape) -> Order:
    """Return Eager-1F1B: twice as many forwards ahead, so that no turn waits for a message."""
    p, m = shape.ranks, shape.microbatches
    return {r: alternate(*forwards_and_backwards(r, m), 2 * (p - r - 1)) for r in range(p)}


def overlapped(shape: Shape) -> Order:
    """Return 1F1B in overlapped pairs: one forward more, so that the halves of a pair are independent."""
    p, m = shape.ranks, shape.microbatches
    return {r: overlap(*forwards_and_backwards(r, m), 2 * (p - r - 1) + 1) for r in range(p)}


ONE_F_ONE_B = Schedule(
    name="1f1b",
    title="1F1B, PipeDream-flush",
    source="arXiv 2104.04473, section 2.2",
    placement="linear",
    peak_memory="min(m, p - r)",
    build=one_f_one_b,
)

EAGER = Schedule(
    name="eager-1f1b",
    title="Eager 1F1B",
    source="arXiv 2211.05322",
    placement="linear",
    peak_memory="min(m, 2 (p - r) - 1)",
    build=eager,
)

OVERLAPPED = Schedule(
    name="1f1b-overlap",
    title="1F1B with overlapped pairs",
    source="PP-Schedule-Visualization, 1F1B batch overlap",
    placement="linear",
    peak_memory="min(m, 2 (p - r))",
    build=overlapped,
)
