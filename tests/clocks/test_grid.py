import numpy as np

from evidence_rows import evidence_from_rows
from stagescope.clocks.grid import MOST_KNOTS, Adjustment, grid_of, knots_for

BUDGET = np.array([0.0, 1e-4])


def test_a_clock_adjustment_separates_the_knots_into_segments():
    grid = grid_of(np.arange(5.0) * 100, BUDGET, (Adjustment(1, 150.0, 250.0, 30.0),))
    assert grid.segment[:, 0].tolist() == [0, 0, 0, 0, 0]
    assert grid.segment[:, 1].tolist() == [0, 0, -1, 1, 1]
    assert grid.continuous()[:, 1].tolist() == [True, False, False, True]


def test_an_unbounded_stretch_is_in_no_segment():
    grid = grid_of(np.arange(4.0) * 100, BUDGET, (), (Adjustment(1, 150.0, np.inf, 0.0),))
    assert grid.segment[:, 1].tolist() == [0, 0, -1, -1]
    assert grid.segment_at(np.array([0, 1]), np.array([180.0, 180.0])).tolist() == [0, -1]


def test_knots_span_the_observations_without_distant_outliers():
    rows = [(0, 1, at_ns * 1e6, 20.0) for at_ns in range(1000)] + [(0, 1, 1e15, 20.0)]
    knots_ns = knots_for(evidence_from_rows(rows), 2)
    assert len(knots_ns) <= MOST_KNOTS
    assert knots_ns[0] == 0.0
    assert 0.98e9 < knots_ns[-1] < 1.1e9


def test_without_observations_there_are_two_knots():
    assert knots_for(evidence_from_rows([(0, 1, 0, 0)]).where(np.array([], int)), 2).tolist() == [0.0, 1.0]
