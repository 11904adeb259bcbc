import pytest

from stagescope.schedules import order, validate
from stagescope.schedules.orders.interleaved import INTERLEAVED, equal_group_size
from stagescope.schedules.registry import Shape
from stagescope.vocabulary.errors import ScheduleError


@pytest.mark.parametrize(
    ("ranks", "microbatches", "size"), [(4, 8, 4), (4, 4, 4), (4, 3, 3), (4, 10, 5), (4, 15, 5), (1, 6, 1)]
)
def test_groups_have_the_size_of_the_ranks_or_are_equal(ranks, microbatches, size):
    assert equal_group_size(ranks, microbatches) == size


def test_a_group_runs_all_chunks_before_the_next_group():
    forwards = [
        str(part) for part in order("interleaved", ranks=2, microbatches=4, chunks=2)[0] if part.kind == "F"
    ]
    assert " ".join(forwards) == "F0.0 F0.1 F2.0 F2.1 F0.2 F0.3 F2.2 F2.3"


def test_last_group_may_be_smaller_with_an_explicit_group_size():
    planned = order("interleaved", ranks=2, microbatches=5, chunks=2, group_size=3)[0]
    assert (
        " ".join(str(part) for part in planned if part.kind == "F")
        == "F0.0 F0.1 F0.2 F2.0 F2.1 F2.2 F0.3 F0.4 F2.3 F2.4"
    )
    assert (
        " ".join(str(part) for part in planned if part.kind == "B")
        == "B2.0 B2.1 B2.2 B0.0 B0.1 B0.2 B2.3 B2.4 B0.3 B0.4"
    )


def test_a_larger_group_lengthens_the_warm_up_by_the_difference():
    def ahead(group_size):
        planned = order("interleaved", ranks=4, microbatches=16, chunks=3, group_size=group_size)[0]
        return [part.kind for part in planned].index("B")

    assert ahead(8) - ahead(4) == (3 - 1) * (8 - 4)


def test_with_one_chunk_it_is_eager_1f1b():
    assert order("interleaved", ranks=4, microbatches=8, chunks=1) == order(
        "eager-1f1b", ranks=4, microbatches=8
    )


def test_overlapped_form_has_one_more_forward_before_its_pairs():
    sizes = {"ranks": 4, "microbatches": 8, "chunks": 2}
    plain, paired = order("interleaved", **sizes), order("interleaved-overlap", **sizes)
    for rank in range(4):
        first_pair = next(place for place, action in enumerate(paired[rank]) if action.partner)
        assert first_pair == [part.kind for part in plain[rank]].index("B")
        flat = [part for action in paired[rank] for part in action.parts]
        assert [part for part in flat if part.kind == "B"] == [
            part for part in plain[rank] if part.kind == "B"
        ]


def test_rejects_a_last_group_below_the_number_of_ranks_since_it_can_deadlock():
    with pytest.raises(ScheduleError, match="interleaved needs ranks <= group_size"):
        order("interleaved", ranks=4, microbatches=9, chunks=3, group_size=4)
    with pytest.raises(ScheduleError, match="deadlocks"):
        validate(INTERLEAVED.build(Shape(ranks=4, microbatches=9, chunks=3, options={"group_size": 4})))
