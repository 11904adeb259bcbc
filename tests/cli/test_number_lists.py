"""Lists of whole numbers on the command line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagescope.cli.number_lists import parse_ranges
from stagescope.vocabulary.errors import UsageError
from stagescope.vocabulary.number_ranges import compact_ranges


@pytest.mark.parametrize(
    ("text", "numbers"), [("0,1,2", (0, 1, 2)), ("0-3", (0, 1, 2, 3)), ("6, 4-5,4", (6, 4, 5)), ("7", (7,))]
)
def test_parses_numbers_and_ranges_in_the_given_order(text, numbers):
    assert parse_ranges(text) == numbers


@pytest.mark.parametrize("text", ["", "0,", "gpu0", "3-1", "-1", "0-", "1.5"])
def test_rejects_malformed_lists(text):
    with pytest.raises(
        UsageError, match="expected numbers and ranges with commas between them, such as 0,1,8-15"
    ):
        parse_ranges(text)


@given(st.sets(st.integers(0, 100), min_size=1))
def test_parses_the_ranges_that_messages_print(numbers):
    assert set(parse_ranges(compact_ranges(numbers, most=None))) == numbers
