"""Alignment of two sequences with lost entries on either side."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stagescope.ingest.ascend.alignment import EASY, LOST, NOBODY, UNCLEAR, Sides, align


def aligned(observed, expected, *, extra=1.0, most=LOST):
    observed, expected = np.array(observed, float), np.array(expected, float)

    def costs(i, j):
        return np.abs(observed[i] - expected[j])

    n = len(observed)
    return align(Sides(n, len(expected), np.full(n, extra), np.full(n, most)), costs).tolist()


def test_equal_sequences_are_what_they_look_like():
    assert aligned([1, 2, 3], [1, 2, 3]) == [0, 1, 2]


def test_an_entry_that_was_not_observed_shifts_no_other():
    assert aligned([1, 3, 4], [1, 2, 3, 4]) == [0, 2, 3]


def test_an_entry_that_was_not_expected_has_nobody():
    assert aligned([1, 50, 2, 3], [1, 2, 3]) == [0, NOBODY, 1, 2]


def test_of_two_that_fit_alike_neither_is_chosen():
    assert aligned([5], [5, 5]) == [UNCLEAR]
    assert aligned([5, 5], [5]) == [UNCLEAR, UNCLEAR]


def test_a_pair_that_costs_more_than_it_may_is_none():
    assert aligned([1.4], [1], most=EASY) == [NOBODY]
    assert aligned([1.4], [1]) == [0]


def test_nothing_on_one_side_leaves_nobody_on_the_other():
    assert aligned([], [1, 2]) == []
    assert aligned([1, 2], []) == [NOBODY, NOBODY]


@given(
    st.integers(1, 60).flatmap(
        lambda count: st.tuples(
            st.just(count),
            st.sets(st.integers(0, count - 1), max_size=20),
            st.sets(st.integers(0, count - 1), max_size=20),
        )
    )
)
def test_recovers_every_partner_whatever_was_lost_on_either_side(case):
    count, unseen, unknown = case
    seen = [place for place in range(count) if place not in unseen]
    known = [place for place in range(count) if place not in unknown]
    partners = aligned([3.0 * place for place in seen], [3.0 * place for place in known])
    expected = [known.index(place) if place in known else NOBODY for place in seen]
    assert partners == expected
