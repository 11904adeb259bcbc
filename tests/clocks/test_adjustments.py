import numpy as np

from evidence_rows import evidence_from_rows, there_and_back
from stagescope.clocks.adjustments import PairShift, attribute_adjustments, pair_shifts
from stagescope.clocks.conflicts import find_conflicts

MOMENTS = range(0, 1_000_000, 10_000)
BUDGET = np.array([0.0, 1e-4, 1e-4])


def stepped(size_ns, at_ns=500_000):
    return there_and_back(MOMENTS, ahead_ns=lambda moment: size_ns * (moment >= at_ns))


def shifts_of(rows, least=2):
    evidence = evidence_from_rows(rows)
    return pair_shifts(evidence, find_conflicts(evidence, BUDGET), BUDGET, least)


def test_an_adjustment_is_located_despite_a_few_outliers_on_either_side():
    (shift,), ambiguous = shifts_of(stepped(300))
    assert shift[:2] == (0, 1)
    assert 450_000 <= shift.from_ns < 490_000
    assert 500_000 < shift.to_ns <= 540_000
    assert abs(shift.size_ns - 300) < 5
    assert len(ambiguous.places) == 0


def test_a_backward_adjustment_has_a_negative_size():
    (shift,), _ = shifts_of(stepped(-300))
    assert abs(shift.size_ns + 300) < 5


def test_a_single_conflict_at_the_end_is_ambiguous_and_leaves_the_end_unbounded():
    rows = there_and_back(MOMENTS, ahead_ns=lambda _: 0)
    rows[-2] = (0, 1, rows[-2][2], -300)
    shifts, ambiguous = shifts_of(rows)
    assert shifts == []
    assert ambiguous.places.tolist() == [len(rows) - 2]
    assert {adjustment.clock for adjustment in ambiguous.unbounded} == {0, 1}
    assert all(adjustment.to_ns == np.inf for adjustment in ambiguous.unbounded)


def test_an_outlier_near_an_adjustment_does_not_change_the_adjustment():
    rows = stepped(300)
    rows[0] = (0, 1, rows[0][2], -100)
    (shift,), ambiguous = shifts_of(rows)
    assert 450_000 <= shift.from_ns < 490_000
    assert 500_000 < shift.to_ns <= 540_000
    assert ambiguous.places.tolist() == [0]
    assert {adjustment.clock for adjustment in ambiguous.unbounded} == {0, 1}


def chain(middle, last):
    return middle + [(source + 1, target + 1, *rest) for source, target, *rest in last]


def test_an_adjustment_is_attributed_to_the_clock_that_both_neighbors_saw_shift():
    evidence = evidence_from_rows(chain(stepped(300), stepped(-300)))
    shifts, _ = shifts_of(chain(stepped(300), stepped(-300)))
    (attributed,) = attribute_adjustments(shifts, evidence, BUDGET, np.array([0]))
    assert [adjustment.clock for adjustment in attributed.adjustments] == [1]
    assert abs(attributed.adjustments[0].size_ns - 300) < 5


def test_a_clock_is_cleared_if_its_other_neighbor_leaves_no_margin():
    rows = chain(there_and_back(MOMENTS, ahead_ns=lambda _: 0), stepped(300))
    shifts, _ = shifts_of(rows)
    (attributed,) = attribute_adjustments(shifts, evidence_from_rows(rows), BUDGET, np.array([0]))
    assert [adjustment.clock for adjustment in attributed.adjustments] == [2]


def test_the_reference_comes_last_among_equally_likely_clocks():
    shift = PairShift(0, 1, 490_000.0, 500_000.0, 300.0)
    (attributed,) = attribute_adjustments([shift], evidence_from_rows(stepped(300)), BUDGET, np.array([0]))
    assert [adjustment.clock for adjustment in attributed.adjustments] == [1]
    assert attributed.adjustments[0].may_be_reference


def test_a_third_clock_excludes_the_reference():
    rows = chain(stepped(300), stepped(-300))
    shifts, _ = shifts_of(rows)
    (attributed,) = attribute_adjustments(shifts, evidence_from_rows(rows), BUDGET, np.array([0]))
    assert not attributed.adjustments[0].may_be_reference


def test_opposite_adjustments_of_two_clocks_are_attributed_separately():
    # The reference was set back by 1,400 and machine 2 forward by 400; machine 1 between them was not set.
    last = [(source + 2, target + 2, *rest) for source, target, *rest in stepped(-400)]
    rows = [*chain(stepped(1_400), stepped(400)), *last]
    budget = np.array([0.0, 1e-4, 1e-4, 1e-4])
    evidence = evidence_from_rows(rows)
    shifts, _ = pair_shifts(evidence, find_conflicts(evidence, budget), budget, 2)
    attributed = attribute_adjustments(shifts, evidence, budget, np.array([0]))
    assert {each.adjustments[0].clock for each in attributed} == {0, 2}


def test_the_most_precise_pair_determines_the_size():
    # The reference's pair knows the size only to 40,000, so its shift may be the one of the other pair.
    shifts = [
        PairShift(0, 1, 490_000.0, 500_000.0, 30_000.0, 70_000.0),
        PairShift(1, 2, 490_000.0, 500_000.0, 300.0, 320.0),
    ]
    rows = chain(stepped(-300), stepped(300))
    (attributed,) = attribute_adjustments(shifts, evidence_from_rows(rows), BUDGET, np.array([0]))
    assert [adjustment.clock for adjustment in attributed.adjustments] == [1]
    assert attributed.adjustments[0].size_ns == -300
