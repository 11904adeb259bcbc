import pytest

from stagescope.schedules import order, parse_action, validate
from stagescope.vocabulary.errors import ScheduleError


def drawn(*lines):
    return {rank: [parse_action(word) for word in line.split()] for rank, line in enumerate(lines)}


def fault(*lines):
    with pytest.raises(ScheduleError) as refused:
        validate(drawn(*lines))
    return str(refused.value)


@pytest.mark.parametrize(
    "lines",
    [
        [""],
        ["F0.0 B0.0"],
        ["F0.0 F0.1 B0.0 B0.1", "F1.0 B1.0 F1.1 B1.1"],
        ["F0.0 I0.0 W0.0", "F1.0 I1.0 W1.0"],
        ["F0.0 F0.1 B0.0 I0.1 W0.1", "F1.0 F1.1+B1.0 B1.1"],
    ],
)
def test_a_whole_order_without_a_deadlock_passes(lines):
    validate(drawn(*lines))


@pytest.mark.parametrize(
    ("lines", "first_fault"),
    [
        (["F0.0 B0.0", "B1.0"], "rank 1, F1.0: is missing"),
        (["F0.0 B0.0", "F1.0"], "rank 1, B1.0: is missing"),
        (["F0.0 I0.0", "F1.0 B1.0"], "rank 0, W0.0: is missing"),
        (["F0.0 W0.0", "F1.0 B1.0"], "rank 0, I0.0: is missing"),
        (["F0.0 B0.0 F0.2 B0.2"], "rank 0, F0.1: is missing"),
        (["F0.0 B0.0 B0.0"], "rank 0, B0.0: stands twice"),
        (["F0.0 B0.0", "F1.0 B1.0 F0.0"], "rank 1, F0.0: stands on rank 0 already"),
        (["F0.0 B0.0 I0.0"], "rank 0, I0.0: stands beside B0.0, which computes it too"),
        (["F0.0 I0.0 W0.0 B0.0"], "rank 0, I0.0: stands beside B0.0, which computes it too"),
        (["F0.0 B0.0 W0.0"], "rank 0, W0.0: stands beside B0.0, which computes it too"),
        (["F0.0 F0.1+B0.0 B0.1 B0.1"], "rank 0, B0.1: stands twice"),
    ],
)
def test_the_first_fault_is_named(lines, first_fault):
    assert fault(*lines) == f"the order is faulty: {first_fault}"


def test_a_missing_action_is_looked_for_where_the_rest_of_its_microbatch_runs():
    """With two replicas a stage is on two ranks."""
    two = order("dualpipe", ranks=2, microbatches=4)
    two[0] = [action for action in two[0] if str(action) != "F0.1"]
    with pytest.raises(ScheduleError, match=r"rank 0, F0\.1: is missing"):
        validate(two)


def test_a_deadlock_is_named_with_its_circle():
    text = fault("B0.0 F0.0", "F1.0 B1.0")
    assert text.startswith("the order deadlocks: ")
    assert all(action in text for action in ("B0.0", "F0.0"))


def test_a_pair_that_waits_for_its_own_other_half_is_a_deadlock():
    assert fault("F0.0+B0.0").startswith("the order deadlocks: F0.0+B0.0")
