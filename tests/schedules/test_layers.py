import doctest
import importlib
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagescope.schedules.layers import split_layers
from stagescope.vocabulary.errors import ScheduleError


def every_split(layer_ns: list[int], stages: int) -> list[list[int]]:
    layers = len(layer_ns)
    cuts = [(0, *inner, layers) for inner in combinations(range(1, layers), stages - 1)]
    return [[sum(layer_ns[a:b]) for a, b in pairwise(each)] for each in cuts]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=9), st.data())
def test_split_is_optimal_by_brute_force(layer_ns: list[int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(layer_ns)))
    split = split_layers(layer_ns, stages)
    best = min((max(each), sum(cost * cost for cost in each)) for each in every_split(layer_ns, stages))
    assert (split.slowest_ns, sum(cost * cost for cost in split.stage_ns)) == best


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.data())
def test_stages_are_contiguous_complete_and_not_empty(layer_ns: list[int], data: st.DataObject) -> None:
    split = split_layers(layer_ns, data.draw(st.integers(1, len(layer_ns))))
    assert (split.first_layers[0], split.first_layers[-1]) == (0, len(layer_ns))
    assert min(split.layer_counts) >= 1
    assert split.totals(layer_ns) == split.stage_ns


def test_a_heavy_head_takes_layers_off_the_last_stage() -> None:
    assert split_layers([2] * 10 + [5], 4).layer_counts == (3, 3, 3, 2)


def test_ties_go_to_the_most_even_split() -> None:
    assert split_layers([9, 1, 1, 1, 1, 1, 1], 3).layer_counts == (1, 3, 3)


@pytest.mark.parametrize(("layers", "stages"), [(3, 4), (3, 0), (0, 1)])
def test_rejects_fewer_layers_than_stages(layers: int, stages: int) -> None:
    with pytest.raises(ScheduleError, match=f"cannot split {layers} layers into {stages} stages"):
        split_layers([1] * layers, stages)


@pytest.mark.parametrize("cost", [-1, 1.5, True])
def test_rejects_invalid_layer_costs(cost: object) -> None:
    with pytest.raises(ScheduleError, match="cost of a layer"):
        split_layers([1, cost], 1)


def test_examples_run() -> None:
    tried = doctest.testmod(importlib.import_module("stagescope.schedules.layers"))
    assert (tried.failed, tried.attempted > 0) == (0, True)
