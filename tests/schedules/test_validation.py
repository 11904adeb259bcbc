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
def test_accepts_a_complete_order_without_deadlock(lines):
    validate(drawn(*lines))


@pytest.mark.parametrize(
    ("lines", "first_fault"),
    [
        (["F0.0 B0.0", "B1.0"], "rank 1, F1.0: is missing"),
        (["F0.0 B0.0", "F1.0"], "rank 1, B1.0: is missing"),
        (["F0.0 I0.0", "F1.0 B1.0"], "rank 0, W0.0: is missing"),
        (["F0.0 W0.0", "F1.0 B1.0"], "rank 0, I0.0: is missing"),
        (["F0.0 B0.0 F0.2 B0.2"], "rank 0, F0.1: is missing"),
        (["F0.0 B0.0 B0.0"], "rank 0, B0.0: occurs twice"),
        (["F0.0 B0.0", "F1.0 B1.0 F0.0"], "rank 1, F0.0: already runs on rank 0"),
        (["F0.0 B0.0 I0.0"], "rank 0, I0.0: B0.0 already computes it"),
        (["F0.0 I0.0 W0.0 B0.0"], "rank 0, I0.0: B0.0 already computes it"),
        (["F0.0 B0.0 W0.0"], "rank 0, W0.0: B0.0 already computes it"),
        (["F0.0 F0.1+B0.0 B0.1 B0.1"], "rank 0, B0.1: occurs twice"),
    ],
)
def test_reports_the_first_fault(lines, first_fault):
    assert fault(*lines) == f"invalid order: {first_fault}"


def test_a_missing_action_is_reported_on_the_rank_of_its_micro_batch():
    """With two replicas a stage is on two ranks."""
    two = order("dualpipe", ranks=2, microbatches=4)
    two[0] = [action for action in two[0] if str(action) != "F0.1"]
    with pytest.raises(ScheduleError, match=r"rank 0, F0\.1: is missing"):
        validate(two)


def test_reports_the_cycle_of_a_deadlock():
    text = fault("B0.0 F0.0", "F1.0 B1.0")
    assert text.startswith("the order deadlocks: ")
    assert all(action in text for action in ("B0.0", "F0.0"))


def test_a_pair_that_waits_for_its_own_part_is_a_deadlock():
    assert fault("F0.0+B0.0").startswith("the order deadlocks: F0.0+B0.0")
