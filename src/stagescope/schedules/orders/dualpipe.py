"""DualPipe, two replicas in opposite directions, and DualPipeV, one half of it folded into a V.

Source: arXiv 2412.19437, section 3.2.1; the eight steps of the DualPipe repository. Chunk 0 is the chunk with which a
rank begins: in DualPipe the direction that enters the pipeline at the nearer end, in DualPipeV the first stage of the
V. Rank r of a DualPipeV with p ranks and m micro-batches runs the script of ranks r and 2 p - 1 - r of a DualPipe
with 2 p ranks and 2 m micro-batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.schedules.placement import stages_of
from stagescope.schedules.registry import Constraint, Option, Schedule, Shape
from stagescope.schedules.script import Chunk, expand_script

if TYPE_CHECKING:
    from stagescope.schedules.action import Order


def dualpipe(shape: Shape) -> Order:
    """Return DualPipe: the first m/2 micro-batches go down the ranks, the others go up."""
    p, half_m = shape.ranks, shape.microbatches // 2
    order: Order = {}
    for r in range(p):
        down, up = stages_of("bidirectional", p, 2, r)
        near_first = [Chunk(down), Chunk(up, half_m)]
        # Both halves of the ranks run the same script, mirrored: the distance from the nearer end decides.
        distance = min(r, p - 1 - r)
        chunks = near_first if distance == r else near_first[::-1]
        order[r] = expand_script(script(p // 2, half_m, distance), chunks)
    return order


def dualpipev(shape: Shape) -> Order:
    """Return DualPipeV, with a split or whole cool-down by the option `split_cooldown`."""
    p, m = shape.ranks, shape.microbatches
    split = shape.options["split_cooldown"]
    return {
        r: expand_script(
            script(p, m, r, split_cooldown=split), [Chunk(stage) for stage in stages_of("v", p, 2, r)]
        )
        for r in range(p)
    }


def script(h: int, m: int, r: int, *, split_cooldown: bool = True) -> list[tuple[int, str]]:
    """Return the eight steps of the rank at distance r from its end, with h ranks between an end and the middle."""
    last = r == h - 1
    return [
        (2 * (h - r - 1), "F0"),
        (r + 1, "F0 F1"),
        (h - r - 1, "I1 W1 F1"),
        # On the innermost rank the first pair is not overlapped: its forward need not wait for its backward.
        (1, "F0 B1 F1+B0" if last else "F0+B1 F1+B0"),
        (m - 2 * h + r, "F0+B1 F1+B0"),
        (h - r - 1, "B1 F1+B0"),
        *(_split_cooldown(h, r) if split_cooldown else [(r + 1, "B1 B0"), (h - r - 1, "B0")]),
    ]


def _split_cooldown(h: int, r: int) -> list[tuple[int, str]]:
    """Return the cool-down whose second half fills waits with weight gradients.

    2 (r + 1) backwards alternate between the chunks; the last r + 1 of them are split.
    """
    whole = ["B1", "B0"] * ((r + 1) // 2) + ["B1"] * ((r + 1) % 2)
    split = ["I0"] * ((r + 1) % 2) + ["I1", "I0"] * ((r + 1) // 2)
    return [(1, " ".join([*whole, *split])), (h - r - 1, "W I0"), (r + 1, "W")]


ENOUGH = Constraint(
    "at least 2 x ranks micro-batches", "the DualPipe repository", lambda s: s.microbatches >= 2 * s.ranks
)

DUALPIPE = Schedule(
    name="dualpipe",
    title="DualPipe",
    source="arXiv 2412.19437, section 3.2.1; the DualPipe repository",
    placement="bidirectional",
    peak_memory="p + 1",
    build=dualpipe,
    chunks=2,
    constraints=(
        Constraint("an even number of ranks", "the DualPipe repository", lambda s: s.ranks % 2 == 0, "ranks"),
        Constraint(
            "an even number of micro-batches", "the DualPipe repository", lambda s: s.microbatches % 2 == 0
        ),
        ENOUGH,
    ),
)

DUALPIPEV = Schedule(
    name="dualpipev",
    title="DualPipeV, DualPipe cut in half",
    source="the DualPipe repository; DualPipeV of torch.distributed.pipelining",
    placement="v",
    peak_memory="2 p + 1",
    build=dualpipev,
    chunks=2,
    options=(
        Option(
            "split_cooldown",
            True,
            "False runs whole backwards in the cool-down, as in the chart of MindSpeed",
        ),
    ),
    constraints=(ENOUGH,),
)
