"""Parallel coordinates of ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagescope.ingest.layout import Layout, coordinates
from stagescope.vocabulary.errors import InputError, UsageError


def rows(layout: Layout, world_size: int) -> list[tuple[int, ...]]:
    return coordinates(range(world_size), layout, world_size).select("pp", "dp", "tp", "cp").rows()


def test_megatrons_order_makes_tensor_ranks_adjacent_and_stages_distant():
    # megatron/core/parallel_state.py of Megatron-core 0.16, the example of its docstring: 16 ranks, tp 2, pp 4.
    found = coordinates(range(16), Layout(tp=2, pp=4), 16)
    groups = found.group_by("tp", "dp", maintain_order=True).agg("rank")["rank"].to_list()
    assert groups == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]


def test_context_parallelism_multiplies_the_ranks():
    found = coordinates(range(16), Layout(pp=4, cp=2, dp=2))
    assert found["pp"].to_list() == [rank // 4 for rank in range(16)]
    assert found["cp"].to_list() == [rank % 2 for rank in range(16)]


def test_an_order_with_pp_first_numbers_stages_first():
    assert [row[0] for row in rows(Layout(pp=2, dp=2, order="pp-dp"), 4)] == [0, 1, 0, 1]


def test_expert_parallelism_in_the_order_is_ignored():
    assert rows(Layout(pp=2, tp=2, order="tp-ep-pp"), 4) == rows(Layout(pp=2, tp=2, order="tp-pp"), 4)


@pytest.mark.parametrize(
    ("layout", "sizes"),
    [
        (Layout(), {"pp": 12, "dp": 1, "tp": 1, "cp": 1}),
        (Layout(tp=2), {"pp": 6, "dp": 1, "tp": 2, "cp": 1}),
        (Layout(pp=3), {"pp": 3, "dp": 4, "tp": 1, "cp": 1}),
        (Layout(dp=2, cp=3), {"pp": 2, "dp": 2, "tp": 1, "cp": 3}),
        (Layout(pp=4, dp=4), {"pp": 4, "dp": 4, "tp": 1, "cp": 1}),
    ],
)
def test_the_missing_size_takes_the_remaining_factor(layout, sizes):
    assert layout.sizes(12) == sizes


def test_sizes_that_do_not_divide_the_ranks_are_rejected():
    with pytest.raises(InputError, match=r"^12 ranks cannot be divided by pp 5 \(together 5\)$"):
        Layout(pp=5).sizes(12)


def test_sizes_for_too_few_ranks_are_rejected():
    with pytest.raises(InputError, match=r"^pp 2 x dp 2 make 4 ranks, but there are 12$"):
        Layout(pp=2, dp=2).sizes(12)


@pytest.mark.parametrize("order", ["tp", "tp-pp-pp", "tp-xx-pp", ""])
def test_an_invalid_order_is_rejected(order):
    with pytest.raises(UsageError, match="expected every dimension larger than 1 once"):
        coordinates(range(4), Layout(pp=2, dp=2, order=order))


@given(
    sizes=st.fixed_dictionaries({name: st.integers(1, 4) for name in ("pp", "dp", "tp", "cp")}),
    order=st.permutations(["pp", "dp", "tp", "cp"]),
)
def test_coordinates_are_unique_per_rank(sizes, order):
    layout = Layout(**sizes, order="-".join(order))
    world_size = sizes["pp"] * sizes["dp"] * sizes["tp"] * sizes["cp"]
    found = rows(layout, world_size)
    assert layout.rank_count == world_size
    assert len(set(found)) == world_size
    assert [max(column) + 1 for column in zip(*found, strict=True)] == [
        sizes[n] for n in ("pp", "dp", "tp", "cp")
    ]
