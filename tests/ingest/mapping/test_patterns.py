"""Patterns of a mapping: numbers in texts, found in linear time."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagescope.ingest.mapping.patterns import LONGEST_TEXT, TextPattern
from stagescope.vocabulary.errors import UsageError


@pytest.mark.parametrize(
    ("pattern", "text", "numbers"),
    [
        ("PP:{stage}F{mb}", "PP:1F23", {"stage": 1, "mb": 23}),
        ("rank {rank} of *", "Rank 3 of 8", {"rank": 3}),
        ("*{x}b*", "aXX12bYY7b", {"x": 12}),
        ("*-{x}", "a-1-2", {"x": 2}),
        ("forward*", "forward", {}),
        ("a.b", "axb", None),
        ("a*a", "a", None),
        ("{x}", "1234567890", None),
        ("[{x}]", "[7]", {"x": 7}),
        ("*", "x" * (LONGEST_TEXT + 1), None),
    ],
)
def test_finds_the_numbers_of_a_text_that_matches_as_a_whole(pattern, text, numbers):
    assert TextPattern(pattern).find(text) == numbers


@given(st.text(alphabet="ab*", min_size=1, max_size=8), st.text(alphabet="ab", max_size=12))
def test_stars_match_as_in_a_regular_expression(pattern, text):
    expression = ".*".join(map(re.escape, pattern.split("*")))
    assert (TextPattern(pattern).find(text) is not None) == bool(re.fullmatch(expression, text))


def test_many_stars_take_linear_time():
    assert TextPattern("*a" * 100).find("a" * 99 + "b" * 900) is None


@pytest.mark.parametrize("pattern", ["", "{", "}", "{a}{b}", "{a} {a}", "{1}", "{a b}", "x" * 201])
def test_refuses_a_malformed_pattern(pattern):
    with pytest.raises(UsageError, match="pattern"):
        TextPattern(pattern)
