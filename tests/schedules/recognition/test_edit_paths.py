from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagescope.schedules.recognition.edit_paths import EditPaths, Pair, find_paths

ROWS = st.text("FB", max_size=12)


def paths(seen, order, most_edits=99):
    return find_paths(lambda i, j: seen[i] == order[j], (len(seen), len(order)), most_edits)


@pytest.mark.parametrize(
    ("seen", "order", "edits"),
    [("", "", 0), ("", "FB", 2), ("FB", "", 2), ("FBF", "FBF", 0), ("FF", "BB", 4)],
)
def test_counts_edits_of_small_sequences(seen, order, edits):
    assert paths(seen, order).edits == edits


def test_one_of_several_equal_actions_may_match_each_of_them():
    found = paths("FF", "FFF")
    assert found.pairs(0) == [Pair(0, 0), Pair(0, 1)]
    assert not found.may_be_extra(0)


def test_one_of_several_equal_actions_may_be_extra():
    found = paths("FF", "F")
    assert [found.may_be_extra(i) for i in range(2)] == [True, True]
    assert found.pairs(1) == [Pair(1, 0)]


def test_finds_no_path_above_the_allowed_edits():
    assert paths("FFFFFF", "BBBBBB", most_edits=11) is None
    assert paths("FFFFFF", "BBBBBB", most_edits=12).edits == 12
    assert paths("F", "FFFF", most_edits=2) is None


def test_band_grows_until_it_contains_distant_paths():
    seen, order = "F" * 40 + "B" * 40, "B" * 40 + "F" * 40
    assert paths(seen, order).edits == 80


@given(ROWS, ROWS)
def test_a_wider_band_contains_the_same_paths(seen, order):
    found = paths(seen, order)
    wide = EditPaths(lambda i, j: seen[i] == order[j], (len(seen), len(order)), 30)
    assert wide.edits == found.edits
    for i in range(len(seen)):
        assert wide.pairs(i) == found.pairs(i)
        assert wide.may_be_extra(i) == found.may_be_extra(i)


@given(ROWS, ROWS)
def test_edits_are_equal_from_both_ends(seen, order):
    found = paths(seen, order)
    assert found.edits_before(Pair(len(seen), len(order))) == found.edits
