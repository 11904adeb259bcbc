"""Comparison with the orders of the installed torch.distributed.pipelining, over many sizes."""

import pytest

from golden_orders import words
from stagescope.schedules import order
from stagescope.vocabulary.errors import ScheduleError

KINDS = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}
MULTI = {
    "interleaved": ("Interleaved1F1B", (2, 3, 4)),
    "looped-bfs": ("LoopedBFS", (2, 3)),
    "interleaved-zb": ("InterleavedZeroBubble", (2, 3, 4)),
    "zb-v": ("ZBVZeroBubble", (2,)),
    "dualpipev": ("DualPipeV", (2,)),
}
SIZES = [
    (ranks, microbatches) for ranks in (1, 2, 3, 4, 5, 8) for microbatches in (1, 2, 3, 4, 6, 8, 11, 16, 17)
]
by_sizes = pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([(1, 2), (2, 1), (2, 3), (3, 6), (4, 4), (4, 8), (4, 11), (5, 11)], id="usual"),
        pytest.param(SIZES, id="all", marks=pytest.mark.exhaustive),
    ],
)


def spelled(action):
    if action.sub_actions:
        return "+".join(spelled(each) for each in action.sub_actions)
    return f"{KINDS[action.computation_type.name]}{action.stage_index}.{action.microbatch_index}"


def of_torch(name, ranks, microbatches, chunks):
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops  # noqa: PLC0415 - slow

    try:
        rows = get_schedule_ops(name, ranks, microbatches, chunks)
    except ValueError:
        return None
    return {
        rank: [
            spelled(action)
            for action in row
            if action is not None and action.computation_type.name != "REDUCE_GRAD"
        ]
        for rank, row in enumerate(rows)
    }


def ours(name, ranks, microbatches, chunks):
    try:
        return words(order(name, ranks=ranks, microbatches=microbatches, chunks=chunks))
    except ScheduleError:
        return None


@pytest.mark.slow
@by_sizes
@pytest.mark.parametrize("name", MULTI)
def test_orders_and_refusals_equal_those_of_torch(name, sizes):
    torch_name, chunk_counts = MULTI[name]
    shapes = [(*size, chunks) for size in sizes for chunks in chunk_counts]
    different = [shape for shape in shapes if ours(name, *shape) != of_torch(torch_name, *shape)]
    assert different == []
    assert sum(ours(name, *shape) is not None for shape in shapes) > len(sizes) // 3


@pytest.mark.slow
@by_sizes
def test_gpipe_equals_torch(sizes):
    assert [size for size in sizes if ours("gpipe", *size, 1) != of_torch("GPipe", *size, 1)] == []


@pytest.mark.slow
@by_sizes
def test_1f1b_equals_torch_where_torch_numbers_forwards_correctly(sizes):
    """torch numbers the last rank's forwards from 1 to m, and rejects fewer micro-batches than ranks."""
    for ranks, microbatches in sizes:
        found = of_torch("1F1B", ranks, microbatches, 1)
        if found is None:
            assert microbatches < ranks
            continue
        own = ours("1f1b", ranks, microbatches, 1)
        assert {rank: own[rank] for rank in range(ranks - 1)} == {
            rank: found[rank] for rank in range(ranks - 1)
        }
        assert [word[0] for word in own[ranks - 1]] == [word[0] for word in found[ranks - 1]]
