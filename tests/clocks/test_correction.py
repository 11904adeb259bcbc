from dataclasses import replace

import numpy as np
import pytest

from evidence_rows import evidence_from_rows, there_and_back
from stagescope.clocks.correction import Correction, correction_of
from stagescope.clocks.evidence import Coarse
from stagescope.clocks.grid import Adjustment, grid_of
from stagescope.clocks.solution import solve

ZERO_NS = 1_763_600_000_000_000_000
COARSE = Coarse(ZERO_NS, np.array([0, 7_000]))
MILLISECOND_NS = 1_000_000


def pieces_from(ahead_ns, *, timestamps_ms=(0, 50, 100)):
    """Return the solution of two clocks with one message each way per millisecond, and the second correction."""
    rows = there_and_back(range(0, 100_000_000, MILLISECOND_NS), ahead_ns=ahead_ns, latency_ns=10_000.0)
    solution = solve(evidence_from_rows(rows), 2, 200.0)
    timestamps_ns = ZERO_NS + 7_000 + np.array(timestamps_ms) * MILLISECOND_NS
    return solution, correction_of(solution, COARSE, 1, timestamps_ns)


def test_a_timestamp_is_corrected_by_its_piece():
    pieces = Correction(
        np.array([100, 200]), np.array([5, -5]), np.array([0.0, 0.1]), np.zeros(2), np.zeros(2), np.zeros(2)
    )
    assert pieces.at(np.array([90, 100, 199, 200, 300])).tolist() == [95, 105, 204, 195, 305]


def test_a_constant_offset_is_corrected_within_the_error_of_every_piece():
    _, pieces = pieces_from(lambda _: 300)
    # 7,000 ns of coarse offset plus 300 ns.
    timestamps_ns = ZERO_NS + np.arange(0, 100) * MILLISECOND_NS
    assert (pieces.at(timestamps_ns) - timestamps_ns).tolist() == pytest.approx([-7_300] * 100, abs=200)
    assert (pieces.lower_ns < 0).all()
    assert (pieces.upper_ns > 0).all()


def test_errors_grow_before_the_first_and_after_the_last_observation():
    _, near = pieces_from(lambda _: 0)
    _, far = pieces_from(lambda _: 0, timestamps_ms=(-1_000, 0, 100, 1_100))
    assert far.start_ns[0] == ZERO_NS + 7_000 - 1_000 * MILLISECOND_NS
    # One more second with a drift of 200 ppm.
    assert far.upper_ns[0] - near.upper_ns[0] == pytest.approx(200_000, rel=0.05)
    assert far.upper_ns[-1] - near.upper_ns[-1] == pytest.approx(200_000, rel=0.05)


def test_timestamps_keep_their_order_where_the_clock_was_set_back():
    solution, _ = pieces_from(lambda at_ns: -400_000 * (at_ns >= 50 * MILLISECOND_NS))
    assert len(solution.grid.adjustments) == 1
    timestamps_ns = ZERO_NS + 7_000 + np.sort(np.arange(0, 100_000_000, 300_000))
    pieces = correction_of(solution, COARSE, 1, timestamps_ns)
    assert (np.diff(pieces.at(timestamps_ns)) >= 0).all()


def test_a_stretch_with_a_possible_adjustment_is_unbounded():
    solution, _ = pieces_from(lambda _: 0)
    from_ns = 90.0 * MILLISECOND_NS
    unbounded = replace(solution.grid, unbounded=(Adjustment(1, from_ns, np.inf, 0.0),))
    pieces = correction_of(
        replace(solution, grid=unbounded), COARSE, 1, ZERO_NS + np.array([0, 99 * MILLISECOND_NS])
    )
    late = pieces.start_ns >= ZERO_NS + 7_000 + from_ns
    assert np.isinf(pieces.upper_ns[late]).all()
    assert np.isfinite(pieces.upper_ns[: late.argmax() - 1]).all()


def test_no_error_is_estimated_where_one_side_is_not_bounded():
    solution, whole = pieces_from(lambda _: 0)
    assert np.isfinite(whole.estimated_ns).all()
    late = solution.grid.knots_ns > 50.0 * MILLISECOND_NS
    upper_ns = np.where(late[:, None] & (np.arange(2) == 1), np.inf, solution.bounds.upper_ns)
    bounds = replace(solution.bounds, upper_ns=upper_ns)
    pieces = correction_of(
        replace(solution, bounds=bounds), COARSE, 1, ZERO_NS + np.array([0, 99 * MILLISECOND_NS])
    )
    assert np.isfinite(pieces.lower_ns).all()
    assert np.isinf(pieces.upper_ns).any()
    assert np.isnan(pieces.estimated_ns).tolist() == np.isinf(pieces.upper_ns).tolist()


def test_the_estimate_follows_the_drift_without_bounds():
    solution, whole = pieces_from(lambda at_ns: 1e-4 * at_ns)
    unbounded = replace(solution.grid, unbounded=(Adjustment(1, -np.inf, 50.0 * MILLISECOND_NS, 0.0),))
    grid = grid_of(unbounded.knots_ns, unbounded.budget, unbounded.adjustments, unbounded.unbounded)
    timestamps_ns = ZERO_NS + 7_000 + np.arange(0, 100) * MILLISECOND_NS
    pieces = correction_of(replace(solution, grid=grid), COARSE, 1, timestamps_ns)
    assert np.isinf(pieces.upper_ns[0])
    assert pieces.at(timestamps_ns).tolist() == pytest.approx(whole.at(timestamps_ns).tolist(), abs=2)
