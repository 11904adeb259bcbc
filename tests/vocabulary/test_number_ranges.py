"""Whole numbers as people write them."""

from hypothesis import given
from hypothesis import strategies as st

from stagescope.vocabulary.number_ranges import compact_ranges


@given(st.sets(st.integers(0, 60)))
def test_compact_ranges_contain_each_number_once(numbers):
    text = compact_ranges(numbers)
    listed = []
    for part in text.split(", ") if numbers else []:
        first, _, last = part.partition("-")
        listed += range(int(first), int(last or first) + 1)
    assert listed == sorted(numbers)


def test_compact_ranges_of_nothing_are_none():
    assert compact_ranges([]) == "none"
