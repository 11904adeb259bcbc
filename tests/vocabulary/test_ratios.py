"""Ratios as text: percent up to ten times, multiples above."""

import pytest

from stagescope.vocabulary.ratios import change_text, comparative_text, conjunction, multiple_text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1.0, "+0.0 %"), (0.0, "-100.0 %"), (10.0, "+900.0 %"), (10.4, "10x"), (2e6, "over 1000x")],
)
def test_change_is_a_percentage_up_to_ten_times(ratio, text):
    assert change_text(ratio) == text


def test_range_with_one_end_above_ten_times_is_one_of_multiples():
    assert comparative_text("longer", 9.6, 12.3) == "10x to 12x as long"
    assert conjunction(9.6, 12.3) == "as"
    assert conjunction(1.2, 1.3) == "than"
    assert comparative_text("slower", 11.8, 12.3) == "12x as slow"


def test_ratio_to_almost_nothing_has_no_digits():
    assert multiple_text(1e9) == "over 1000x"
    assert comparative_text("longer", 2e6, 3e6) == "over 1000x as long"
