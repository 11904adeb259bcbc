from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagescope.vocabulary.durations import duration_text, time_axis


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.000 µs"),
        (12_345_678, "12.35 ms"),
        (420_000_000, "420.0 ms"),
        (1_500_000_000, "1.500 s"),
        (4_000_000_000_000, "4000 s"),
        (-12_345, "-12.35 µs"),
    ],
)
def test_a_duration_has_four_digits_and_a_unit(duration_ns: int, text: str) -> None:
    assert duration_text(duration_ns) == text


def test_an_axis_of_a_second_and_a_half_is_marked_in_tenths_of_seconds() -> None:
    axis = time_axis(1_500_000_000, most=8)
    assert axis.unit == "s"
    assert [tick.text for tick in axis.ticks] == ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0", "1.2", "1.4"]


def test_an_axis_of_35_ms_is_marked_in_whole_milliseconds() -> None:
    assert [tick.text for tick in time_axis(35_000_000, most=8).ticks] == [
        "0",
        "5",
        "10",
        "15",
        "20",
        "25",
        "30",
        "35",
    ]


@given(st.integers(min_value=0, max_value=10**18), st.integers(min_value=0, max_value=50))
def test_marks_are_evenly_spaced_and_labeled(length_ns: int, most: int) -> None:
    axis = time_axis(length_ns, most)
    times_ns = [tick.time_ns for tick in axis.ticks]
    assert times_ns[0] == 0
    assert times_ns[-1] <= max(length_ns, 1)
    assert len(times_ns) <= max(most, 1) + 1
    assert len({b - a for a, b in pairwise(times_ns)}) <= 1
    unit_ns = {"s": 10**9, "ms": 10**6, "µs": 10**3, "ns": 1}[axis.unit]
    assert [float(tick.text) * unit_ns for tick in axis.ticks] == pytest.approx(times_ns)
