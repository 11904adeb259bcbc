import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagescope.schedules import placement
from stagescope.schedules.placement import PLACEMENTS, rank_of, stage_count, stages_of


@pytest.mark.parametrize(
    ("name", "chunks", "drawn"),
    [
        ("linear", 1, "0 | 1 | 2 | 3"),
        ("loop", 2, "0 4 | 1 5 | 2 6 | 3 7"),
        ("loop", 3, "0 4 8 | 1 5 9 | 2 6 10 | 3 7 11"),
        ("v", 2, "0 7 | 1 6 | 2 5 | 3 4"),
        ("bidirectional", 2, "0 3 | 1 2 | 2 1 | 3 0"),
    ],
)
def test_each_rank_holds_the_drawn_stages(name, chunks, drawn):
    held = [stages_of(name, 4, chunks, rank) for rank in range(4)]
    assert " | ".join(" ".join(map(str, stages)) for stages in held) == drawn


@given(st.sampled_from(PLACEMENTS), st.integers(1, 8), st.integers(1, 4))
def test_a_rank_holds_exactly_the_stages_that_are_placed_on_it(name, ranks, chunks):
    chunks = {"linear": 1, "v": 2, "bidirectional": 2}.get(name, chunks)
    for rank in range(ranks):
        held = stages_of(name, ranks, chunks, rank)
        assert len(held) == chunks
        directions = (0, 1) if name == "bidirectional" else (0,) * chunks
        assert [rank_of(name, ranks, *place) for place in zip(held, directions, strict=True)] == [
            rank
        ] * chunks
        assert max(held) < stage_count(name, ranks, chunks)


def test_the_examples_are_right():
    assert doctest.testmod(placement).failed == 0
