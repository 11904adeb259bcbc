"""Interleaved 1F1B (virtual pipeline): each rank holds v chunks and runs them in groups of micro-batches.

Source: arXiv 2104.04473, section 2.2; get_schedule_table of Megatron-LM: N micro-batches through chunk 0, the
same N through chunk 1, ..., then the next N. N is Megatron's microbatch_group_size_per_vp_stage. The backwards
follow the same table from the last chunk to the first.
"""

from __future__ import annotations

from stagescope.schedules.action import Action, Order
from stagescope.schedules.orders.alternation import alternate, overlap
from stagescope.schedules.placement import stages_of
from stagescope.schedules.registry import Constraint, Option, Schedule, Shape


def equal_group_size(ranks: int, microbatches: int) -> int:
    """Return the size of max(1, m // p) equal groups, as in torch: p if p divides m."""
    return microbatches // max(1, microbatches // ranks)


def group_size(shape: Shape) -> int:
    """Return N, the number of micro-batches that go through a chunk before the next chunk."""
    given: int | None = shape.options.get("group_size")
    return equal_group_size(shape.ranks, shape.microbatches) if given is None else given


def forwards_and_backwards(shape: Shape, rank: int) -> tuple[list[Action], list[Action]]:
    """Return the forwards and backwards of a rank in the order of the table."""
    m, n = shape.microbatches, group_size(shape)
    # The last group is shorter if N does not divide m.
    stages = stages_of("loop", shape.ranks, shape.chunks, rank)
    groups = [range(first, min(first + n, m)) for first in range(0, m, n)]
    return (
        [Action("F", stage, i) for group in groups for stage in stages for i in group],
        [Action("B", stage, i) for group in groups for stage in stages[::-1] for i in group],
    )


def warmup(shape: Shape, rank: int) -> int:
    """Return the number of forwards in the warm-up: (v - 1) N + 2 (p - r - 1)."""
    return (shape.chunks - 1) * group_size(shape) + 2 * (shape.ranks - rank - 1)


def build(shape: Shape) -> Order:
    """Return interleaved 1F1B: F and B alternate after the warm-up."""
    return {r: alternate(*forwards_and_backwards(shape, r), warmup(shape, r)) for r in range(shape.ranks)}


def build_overlapped(shape: Shape) -> Order:
    """Return the same in pairs F+B, after one more forward that makes the parts of a pair independent."""
    return {r: overlap(*forwards_and_backwards(shape, r), warmup(shape, r) + 1) for r in range(shape.ranks)}


def _equal_groups(shape: Shape) -> bool:
    given = shape.options.get("group_size") is not None
    return given or shape.microbatches % equal_group_size(shape.ranks, shape.microbatches) == 0


def _allowed_group(shape: Shape) -> bool:
    """Return whether Megatron-LM or torch allows the group size; other sizes can deadlock."""
    p, m, n = shape.ranks, shape.microbatches, group_size(shape)
    # torch: equal groups of any size, also below p.
    if n == equal_group_size(p, m) and m % n == 0:
        return True
    # Megatron-LM: with a last group below p the order can deadlock (docs/schedules.md has an example).
    return p <= n <= m and (m % n == 0 or m % n >= p)


EQUAL_GROUPS = Constraint(
    "micro-batches in max(1, microbatches // ranks) equal groups, or a group_size",
    "Interleaved1F1B of torch.distributed.pipelining",
    _equal_groups,
)
ALLOWED_GROUP = Constraint(
    "ranks <= group_size <= microbatches, and microbatches % group_size to be 0 or at least ranks",
    "forward_backward_pipelining_with_interleaving of Megatron-LM",
    _allowed_group,
    "group_size",
)
GROUP_SIZE = Option(
    "group_size",
    None,
    "number of micro-batches that go through a chunk before the next chunk; None: ranks if that divides the "
    "micro-batches, otherwise max(1, microbatches // ranks) equal groups",
    (int,),
)

INTERLEAVED = Schedule(
    name="interleaved",
    title="Interleaved 1F1B, virtual pipeline",
    source="arXiv 2104.04473, section 2.2; Megatron-LM; torch.distributed.pipelining",
    placement="loop",
    peak_memory="min(m v, (v - 1) N + 2 (p - r - 1) + 1)",
    build=build,
    chunks=2,
    least_chunks=1,
    options=(GROUP_SIZE,),
    constraints=(EQUAL_GROUPS, ALLOWED_GROUP),
)

OVERLAPPED = Schedule(
    name="interleaved-overlap",
    title="Interleaved 1F1B with overlapped pairs",
    source="overlap_moe_expert_parallel_comm of Megatron-LM",
    placement="loop",
    peak_memory="min(m v, (v - 1) N + 2 (p - r - 1) + 2)",
    build=build_overlapped,
    chunks=2,
    least_chunks=2,
    options=(GROUP_SIZE,),
    constraints=(EQUAL_GROUPS, ALLOWED_GROUP),
)
