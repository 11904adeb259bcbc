import pytest

from stagescope.schedules import parse_action
from stagescope.schedules.orders.alternation import alternate, overlap, split_backwards


def parse_line(text):
    return [parse_action(word) for word in text.split()]


def line(actions):
    return " ".join(map(str, actions))


FORWARDS = parse_line("F0.0 F0.1 F0.2")
BACKWARDS = parse_line("B0.0 B0.1 B0.2")


@pytest.mark.parametrize(
    ("warmup", "expected"),
    [
        (0, "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2"),
        (1, "F0.0 F0.1 B0.0 F0.2 B0.1 B0.2"),
        (2, "F0.0 F0.1 F0.2 B0.0 B0.1 B0.2"),
        (3, "F0.0 F0.1 F0.2 B0.0 B0.1 B0.2"),
        (9, "F0.0 F0.1 F0.2 B0.0 B0.1 B0.2"),
    ],
)
def test_forwards_and_backwards_alternate_after_the_warm_up(warmup, expected):
    assert line(alternate(FORWARDS, BACKWARDS, warmup)) == expected


@pytest.mark.parametrize(
    ("warmup", "expected"),
    [
        (1, "F0.0 F0.1+B0.0 F0.2+B0.1 B0.2"),
        (2, "F0.0 F0.1 F0.2+B0.0 B0.1 B0.2"),
        (9, "F0.0 F0.1 F0.2 B0.0 B0.1 B0.2"),
    ],
)
def test_overlapped_steady_phase_consists_of_pairs(warmup, expected):
    assert line(overlap(FORWARDS, BACKWARDS, warmup)) == expected


@pytest.mark.parametrize(
    ("lag", "expected"),
    [
        (0, "F0.0 I0.0 W0.0 F0.1 I0.1 W0.1"),
        (1, "F0.0 I0.0 F0.1 I0.1 W0.0 W0.1"),
        (5, "F0.0 I0.0 F0.1 I0.1 W0.0 W0.1"),
    ],
)
def test_weight_gradients_lag_behind_or_follow_at_the_end(lag, expected):
    assert line(split_backwards(parse_line("F0.0 B0.0 F0.1 B0.1"), lag)) == expected
