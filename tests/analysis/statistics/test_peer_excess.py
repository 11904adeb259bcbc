"""Ranks and machines compared with their peers, sample by sample."""

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_array_equal

from stagescope.analysis.statistics.peer_excess import (
    compare_all_ranks,
    compare_machines,
    compare_ranks,
    medians_of_other_groups,
)


def samples(usual, *, spread_ns=1.0):
    """One class of actions; `usual` maps (rank, stage) to the usual time of each sample."""
    rows = [
        {
            "rank": rank,
            "stage": stage,
            "kind": "forward",
            "is_pair": False,
            "sample": number,
            "usual_ns": float(value),
            "fast_ns": float(value),
            "spread_ns": spread_ns,
            "action_count": 4,
            "total_ns": 4 * value,
        }
        for (rank, stage), values in usual.items()
        for number, value in enumerate(values)
    ]
    return [pl.DataFrame(rows)]


def test_rank_is_compared_with_the_median_of_its_stage():
    found = compare_ranks(
        samples({(0, 0): [100, 100], (1, 0): [100, 200], (2, 0): [150, 100], (3, 1): [900, 900]}), 2
    )
    assert np.exp(found.shift[2]) == pytest.approx([1.5, 100 / (100 * 200) ** 0.5])
    assert np.isnan(found.shift[3]).all()
    assert found.facts["peers"].to_list() == [2, 2, 2, 0]
    assert found.facts["span_count"].to_list() == [8, 8, 8, 0]


def test_machine_is_compared_with_other_machines_only():
    table = samples({(0, 0): [200], (1, 0): [200], (2, 0): [100]})
    found = compare_machines(table, 1, {0: "a", 1: "a", 2: "b"})
    assert np.exp(found.shift[:, 0]) == pytest.approx([2, 2, 0.5])


def test_spreads_below_one_percent_are_equal():
    table = samples({(0, 0): [1000], (1, 1): [1000]}, spread_ns=0.0)
    assert compare_all_ranks(table, 1).spread[:, 0] == pytest.approx([0, 0])


def test_missing_subject_is_not_compared_in_that_sample():
    table = samples({(0, 0): [100, 100], (1, 0): [100]})
    found = compare_ranks(table, 2)
    assert np.isnan(found.shift).tolist() == [[False, True], [False, True]]
    assert found.facts["span_count"].to_list() == [4, 4]


def test_clearly_slow_rank_is_no_reference_for_the_others():
    usual = {(rank, rank % 2): [100 + rank, 100 - rank, 100] for rank in range(6)}
    usual[4, 0] = [200, 200, 200]
    found = compare_ranks(samples(usual), 3)
    assert np.exp(found.shift[0]) == pytest.approx([100 / 102, 100 / 98, 1])
    assert np.exp(found.shift[4, 2]) == pytest.approx(2)


def test_one_of_two_ranks_is_compared_with_the_other_however_slow():
    usual = {(0, 0): [100], (1, 0): [200], (2, 1): [100], (3, 1): [101], (4, 2): [100], (5, 2): [99]}
    assert np.exp(compare_ranks(samples(usual), 1).shift[1, 0]) == pytest.approx(2)


def one_by_one(values, groups):
    """Return what medians_of_other_groups does, for every value apart."""
    found = np.full_like(values, np.nan)
    for slot, column in np.argwhere(groups >= 0):
        others = values[groups[:, column] != groups[slot, column], column]
        for sample in range(values.shape[2]):
            known = others[:, sample][np.isfinite(others[:, sample])]
            if len(known):
                found[slot, column, sample] = np.median(known)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_medians_of_other_groups_are_those_of_all_values_without_the_own_group(seed):
    rng = np.random.default_rng(seed)
    size = (int(rng.integers(1, 12)), int(rng.integers(1, 4)), int(rng.integers(1, 5)))
    values = np.round(rng.normal(0, 1, size), int(rng.integers(0, 3)))
    values[rng.random(size) < 0.2] = np.nan
    groups = rng.integers(-1, int(rng.integers(1, 6)), size[:2])
    assert_array_equal(medians_of_other_groups(values, groups), one_by_one(values, groups))


def test_nothing_has_no_medians():
    assert medians_of_other_groups(np.zeros((0, 2, 3)), np.zeros((0, 2), dtype=np.int64)).shape == (0, 2, 3)
