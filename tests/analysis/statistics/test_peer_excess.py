"""Ranks and machines compared with their peers, sample by sample."""

import numpy as np
import polars as pl
import pytest

from stagescope.analysis.statistics.peer_excess import (
    compare_all_ranks,
    compare_machines,
    compare_ranks,
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
    return pl.DataFrame(rows)


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
