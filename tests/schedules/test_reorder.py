"""Slots are drawn with one line per rank: F f I i are F0 F1 I1 I0, W and w their weight gradients, . is free."""

from stagescope.schedules.orders.lane import Lane
from stagescope.schedules.orders.reorder import (
    pull_around_weights,
    pull_with_weights,
    squeeze,
    weights_by_chunk,
    weights_in_turn,
)

LETTERS = "FfIi"


def passes_of(line):
    """Return the slots of each pass of one rank from a drawn line."""
    return [[slot for slot, letter in enumerate(line) if letter == each] for each in LETTERS]


def drawn(passes, letters=LETTERS):
    """Return the slots of a rank as a line."""
    slots = {slot: letter for letter, times in zip(letters, passes, strict=True) for slot in times}
    return "".join(slots.get(slot, ".") for slot in range(max(slots) + 1))


def test_weights_fill_free_slots_oldest_first_and_follow_at_the_end():
    passes = passes_of("Ff.I.i")
    assert drawn([*passes, weights_in_turn(passes)], "FfIiW") == "Ff.IWiW"


def test_weights_of_the_first_chunk_go_first():
    passes = passes_of("FFffIiIi")
    w1, w0 = weights_by_chunk(passes)
    assert drawn([*passes, w1, w0], "FfIiWw") == "FFffIiIiWWww"


def test_squeeze_keeps_the_order_and_removes_unneeded_slots():
    slots = [passes_of("..F.....f.I....i"), passes_of("....F.f....I.i.")]
    assert [drawn(passes) for passes in squeeze(slots)] == ["F..fI..i", ".Ff..Ii"]


def test_warm_up_is_moved_and_steady_phase_only_squeezed():
    assert drawn(pull_with_weights([passes_of("F.....F.f.I.i.f.I.i")])[0]) == "FFfI.i.fI.i"


def test_cooldown_is_moved_after_a_weight_gradient_that_frees_memory():
    assert drawn(pull_around_weights([passes_of("F....fI....iF....fI....i")])[0]) == "FfI.iF.fIi"


def test_moving_does_not_modify_its_input():
    slots = [passes_of("F.f.I.iF.f.I.i")]
    before = [[list(times) for times in passes] for passes in slots]
    pull_with_weights(slots)
    pull_around_weights(slots)
    assert slots == before


def test_lane_finds_the_first_contiguous_free_slots():
    lane = Lane([], 12)
    lane.reach(1)
    lane.reach(3)
    lane.reach(8)
    assert lane.first_free(0, 8) == 0
    assert lane.first_free(1, 8) == 2
    assert lane.first_free(0, 8, width=2) == 4
    assert lane.first_free(7, 8, width=2) == 8
    lane.move(8, 4, width=1)
    assert lane.first_free(3, 9) == 5


def test_lane_finds_where_one_more_activation_fits():
    lane = Lane([(0, 1), (2, 1), (4, -1)], 8)
    assert lane.memory == [1, 1, 2, 2, 1, 1, 1, 1]
    assert lane.after_full(0, 7, limit=2) == 4
    assert lane.after_full(5, 7, limit=2) == 5
    lane.hold(4, 7, 1)
    assert lane.after_full(0, 7, limit=2) == 7
