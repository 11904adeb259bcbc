"""Whole numbers as people write them."""

from hypothesis import given
from hypothesis import strategies as st

from stagescope.vocabulary.number_ranges import compact_ranges, ranks_text


@given(st.sets(st.integers(0, 60)))
def test_compact_ranges_contain_each_number_once(numbers):
    text = compact_ranges(numbers, most=None)
    listed = []
    for part in text.split(", ") if numbers else []:
        first, _, last = part.partition("-")
        listed += range(int(first), int(last or first) + 1)
    assert listed == sorted(numbers)


def test_compact_ranges_of_nothing_are_none():
    assert compact_ranges([]) == "none"


def test_messages_about_very_many_ranks_stay_short():
    every_eighth = range(0, 10_000, 8)
    text = ranks_text(every_eighth)
    assert text.startswith("ranks 0, 8, 16, ")
    assert text.endswith(", 184 and 1,226 more")
    assert ranks_text(range(10_000)) == "ranks 0-9999"
