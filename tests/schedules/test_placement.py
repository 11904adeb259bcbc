import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagescope.schedules import placement
from stagescope.schedules.placement import PLACEMENTS, stage_count, stages_of


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
def test_stages_of_each_rank(name, chunks, drawn):
    held = [stages_of(name, 4, chunks, rank) for rank in range(4)]
    assert " | ".join(" ".join(map(str, stages)) for stages in held) == drawn


@given(st.sampled_from(PLACEMENTS), st.integers(1, 8), st.integers(1, 4))
def test_every_stage_is_on_one_rank_of_each_replica(name, ranks, chunks):
    chunks = {"linear": 1, "v": 2, "bidirectional": 2}.get(name, chunks)
    held = [stages_of(name, ranks, chunks, rank) for rank in range(ranks)]
    replicas = zip(*held, strict=True) if name == "bidirectional" else [sum(held, ())]
    for stages in replicas:
        assert sorted(stages) == list(range(stage_count(name, ranks, chunks)))


def test_examples_run():
    assert doctest.testmod(placement).failed == 0
