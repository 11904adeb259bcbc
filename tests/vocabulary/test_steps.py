from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagescope.vocabulary.errors import UsageError
from stagescope.vocabulary.steps import StepRange, parse_step_range

STEPS = st.integers(0, 2**31 - 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2:5", StepRange(2, 5)),
        (":5", StepRange(0, 5)),
        ("3:", StepRange(3)),
        (":", StepRange()),
        ("0:1", StepRange(0, 1)),
        (f"7:{10**30}", StepRange(7)),
    ],
)
def test_a_range_is_read_like_a_slice(text, expected):
    assert parse_step_range(text) == expected


@given(STEPS, st.integers(1, 1000))
def test_a_range_that_is_written_is_read_again(start, length):
    wanted = StepRange(start, start + length)
    if wanted.stop <= 2**31:
        assert parse_step_range(str(wanted)) == wanted


def test_an_open_range_is_written_open():
    assert str(StepRange(3)) == "3:"


@given(STEPS, STEPS, STEPS)
def test_start_is_in_the_range_and_stop_is_not(start, stop, step):
    assert (step in StepRange(start, stop)) == (step in range(start, stop))


def test_what_is_no_number_is_in_no_range():
    assert None not in StepRange()
    assert "3" not in StepRange()


@pytest.mark.parametrize("text", ["", "5", "a:b", "1:2:3", "-1:3", "1.5:3", ":x", "9" * 5000 + ":"])
def test_a_malformed_range_is_reported_with_the_expected_form(text):
    with pytest.raises(UsageError, match="expected A:B with whole numbers from 0, such as 2:5") as caught:
        parse_step_range(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["5:5", "5:2", "3:-1", ":0"])
def test_an_empty_range_is_refused(text):
    with pytest.raises(UsageError, match="is empty"):
        parse_step_range(text)
