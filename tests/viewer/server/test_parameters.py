import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagescope.viewer.server.parameters import MOST_TEXT, ParameterError, part_of, text_of, whole_number


def test_a_part_is_two_times_and_some_rows():
    part = part_of({"start": "-5", "end": "1000", "rows": "3,0-2,7"}, 8)
    assert (part.start, part.end, part.rows.tolist()) == (-5, 1000, [0, 1, 3, 7])
    assert part_of({"start": "0", "end": "1", "rows": "2,2,1-3"}, 3).rows.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "start: expected an integer from -576460752303423488 to 576460752303423488"),
        ({"start": "1.5", "end": "2", "rows": "0"}, "start: expected"),
        ({"start": "0", "end": "1e3", "rows": "0"}, "end: expected"),
        ({"start": "0", "end": "9" * 30, "rows": "0"}, "end: expected"),
        ({"start": "5", "end": "5", "rows": "0"}, "end: expected a time after start"),
        ({"start": "0", "end": "1"}, "rows: expected comma-separated numbers"),
        ({"start": "0", "end": "1", "rows": "0-"}, "rows: expected comma-separated numbers"),
        ({"start": "0", "end": "1", "rows": "8"}, "rows: expected numbers below 8"),
        ({"start": "0", "end": "1", "rows": "0-9"}, "rows: expected numbers below 8"),
        ({"start": "0", "end": "1", "rows": "3-3"}, "rows: expected numbers below 8"),
        ({"start": "0", "end": "1", "rows": "5-2"}, "rows: expected numbers below 8"),
        ({"start": "0", "end": "1", "rows": "-1"}, "rows: expected comma-separated numbers"),
        ({"start": "٣", "end": "1", "rows": "0"}, "start: expected"),
    ],
)
def test_invalid_parameter_is_explained(given, sentence):
    with pytest.raises(ParameterError) as raised:
        part_of(given, 8)
    assert str(raised.value).startswith(sentence)


def test_numbers_and_texts_keep_to_their_bounds():
    assert whole_number({"level": "3"}, "level", 0, 3) == 3
    for value in ("4", "-1", "", "0x1", " 1", "1\n", "1_0"):
        with pytest.raises(ParameterError):
            whole_number({"level": value}, "level", 0, 3)
    assert text_of({"q": "x" * MOST_TEXT}, "q") == "x" * MOST_TEXT
    with pytest.raises(ParameterError):
        text_of({"q": "x" * (MOST_TEXT + 1)}, "q")


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=60))
def test_no_text_does_anything_but_name_a_part_or_be_refused(start, end, rows):
    try:
        part = part_of({"start": start, "end": end, "rows": rows}, 50)
    except ParameterError:
        return
    assert part.start < part.end
    assert 0 <= part.rows.min() <= part.rows.max() < 50
