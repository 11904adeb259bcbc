"""Alignment of two sequences with missing entries on either side."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stagescope.ingest.ascend.sequence_alignment import (
    DIAGONAL_COST,
    MISSING_COST,
    NO_PARTNER,
    UNCLEAR,
    Sides,
    align,
)


def aligned(observed, expected, *, unpaired_cost=1.0, max_cost=MISSING_COST):
    observed, expected = np.array(observed, float), np.array(expected, float)

    def costs(i, j):
        return np.abs(observed[i] - expected[j])

    n = len(observed)
    return align(Sides(n, len(expected), np.full(n, unpaired_cost), np.full(n, max_cost)), costs).tolist()


def test_equal_sequences_are_paired_one_to_one():
    assert aligned([1, 2, 3], [1, 2, 3]) == [0, 1, 2]


def test_a_missing_entry_shifts_no_other():
    assert aligned([1, 3, 4], [1, 2, 3, 4]) == [0, 2, 3]


def test_an_unexpected_entry_has_no_partner():
    assert aligned([1, 50, 2, 3], [1, 2, 3]) == [0, NO_PARTNER, 1, 2]


def test_neither_of_two_equal_partners_is_chosen():
    assert aligned([5], [5, 5]) == [UNCLEAR]
    assert aligned([5, 5], [5]) == [UNCLEAR, UNCLEAR]


def test_a_pair_above_the_maximum_cost_is_rejected():
    assert aligned([1.4], [1], max_cost=DIAGONAL_COST) == [NO_PARTNER]
    assert aligned([1.4], [1]) == [0]


def test_an_empty_side_leaves_the_other_without_partners():
    assert aligned([], [1, 2]) == []
    assert aligned([1, 2], []) == [NO_PARTNER, NO_PARTNER]


@given(
    st.integers(1, 60).flatmap(
        lambda count: st.tuples(
            st.just(count),
            st.sets(st.integers(0, count - 1), max_size=20),
            st.sets(st.integers(0, count - 1), max_size=20),
        )
    )
)
def test_recovers_every_partner_despite_missing_entries(case):
    count, unseen, unknown = case
    seen = [place for place in range(count) if place not in unseen]
    known = [place for place in range(count) if place not in unknown]
    partners = aligned([3.0 * place for place in seen], [3.0 * place for place in known])
    expected = [known.index(place) if place in known else NO_PARTNER for place in seen]
    assert partners == expected
