"""Clocks that were set and soon set back: what is left without bounds, and what rules an excursion out."""

import numpy as np
import pytest

from planted_clocks import ClockStep, Plan, plant, uncovered
from stagescope.clocks import align_clocks
from stagescope.clocks.conflicts import Conflicts
from stagescope.clocks.evidence import Evidence
from stagescope.clocks.excursions import excursions

MS = 1_000_000


@pytest.mark.parametrize(
    ("machine", "size_ns", "corrupt"),
    [(1, 1_025_074, 0.0), (3, -2_573_382, 0.0), (0, 20_962_100, 0.0), (3, 10_446_983, 0.02)],
)
def test_bounds_hold_while_a_clock_is_set_and_soon_set_back(machine, size_ns, corrupt):
    steps = ClockStep(machine, 0.40, size_ns), ClockStep(machine, 0.48, -size_ns)
    planted = plant(Plan(seed=17, steps=4, clock_steps=steps, corrupt=corrupt))
    aligned = align_clocks(planted.timeline)
    assert uncovered(planted, aligned.timeline).is_empty()
    lost = {each.ranks[0]: each.unbounded_ns for each in aligned.clocks.machines}
    assert lost[machine] > 0
    assert max(lost.values()) < 600 * MS


def observed(rows):
    """Return messages (source, target, sent, received) in ms, each of which had its receiver wait."""
    source, target, sent, received = (np.array(column) for column in zip(*rows, strict=True))
    count = len(rows)
    return Evidence(
        source,
        target,
        sent * MS * 1.0,
        received * MS * 1.0,
        np.zeros(count),
        np.ones(count, bool),
        np.arange(count),
        np.zeros(count, np.int64),
        np.zeros(count),
        np.zeros(count, bool),
        *np.zeros((3, count)),
    )


def conflicts_of(early, late):
    return Conflicts(np.array(early), np.array(late), np.full(len(early), 1.0 * MS))


# Clock 1 is ahead by 5 ms from 25 to 45 ms: its messages at 30 and 40 ms seem to arrive before they were sent.
ALTERNATING = [(1, 0, 10, 11), (0, 1, 20, 21), (1, 0, 35, 31), (1, 0, 45, 41), (0, 1, 50, 51), (1, 0, 60, 61)]


def test_outliers_of_one_direction_in_a_row_are_an_excursion_of_either_clock():
    outliers = np.array([False, False, True, True, False, False])
    conflicts = conflicts_of([1, 1, 2, 3], [2, 3, 4, 4])
    found = excursions(observed(ALTERNATING), conflicts, outliers, 2)
    assert [(each.clock, each.from_ns / MS, each.to_ns / MS) for each in found] == [(1, 20, 56), (0, 15, 51)]


def test_outliers_with_a_correct_message_of_their_direction_between_them_are_outliers():
    rows = [*ALTERNATING, (1, 0, 36, 36.5), *[(1, 0, 80 + n, 78 + n) for n in (0, 10)]]
    outliers = np.array([False, False, True, True, False, False, False, True, False])
    assert excursions(observed(rows), conflicts_of([1, 1, 2, 3], [2, 3, 4, 4]), outliers, 2) == ()


def test_a_clock_that_explains_all_outliers_clears_those_that_explain_some_of_them():
    # Clock 1 is ahead towards both of its neighbors.
    rows = ALTERNATING + [(1 if a else 2, 2 if a else 1, sent, got) for a, _, sent, got in ALTERNATING]
    outliers = np.array([False, False, True, True, False, False] * 2)
    conflicts = conflicts_of([1, 1, 2, 3, 7, 7, 8, 9], [2, 3, 4, 4, 8, 9, 10, 10])
    assert [each.clock for each in excursions(observed(rows), conflicts, outliers, 3)] == [1]
