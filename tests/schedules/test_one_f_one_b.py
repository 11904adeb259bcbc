import pytest

from stagescope.schedules import order

SIZES = [(ranks, microbatches) for ranks in (1, 2, 4, 7) for microbatches in (1, 2, 5, 16)]


def ahead(actions):
    """Return the number of forwards before the first backward, without the forward of a pair."""
    return next(place for place, action in enumerate(actions) if "B" in str(action))


@pytest.mark.parametrize(
    ("name", "warmup"),
    [
        ("1f1b", lambda p, m, r: min(m, p - r)),
        ("eager-1f1b", lambda p, m, r: min(m, 2 * (p - r) - 1)),
        ("1f1b-overlap", lambda p, m, r: min(m, 2 * (p - r - 1) + 1)),
    ],
)
@pytest.mark.parametrize(("ranks", "microbatches"), SIZES)
def test_warm_up_lengths_are_as_defined(name, warmup, ranks, microbatches):
    found = order(name, ranks=ranks, microbatches=microbatches)
    assert {rank: ahead(actions) for rank, actions in found.items()} == {
        rank: warmup(ranks, microbatches, rank) for rank in range(ranks)
    }


def test_1f1b_equals_gpipe_with_few_micro_batches():
    few = order("1f1b", ranks=4, microbatches=2)
    assert {rank: few[rank] for rank in range(3)} == {
        rank: order("gpipe", ranks=4, microbatches=2)[rank] for rank in range(3)
    }


def test_last_rank_has_no_warm_up():
    sizes = {"ranks": 5, "microbatches": 9}
    assert order("1f1b", **sizes)[4] == order("eager-1f1b", **sizes)[4]


def test_overlapped_steady_phase_consists_of_pairs():
    line = " ".join(map(str, order("1f1b-overlap", ranks=2, microbatches=4)[0]))
    assert line == "F0.0 F0.1 F0.2 F0.3+B0.0 B0.1 B0.2 B0.3"
