import numpy as np
import pytest

from evidence_rows import evidence_from_rows, there_and_back
from stagescope.clocks.grid import grid_of, knots_for
from stagescope.clocks.solution import pairs_with_many_outliers, references, screen, solve

MOMENTS = range(0, 100_000_000, 1_000_000)


def correct(ahead_ns=lambda _: 0):
    return there_and_back(MOMENTS, ahead_ns=ahead_ns, latency_ns=20_000.0)


def link(one, other, rows):
    names = (one, other)
    return [(names[source], names[target], *rest) for source, target, *rest in rows]


def test_groups_are_clocks_bounded_on_both_sides():
    rows = [*link(0, 2, correct()), (2, 1, 0, 5), *link(3, 1, correct())]
    assert references(evidence_from_rows(rows), 5).tolist() == [0, 1, 0, 1, 4]


def test_a_cycle_of_one_way_links_is_a_group():
    assert references(evidence_from_rows([(0, 1, 0, 5), (1, 2, 0, 5), (2, 0, 0, 5)]), 3).tolist() == [0, 0, 0]


def test_every_correction_is_within_its_bounds():
    solution = solve(evidence_from_rows(correct(lambda at: 500 + 5e-5 * at)), 2, 200.0)
    assert (solution.bounds.lower_ns <= solution.x_ns).all()
    assert (solution.x_ns <= solution.bounds.upper_ns).all()
    assert solution.x_ns[:, 0].tolist() == [0] * len(solution.x_ns)
    assert solution.x_ns[-1, 1] == pytest.approx(-500 - 5e-5 * solution.grid.knots_ns[-1], abs=200)
    assert not solution.rejected
    assert solution.outlier_fraction == 0


def test_outliers_are_rejected_and_unnoticed_ones_are_assumed():
    rows = correct()
    rows[80] = (0, 1, rows[80][2], -900_000)
    solution = solve(evidence_from_rows(rows), 2, 200.0)
    assert list(solution.rejected) == [80]
    assert solution.rejected[80] == pytest.approx(880_000, abs=2_000)
    assert solution.outlier_fraction > 0


def test_observations_explained_by_an_adjustment_are_not_outliers():
    rows = correct(lambda at: 300_000 * (at >= 50_000_000))
    evidence = evidence_from_rows(rows)
    grid = grid_of(knots_for(evidence, 2), np.array([0.0, 2e-4]), ())
    screened = screen(evidence, grid, np.zeros(2, np.int64))
    assert len(screened.kept) == len(rows)
    assert [each.adjustments[0].clock for each in screened.attributed] == [1]
    assert screened.outlier_fraction == 0


def test_many_outliers_in_one_direction_make_a_pair_inconsistent():
    evidence = evidence_from_rows(correct())
    some = dict.fromkeys(range(0, 8, 2), 5.0)
    assert pairs_with_many_outliers(evidence, some) == []
    many = {row: float(row) for row in range(0, 200, 4)}
    assert pairs_with_many_outliers(evidence, many) == [(0, 1, 196.0)]


def test_an_inconsistent_pair_is_excluded_and_the_rest_solved():
    wrong = [(1, 2, at, -1_000_000 if number % 2 else 20_000) for number, at in enumerate(MOMENTS)]
    wrong += [(2, 1, at + 1, 20_000) for at in MOMENTS]
    solution = solve(evidence_from_rows(correct() + wrong), 3, 200.0)
    (contradiction,) = solution.contradictions
    assert (contradiction.one, contradiction.other) == (1, 2)
    assert len(contradiction.rows) == 2
    assert solution.reference.tolist() == [0, 0, 2]
    assert np.isfinite(solution.bounds.upper_ns[:, :2]).all()


def test_clocks_with_only_inconsistent_observations_have_no_bounds():
    wrong = [(0, 1, at, -1_000_000 if number % 2 else 20_000) for number, at in enumerate(MOMENTS)]
    wrong += [(1, 0, at + 1, 20_000) for at in MOMENTS]
    solution = solve(evidence_from_rows(wrong), 2, 200.0)
    assert len(solution.contradictions) == 1
    assert np.isinf(solution.bounds.upper_ns).all()
    assert not solution.x_ns.any()


def test_contradictory_cycles_are_not_corrected():
    rows = [(one, (one + 1) % 3, at, -10_000_000) for one in range(3) for at in MOMENTS]
    solution = solve(evidence_from_rows(rows), 3, 200.0)
    assert solution.withheld == {0, 1, 2}
    assert not solution.x_ns.any()
    assert np.isinf(solution.bounds.upper_ns[:, 1:]).all()


def test_without_observations_every_clock_is_its_own_reference():
    solution = solve(evidence_from_rows([(0, 1, 0, 0)]).where(np.array([], int)), 3, 200.0)
    assert solution.reference.tolist() == [0, 1, 2]


def test_the_estimate_changes_no_faster_than_clocks_can_drift():
    rows = there_and_back(range(0, 100_000_000, 1_000_000), ahead_ns=lambda _: 0)
    # Delayed by 30 ms in one direction throughout the second half, which is no drift.
    late = [(s, t, at, ns + 30_000_000 * (at > 50_000_000 and s == 0)) for s, t, at, ns in rows]
    solution = solve(evidence_from_rows(late), 2, 200.0)
    assert np.abs(np.diff(solution.x_ns[:, 1])).max() <= 200e-6 * solution.grid.gap_ns + 1
