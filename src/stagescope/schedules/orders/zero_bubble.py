"""Handcrafted zero-bubble schedules: split backwards, with weight gradients where a rank would otherwise wait.

Source: arXiv 2401.10241, sections 2.2 and 2.3. With ranks counted from 0:

    zb-h1           1F1B, W r backwards later: the memory of 1F1B
    zb-h2           warm-up 2 (p - r - 1), W 2 r backwards later: nearly twice that memory, and no bubble at
                    F = I = W if the optimizer does not synchronize the ranks
    interleaved-zb  zb-h1 on the groups of interleaved 1F1B, as InterleavedZeroBubble in
                    torch.distributed.pipelining (which calls it ZB1P; with one chunk it is zb-h1)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.schedules.orders import interleaved
from stagescope.schedules.orders.alternation import alternate, split_backwards
from stagescope.schedules.orders.one_f_one_b import forwards_and_backwards
from stagescope.schedules.registry import Schedule, Shape

if TYPE_CHECKING:
    from stagescope.schedules.action import Order


def h1(shape: Shape) -> Order:
    """Return ZB-H1: 1F1B with a lag of r."""
    p, m = shape.ranks, shape.microbatches
    return {r: split_backwards(alternate(*forwards_and_backwards(r, m), p - r - 1), lag=r) for r in range(p)}


def h2(shape: Shape) -> Order:
    """Return ZB-H2: as many forwards ahead as eager 1F1B, and a lag of 2 r."""
    p, m = shape.ranks, shape.microbatches
    turns = {r: alternate(*forwards_and_backwards(r, m), 2 * (p - r - 1)) for r in range(p)}
    return {r: split_backwards(actions, lag=2 * r) for r, actions in turns.items()}


def loop(shape: Shape) -> Order:
    """Return the interleaved form: warm-up (v - 1) N + p - r - 1, and a lag of r."""
    ahead = (shape.chunks - 1) * interleaved.group_size(shape) - 1
    order: Order = {}
    for r in range(shape.ranks):
        turns = alternate(*interleaved.forwards_and_backwards(shape, r), ahead + shape.ranks - r)
        order[r] = split_backwards(turns, lag=r)
    return order


H1 = Schedule(
    name="zb-h1",
    title="Zero bubble, handcrafted 1",
    source="arXiv 2401.10241, section 2.2",
    placement="linear",
    peak_memory="min(m, p)",
    build=h1,
)

H2 = Schedule(
    name="zb-h2",
    title="Zero bubble, handcrafted 2",
    source="arXiv 2401.10241, section 2.3",
    placement="linear",
    peak_memory="min(m, 2 p - 1)",
    build=h2,
)

INTERLEAVED = Schedule(
    name="interleaved-zb",
    title="Interleaved zero bubble",
    source="InterleavedZeroBubble of torch.distributed.pipelining, after arXiv 2401.10241",
    placement="loop",
    peak_memory="min(m v, (v - 1) N + p)",
    build=loop,
    chunks=2,
    least_chunks=1,
    constraints=(interleaved.EQUAL_GROUPS,),
)
