"""ZB-V: two chunks per rank on a V, with no bubble at F = I = W in the memory of 1F1B.

Source: arXiv 2401.10241, section 6; ZBVZeroBubble of torch.distributed.pipelining. With fewer than 2 p - 1
micro-batches, torch builds the order of 2 p - 1 and omits those that do not exist. With `costs` the order is searched
(`zero_bubble_v_search`), which is faster with few micro-batches and for unequal F, I and W.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.schedules.costs import Costs
from stagescope.schedules.orders.zero_bubble_v_search import searched
from stagescope.schedules.placement import stages_of
from stagescope.schedules.registry import Option, Schedule, Shape
from stagescope.schedules.script import Chunk, expand_script

if TYPE_CHECKING:
    from stagescope.schedules.action import Order


def build(shape: Shape) -> Order:
    """Return the fixed order of torch without micro-batches that do not exist, or the best order for the costs."""
    if shape.options["costs"] is not None:
        return searched(shape)
    p, m = shape.ranks, shape.microbatches
    order: Order = {}
    for r in range(p):
        chunks = [Chunk(stage) for stage in stages_of("v", p, 2, r)]
        # At least 2 p - 1 micro-batches: the script has fixed phase lengths, as in torch.
        complete = expand_script(script(p, max(m, 2 * p - 1), r), chunks)
        order[r] = [action for action in complete if action.microbatch < m]
    return order


def script(p: int, m: int, r: int) -> list[tuple[int, str]]:
    """Return the script of rank r for m >= 2 p - 1 micro-batches."""
    return [
        (2 * (p - r) - 1, "F0"),
        (r, "F1 F0"),
        (p - r, "F1 I1 W1"),
        (m - 2 * p + r + 1, "F0 I0 W0 F1 I1 W1"),
        (p - r - 1, "I0 W0 F1 I1 W1"),
        (r, "I0 I1"),
        (p - r, "I0 W0"),
        (r, "W1"),
        (r, "W0"),
    ]


SCHEDULE = Schedule(
    name="zb-v",
    title="Zero bubble, V placement",
    source="arXiv 2401.10241, section 6; ZBVZeroBubble of torch.distributed.pipelining",
    placement="v",
    peak_memory="min(2 m, 2 p)",
    build=build,
    chunks=2,
    options=(
        Option(
            "costs",
            None,
            "Costs of the actions and hops to search an order for, None for the fixed order",
            (Costs,),
        ),
    ),
)
