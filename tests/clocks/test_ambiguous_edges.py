import numpy as np
import pytest

from evidence_rows import evidence_from_rows, there_and_back
from stagescope.clocks.adjustments import pair_shifts
from stagescope.clocks.ambiguous_edges import Group, conflict_cover
from stagescope.clocks.conflicts import find_conflicts

BUDGET = np.array([0.0, 1e-4])
MOMENTS = range(0, 1_000_000, 10_000)


def ambiguous_of(rows):
    evidence = evidence_from_rows(rows)
    return pair_shifts(evidence, find_conflicts(evidence, BUDGET), BUDGET, 3)[1]


def test_the_observation_with_most_conflicts_covers_all_of_them():
    group = Group(np.array([1, 1, 1]), np.array([4, 5, 6]), np.ones(3))
    assert conflict_cover(group).tolist() == [1]


def test_both_observations_of_a_single_conflict_are_ambiguous():
    assert sorted(conflict_cover(Group(np.array([3]), np.array([7]), np.ones(1))).tolist()) == [3, 7]


def test_an_unbounded_stretch_includes_the_time_that_a_backward_adjustment_repeats():
    rows = there_and_back(MOMENTS, ahead_ns=lambda _: 0)
    ends_ns = []
    for conflict_ns in (300, 3_000):
        rows[-2] = (0, 1, rows[-2][2], -conflict_ns)
        (adjustment, _) = ambiguous_of(rows).unbounded
        ends_ns.append(adjustment.from_ns)
    assert ends_ns[0] - ends_ns[1] == pytest.approx(2_700, abs=10)


def test_an_unbounded_stretch_at_the_beginning_has_an_offset_range():
    rows = there_and_back(MOMENTS, ahead_ns=lambda moment: 2_000 * (moment >= 15_000))
    rows = [row for row in rows if row[2] >= 15_000 or row[2] < 10_000]
    unbounded = ambiguous_of(rows).unbounded
    assert {adjustment.clock for adjustment in unbounded} == {0, 1}
    (first,) = (adjustment for adjustment in unbounded if adjustment.clock == 0)
    assert first.other == 1
    assert -200 <= first.ahead_ns[0] <= 0 <= first.ahead_ns[1] <= 200


def test_outliers_on_the_other_side_do_not_shorten_a_stretch():
    # The only message back before the adjustment is an outlier that contradicts some of the messages out.
    rows = [(0, 1, at, 100) for at in range(0, 300_000, 10_000)]
    rows += [(0, 1, 310_000, -4_000), (1, 0, 330_000, 3_000)]
    rows += [(1, 0, at, -2_900) for at in range(700_000, 1_000_000, 10_000)]
    unbounded = ambiguous_of(rows).unbounded
    assert unbounded
    assert max(adjustment.to_ns for adjustment in unbounded if np.isinf(adjustment.from_ns)) >= 690_000
