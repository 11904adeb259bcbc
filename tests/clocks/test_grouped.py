"""Quantiles of groups are those of sorting each group, whatever its size and the order of the rows."""

from __future__ import annotations

import numpy as np
import pytest

from stagescope.clocks import grouped as grouped_values
from stagescope.clocks.grouped import distinct, grouped


@pytest.mark.parametrize("at_once", [1, 64, 1 << 17])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_the_value_of_a_rank_is_that_of_the_sorted_group(is_sorted, at_once, monkeypatch):
    monkeypatch.setattr(grouped_values, "AT_ONCE", at_once)
    random = np.random.default_rng(0)
    group = np.repeat([0, 1, 4, 5, 9, 12], [1, 2, 3, 64, 65, 700])
    if not is_sorted:
        random.shuffle(group)
    values = random.normal(size=len(group)).round(1)
    values[random.random(len(group)) < 0.1] = np.inf
    found = grouped(group)
    assert found.number.tolist() == [0, 1, 4, 5, 9, 12]
    assert found.size.tolist() == [1, 2, 3, 64, 65, 700]
    for part in (0.0, 0.3, 0.999):
        rank = (part * found.size).astype(np.int64)
        expected = [
            np.sort(values[group == number])[place] for number, place in zip(found.number, rank, strict=True)
        ]
        assert found.ranked(found.in_order(values), rank).tolist() == expected


def test_some_of_the_rows_can_be_grouped():
    rows = np.array([0, 2, 3, 5])
    found = grouped(np.array([3, 9, 1, 3, 9, 1]), rows)
    assert found.number.tolist() == [1, 3]
    assert found.in_order(np.arange(6.0)).tolist() == [2.0, 5.0, 0.0, 3.0]


def test_without_rows_there_is_no_group():
    found = grouped(np.zeros(0, np.int64))
    assert len(found.number) == len(found.size) == 0


@pytest.mark.parametrize("keys", [[], [4], [2, 2, 7, 7, 7, 1], [3, 1, 3, 1, 1, 3]])
def test_distinct_keys_are_those_of_numpy(keys):
    keys = np.array(keys, np.int64)
    expected = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    for found, known in zip(distinct(keys), expected, strict=True):
        assert found.tolist() == known.tolist()
