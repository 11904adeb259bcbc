import numpy as np
import pytest

from evidence_rows import evidence_from_rows, there_and_back
from stagescope.clocks.grid import Adjustment, grid_of
from stagescope.clocks.limits import (
    constraints_of,
    contradicting_pairs,
    extrapolate,
    fewest_with_inlier,
    limit_slope,
    limits_of,
    most_outliers,
)

PPM = 1e-6


def limits_at(rows, knots_ns, *, adjustments=(), outlier_fraction=0.0):
    grid = grid_of(np.array(knots_ns, float), np.array([0.0, 100 * PPM]), adjustments)
    return limits_of(constraints_of(evidence_from_rows(rows), grid, outlier_fraction), grid)


def test_an_observation_limits_later_knots_from_the_past_and_earlier_ones_from_the_future():
    limits = limits_at([(0, 1, 1_000_000, 50)], [0, 1_000_000, 2_000_000, 3_000_000])
    # 100 ppm of a millisecond are 100 ns; the drift within the receiver's 50 ns is negligible.
    assert limits.past_ns[:, 0].tolist() == pytest.approx([np.inf, np.inf, 150, 250], abs=0.1)
    assert limits.future_ns[:, 0].tolist() == pytest.approx([150, 50, np.inf, np.inf], abs=0.1)
    assert limits.back.tolist() == [-1]


def test_limits_do_not_cross_a_clock_adjustment():
    adjustment = Adjustment(1, 1_200_000.0, 1_800_000.0, 40.0)
    limits = limits_at([(0, 1, 1_000_000, 50)], [0, 1_000_000, 2_000_000], adjustments=(adjustment,))
    assert limits.past_ns[2, 0] == np.inf


def test_the_safe_limit_is_the_wider_side():
    rows = there_and_back([0, 4_000_000], ahead_ns=lambda at_ns: 25 * (at_ns > 0), latency_ns=20.0)
    limits = limits_at(rows, [-1_000_000, 2_000_000, 5_000_000])
    ahead = limits.one == 0
    assert limits.past_ns[1, ahead] == pytest.approx(220, abs=1)
    assert limits.future_ns[1, ahead] == pytest.approx(245, abs=1)
    assert limits.safe_ns[1, ahead] == limits.future_ns[1, ahead]


def test_beyond_the_outermost_observations_the_margin_of_the_pair_is_added():
    rows = there_and_back([0, 4_000_000], ahead_ns=lambda _: 0, latency_ns=20.0)
    limits = limits_at(rows, [-1_000_000, 2_000_000, 5_000_000])
    nearest_ns = limits.safe_ns[1] + limits.along_ns[0]
    assert limits.along_ns[0] == pytest.approx([300, 300])
    assert limits.safe_ns[0] == pytest.approx(nearest_ns + limits.margin_ns)
    assert limits.safe_ns[2] == pytest.approx(nearest_ns + limits.margin_ns)


def test_the_last_limit_comes_from_the_last_observations_even_if_earlier_ones_were_tighter():
    moments = range(0, 10_000, 100)
    rows = there_and_back(moments, ahead_ns=lambda at_ns: 19.5 - 39 * (at_ns >= 5_000), latency_ns=20.0)
    limits = limits_at(rows, np.linspace(0, 9_900, 12))
    back = limits.one == 1
    # Before the adjustment, messages back seemed to take 0.5 ns, and 39.5 ns since then.
    assert limits.tightest_ns[-1, back] < 2
    assert limits.safe_ns[-1, back] >= 39.5


def test_missing_limits_are_extrapolated_from_the_nearest_knot_of_the_segment():
    limits_ns = np.array([[np.inf], [10.0], [2.0], [np.inf], [np.inf]])
    along_ns = np.array([[1.0], [1.0], [1.0], [np.inf]])
    assert extrapolate(limits_ns, along_ns)[:, 0].tolist() == [11, 10, 2, 3, np.inf]


def test_the_allowed_number_of_outliers_is_rarely_exceeded_by_chance():
    assert most_outliers(16, 0.0) == 0
    assert most_outliers(16, 0.01) < most_outliers(16, 0.1) <= 16
    rows = there_and_back(range(0, 64_000, 1_000), ahead_ns=lambda _: 0)
    rows[64] = (0, 1, rows[64][2], -15)
    trusting = limits_at(rows, [0, 32_000, 64_000]).tightest_ns
    doubting = limits_at(rows, [0, 32_000, 64_000], outlier_fraction=0.01).tightest_ns
    assert trusting[1].min() < 0
    assert doubting[1].min() > 20


def test_at_an_end_the_third_longest_delay_counts():
    rows = there_and_back(range(0, 64_000, 1_000), ahead_ns=lambda _: 0)
    for number, delay_ns in enumerate((30, 1_000, 500, 40)):
        rows[2 * number - 8] = (0, 1, rows[2 * number - 8][2], delay_ns)
    assert fewest_with_inlier(0.01) == 7
    limits = limits_at(rows, range(0, 64_001, 500), outlier_fraction=0.01)
    ahead = limits.one == 0
    # Up to the third last of them, because an adjustment may have followed any of these three.
    known = np.flatnonzero(np.isfinite(limits.future_ns[:, ahead][:, 0]))
    assert known[-1] == 61 * 2
    assert limits.future_ns[known[-1], ahead] == pytest.approx(40, abs=1)


def test_with_fewer_observations_the_longest_delay_counts():
    rows = [(0, 1, at_ns, at_ns / 10) for at_ns in (100, 200, 300)]
    grid = grid_of(np.linspace(0, 400, 401), np.zeros(2), ())
    evidence = evidence_from_rows(rows)
    assert len(constraints_of(evidence, grid, 0.01).limit_ns) == 0
    limits = limits_of(constraints_of(evidence, grid, 0.01, to_the_ends=True), grid)
    assert limits.future_ns[300, 0] == limits.past_ns[130, 0] == 30
    assert np.isinf([limits.future_ns[301, 0], limits.past_ns[100, 0]]).all()


def test_contradicting_limits_name_the_pair():
    rows = [(0, 1, 0, -100), (1, 0, 10, 20)]
    assert contradicting_pairs(limits_at(rows, [0, 100, 200])) == [(0, 1, pytest.approx(80, abs=1))]
    assert contradicting_pairs(limits_at(there_and_back([0, 50], ahead_ns=lambda _: 9), [0, 100])) == []


def test_limit_slope_lowers_values_to_the_allowed_slope():
    values_ns = np.array([[0.0], [90.0], [100.0], [10.0]])
    assert limit_slope(values_ns, np.full((3, 1), 20.0)).ravel().tolist() == [0.0, 20.0, 30.0, 10.0]


def test_limit_slope_allows_jumps_at_adjustments():
    values_ns = np.array([[0.0], [90.0]])
    assert limit_slope(values_ns, np.array([[np.inf]])).tolist() == values_ns.tolist()
