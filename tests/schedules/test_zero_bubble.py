import pytest

from stagescope.schedules import order


def unsplit(actions):
    """Return the kinds and micro-batches without the split of backwards."""
    return [("B" if part.kind == "I" else part.kind, *part[1:3]) for part in actions if part.kind != "W"]


def lag(actions):
    """Return the number of other I between the first I and its W."""
    kinds = [part.kind for part in actions]
    return kinds[: kinds.index("W")].count("I") - 1


@pytest.mark.parametrize(("name", "whole", "factor"), [("zb-h1", "1f1b", 1), ("zb-h2", "eager-1f1b", 2)])
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 1), (2, 5), (4, 3), (4, 16), (6, 20)])
def test_is_a_known_order_without_the_split(name, whole, factor, ranks, microbatches):
    split = order(name, ranks=ranks, microbatches=microbatches)
    sound = order(whole, ranks=ranks, microbatches=microbatches)
    assert {rank: unsplit(actions) for rank, actions in split.items()} == {
        rank: unsplit(actions) for rank, actions in sound.items()
    }
    assert {rank: lag(actions) for rank, actions in split.items()} == {
        rank: min(factor * rank, microbatches - 1) for rank in range(ranks)
    }


def test_weight_gradients_follow_in_order_and_the_last_are_at_the_end():
    line = " ".join(map(str, order("zb-h1", ranks=2, microbatches=3)[1]))
    assert line == "F1.0 I1.0 F1.1 I1.1 W1.0 F1.2 I1.2 W1.1 W1.2"


def test_interleaved_form_with_one_chunk_is_zb_h1():
    sizes = {"ranks": 4, "microbatches": 8}
    assert order("interleaved-zb", **sizes, chunks=1) == order("zb-h1", **sizes)


def test_interleaved_form_has_equal_peaks_on_every_rank():
    kinds = {
        rank: [part.kind for part in planned]
        for rank, planned in order("interleaved-zb", ranks=4, microbatches=8).items()
    }
    assert {rank: each.index("I") for rank, each in kinds.items()} == {0: 8, 1: 7, 2: 6, 3: 5}
