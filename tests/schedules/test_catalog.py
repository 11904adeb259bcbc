import math
import re
from itertools import accumulate

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stagescope.schedules import NAMES, SCHEDULES, order, validate
from stagescope.schedules.catalog import find_schedule
from stagescope.schedules.memory import peak_in_flight
from stagescope.schedules.orders.interleaved import equal_group_size
from stagescope.schedules.placement import stage_count, stages_of
from stagescope.schedules.registry import Shape
from stagescope.vocabulary.errors import ScheduleError

sizes = {"ranks": st.integers(1, 9), "microbatches": st.integers(1, 30), "more_chunks": st.integers(0, 3)}
by_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
examples = settings(max_examples=25, deadline=None)


def valid_shape(schedule, ranks, microbatches, more_chunks):
    """Return a valid shape near these sizes, None if there is none."""
    chunks = schedule.chunks if schedule.least_chunks is None else schedule.least_chunks + more_chunks
    if schedule.placement == "bidirectional":
        ranks = 2 * ((ranks + 1) // 2)
        microbatches = ranks * math.ceil(microbatches / ranks)
    if schedule.name.startswith("dualpipe"):
        microbatches = max(microbatches, 2 * ranks)
    try:
        return schedule.shape(ranks, microbatches, chunks, {})
    except ScheduleError:
        return None


def build(schedule, **drawn):
    shape = valid_shape(schedule, **drawn)
    assume(shape is not None)
    return shape, schedule.build(shape)


def test_names_of_all_schedules():
    assert sorted(NAMES) == [
        "1f1b", "1f1b-overlap", "1f1b-v", "chimera", "dualpipe", "dualpipev", "eager-1f1b", "gpipe", "interleaved",
        "interleaved-overlap", "interleaved-zb", "looped-bfs", "v-half", "v-min", "zb-1p", "zb-2p", "zb-h1", "zb-h2",
        "zb-v",
    ]  # fmt: skip


def test_order_contains_the_actions_of_every_rank():
    two = order("1f1b", ranks=2, microbatches=2)
    assert {rank: " ".join(map(str, actions)) for rank, actions in two.items()} == {
        0: "F0.0 F0.1 B0.0 B0.1",
        1: "F1.0 B1.0 F1.1 B1.1",
    }


@by_schedule
@examples
@given(**sizes)
def test_orders_are_complete_deadlock_free_and_placed_as_stated(schedule, **drawn):
    shape, built = build(schedule, **drawn)
    validate(built)
    assert list(built) == list(range(shape.ranks))
    stages = stage_count(schedule.placement, shape.ranks, shape.chunks)
    forwards = set()
    for rank, actions in built.items():
        parts = [part for action in actions for part in action.parts]
        held = stages_of(schedule.placement, shape.ranks, shape.chunks, rank)
        assert {part.stage for part in parts} == set(held)
        forwards |= {part[1:3] for part in parts if part.kind == "F"}
    assert forwards == {(stage, each) for stage in range(stages) for each in range(shape.microbatches)}


def stated_peak(schedule, shape, rank):
    """Return the peak by the formula in the catalog, in which ``2 (p - r)`` is a product."""
    formula = re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", schedule.peak_memory.partition(", or ")[0])
    p, m = shape.ranks, shape.microbatches
    letters = {"p": p, "m": m, "v": shape.chunks, "r": rank, "N": equal_group_size(p, m)}
    return eval(formula, {"min": min, "floor": math.floor, **letters})  # noqa: S307 - our own formulas


@by_schedule
@examples
@given(**sizes)
def test_no_rank_keeps_more_than_the_stated_peak(schedule, **drawn):
    shape, built = build(schedule, **drawn)
    stated = {rank: stated_peak(schedule, shape, rank) for rank in built}
    kept = peak_in_flight(built)
    assert all(kept[rank] <= stated[rank] for rank in built)
    if shape.microbatches >= 2 * shape.ranks:
        assert max(kept.values()) == max(stated.values())


def test_in_flight_counts_from_forward_to_end_of_backward():
    """The peaks above, counted by hand for one rank of 1F1B."""
    kinds = [action.kind for action in order("1f1b", ranks=4, microbatches=8)[1]]
    levels = accumulate(1 if kind == "F" else -1 for kind in kinds)
    assert max(levels) == stated_peak(find_schedule("1f1b"), Shape(ranks=4, microbatches=8), rank=1) == 3


def test_rejects_an_unknown_name_and_lists_the_known_ones():
    with pytest.raises(ScheduleError, match=r"^unknown schedule '1f2b'; did you mean '1f1b'\?$") as refused:
        order("1f2b", ranks=2, microbatches=2)
    assert refused.value.hint == f"known: {', '.join(NAMES)}"


@by_schedule
def test_rejects_an_unknown_option_and_lists_the_known_ones(schedule):
    with pytest.raises(ScheduleError, match=f"^{schedule.name} has no option speed$") as refused:
        order(schedule.name, ranks=2, microbatches=4, speed=3)
    assert refused.value.hint == f"options: {', '.join(each.name for each in schedule.options) or 'none'}"


@pytest.mark.parametrize("name", ["gpipe", "zb-1p", "dualpipev"])
@pytest.mark.parametrize(
    "numbers", [{"ranks": 0}, {"microbatches": -1}, {"chunks": 0}, {"ranks": 2.5}, {"chunks": "2"}]
)
def test_rejects_sizes_that_are_not_positive_integers(name, numbers):
    (size,) = numbers
    sizes = {"ranks": 4, "microbatches": 8, "chunks": None, **numbers}
    with pytest.raises(ScheduleError, match=f"needs {size} to be a whole number, at least 1"):
        order(name, **sizes)


@by_schedule
def test_rejects_invalid_chunks_and_suggests_the_nearest(schedule):
    chunks = schedule.chunks + 1 if schedule.least_chunks is None else schedule.least_chunks - 1
    if chunks:
        with pytest.raises(ScheduleError, match="model chunk") as refused:
            order(schedule.name, ranks=4, microbatches=8, chunks=chunks)
        assert refused.value.hint == f"nearest valid: chunks={schedule.least_chunks or schedule.chunks}"


@pytest.mark.parametrize("sizes", [(10**9, 4), (4, 10**9)])
def test_rejects_sizes_whose_order_would_not_fit_into_memory(sizes):
    with pytest.raises(ScheduleError, match="4,000,000,000: expected at most 10,000,000"):
        order("1f1b", ranks=sizes[0], microbatches=sizes[1])
