"""Groups of ranks with comparable timestamps, and the notes on each clock."""

from dataclasses import replace

import pytest

from drawing import timeline_from_text
from machines import on_machines
from stagescope.model import empty_timeline
from stagescope.model.clock_groups import ClockGroup, clock_groups, clock_notes, clock_summary

FOUR = timeline_from_text("F0\nF0\nF0\nF0")
MACHINES = {0: "a", 1: "b", 2: "a", 3: "c"}


def test_without_clocks_all_ranks_are_one_group_without_notes():
    (group,) = clock_groups(FOUR)
    assert group.ranks == (0, 1, 2, 3)
    assert clock_notes(FOUR) == {}
    assert clock_groups(empty_timeline()) == ()


def test_machines_that_were_aligned_are_one_group():
    aligned = on_machines(FOUR, MACHINES, {"a": (0, 0), "b": (-5, 5), "c": (-9, 0)})
    assert clock_groups(aligned) == (ClockGroup("a, b, c", (0, 1, 2, 3)),)


def test_machines_that_were_not_aligned_are_shown_as_they_are():
    assert clock_groups(on_machines(FOUR, MACHINES)) == (ClockGroup("a, b, c", (0, 1, 2, 3)),)


def test_each_machine_that_alignment_could_not_place_is_a_group_behind_the_common_one():
    unaligned = on_machines(FOUR, MACHINES | {0: "d"}, {"a": (0, 0), "b": None, "c": (-5, 5), "d": None})
    assert clock_groups(unaligned) == (
        ClockGroup("a, c", (2, 3)),
        ClockGroup("d", (0,)),
        ClockGroup("b", (1,)),
    )


def test_a_machine_that_is_bounded_on_one_side_alone_is_apart():
    half = on_machines(FOUR, MACHINES, {"a": (0, 0), "b": (-5, None), "c": (-5, 5)})
    assert [group.name for group in clock_groups(half)] == ["a, c", "b"]
    assert clock_notes(half)[1] == clock_notes(on_machines(FOUR, MACHINES))[1]


def test_of_many_machines_the_first_are_named():
    machines = dict(enumerate("abcd"))
    errors_ns = dict.fromkeys("abcd", (-1, 1))
    assert clock_groups(on_machines(FOUR, machines, errors_ns))[0].name == "a, b, c and 1 more"


@pytest.mark.parametrize(
    ("errors_ns", "note"),
    [
        ((0, 0), "the reference clock"),
        ((-1_500, 2_000_000), "aligned, error between -1.500 µs and +2.000 ms"),
        (None, "not aligned with the other machines: its clock offset is unknown"),
    ],
)
def test_notes_state_how_well_each_clock_is_known(errors_ns, note):
    timeline = on_machines(FOUR, MACHINES, {"a": (0, 0), "b": errors_ns, "c": (-5, 5)})
    assert clock_notes(timeline)[1] == note


def test_a_clock_without_aligned_clocks_is_not_called_the_reference():
    alone = on_machines(FOUR, MACHINES, {"a": (0, 0), "b": None, "c": (-5, None)})
    (note,) = set(clock_notes(alone).values())
    assert note == "not aligned with the other machines: its clock offset is unknown"


def test_the_summary_has_the_worst_error_of_all_pieces_of_a_clock():
    timeline = on_machines(FOUR, MACHINES, {"a": (0, 0), "b": (-5, 7), "c": None})
    later = on_machines(FOUR, MACHINES, {"a": (0, 0), "b": (-9, None), "c": None}).clocks
    timeline = replace(timeline, clocks=timeline.clocks.vstack(later))
    b = clock_summary(timeline).row(1, named=True)
    assert (b["clock"], b["error_lo_ns"], b["error_hi_ns"]) == ("b/clock", -9, 7)
    assert not b["is_bounded_throughout"]
    assert clock_notes(timeline)[1] == "aligned, error between -9 ns and +7 ns where it is bounded"
