"""1F1B and its variants with one stage per rank; they differ in the warm-up and in the overlap of F and B.

1f1b          warm-up p - r - 1, then F and B alternate   arXiv 2104.04473, section 2.2 (PipeDream-flush)
eager-1f1b    warm-up 2 (p - r - 1), hides the steady     arXiv 2211.05322, eager-1F1B
              phase's communication
1f1b-overlap  warm-up 2 (p - r - 1) + 1, then F+B pairs   PP-Schedule-Visualization, 1F1B with batch
              whose communication hides behind the other  overlap, for mixture-of-experts all-to-all
"""

from __future__ import annotations

from stagescope.schedules.action import Action, Order
from stagescope.schedules.orders.alternation import alternate, overlap
from stagescope.schedules.registry import Schedule, Shape


def forwards_and_backwards(stage: int, microbatches: int) -> tuple[list[Action], list[Action]]:
    """Return the forwards and the backwards of a stage, both in the order of micro-batches."""
    m = range(microbatches)
    return [Action("F", stage, i) for i in m], [Action("B", stage, i) for i in m]


def one_f_one_b(shape: Shape) -> Order:
    """Return 1F1B: the fewest forwards in the warm-up that keep the last rank busy."""
    return {r: rank_order(r, shape.ranks, shape.microbatches) for r in range(shape.ranks)}


def rank_order(rank: int, ranks: int, microbatches: int) -> list[Action]:
    """Return the actions of a single rank in 1F1B."""
    return alternate(*forwards_and_backwards(rank, microbatches), ranks - rank - 1)


def eager(shape: Shape) -> Order:
    """Return eager 1F1B: twice as many forwards in the warm-up, so that the steady phase never waits for messages."""
    p, m = shape.ranks, shape.microbatches
    return {r: alternate(*forwards_and_backwards(r, m), 2 * (p - r - 1)) for r in range(p)}


def overlapped(shape: Shape) -> Order:
    """Return 1F1B in overlapped pairs: one more forward in the warm-up makes the parts of a pair independent."""
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
