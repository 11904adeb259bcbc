"""Trends and outliers of a series, checked against scipy.stats and random series."""

import numpy as np
import pytest
from scipy import stats

from stagescope.analysis.statistics.series import MOST_VALUES, find_outliers, find_trend


def test_slope_and_interval_are_those_of_theil_and_sen():
    rng = np.random.default_rng(1)
    places = np.arange(30.0)
    values = rng.normal(size=30) + 0.2 * places
    expected = stats.theilslopes(values, places)
    found = find_trend(places, values)
    assert found.slope == pytest.approx(expected.slope)
    assert found.low == pytest.approx(expected.low_slope, rel=0.1)
    assert found.high == pytest.approx(expected.high_slope, rel=0.1)


def test_clear_trend_is_found_in_short_series():
    noise = np.random.default_rng(1).normal(size=10)
    assert find_trend(np.arange(10.0), noise + 10.0 * np.arange(10.0)).p_value < 1e-6


def test_outlier_hides_no_trend():
    values = np.random.default_rng(1).normal(size=20) + 10.0 * np.arange(20.0)
    values[4] += 300
    assert find_trend(np.arange(20.0), values).p_value < 1e-6


@pytest.mark.parametrize("memory", [0.6, 0.9, 1.0])
@pytest.mark.parametrize("count", [8, 10, 20, 100])
def test_drift_is_not_a_trend(memory, count):
    rng = np.random.default_rng(count)
    alarms = 0
    for _ in range(400):
        values = rng.normal(size=count)
        for place in range(1, count):
            values[place] += memory * values[place - 1]
        alarms += find_trend(np.arange(float(count)), values).p_value < 0.01
    assert alarms <= 13  # 4 expected of a random walk; more than 13 has a probability of 0.01 %


def test_long_series_is_thinned_and_keeps_its_slope():
    places = np.arange(5.0 * MOST_VALUES)
    values = 3.0 * places + np.random.default_rng(0).normal(size=len(places))
    assert find_trend(places, values).slope == pytest.approx(3.0, rel=1e-3)


def test_three_values_have_no_trend():
    assert find_trend(np.arange(3.0), np.arange(3.0)).p_value == 1


@pytest.mark.parametrize("count", [5, 10, 40])
def test_random_series_have_a_trend_no_more_often_than_stated(count):
    rng = np.random.default_rng(count)
    p_values = [find_trend(np.arange(float(count)), rng.normal(size=count)).p_value for _ in range(600)]
    assert np.mean(np.array(p_values) < 0.05) < 0.07


@pytest.mark.parametrize("count", [4, 8, 20, 50])
def test_random_series_have_an_outlier_about_as_often_as_stated(count):
    rng = np.random.default_rng(count)
    share = np.mean([find_outliers(rng.normal(size=count), 0.05).any() for _ in range(600)])
    assert share < 0.1  # Rosner's limits are approximate: up to 0.075 here


def test_two_outliers_do_not_hide_each_other():
    values = np.random.default_rng(2).normal(size=20)
    values[[3, 11]] += 12
    assert np.flatnonzero(find_outliers(values, 0.05)).tolist() == [3, 11]


def test_equal_values_have_no_outlier():
    assert not find_outliers(np.ones(10), 0.05).any()
    assert not find_outliers(np.array([1.0, 2.0]), 0.05).any()


def as_rosner_writes_it(values, rate):
    """The value farthest from the mean of the rest, again and again: at most a fifth of them."""
    left, removed, last = list(range(len(values))), [], 0
    for taken in range(max(1, len(values) // 5)):
        rest, count = values[left], len(left)
        removed.append(left[int(np.abs(rest - rest.mean()).argmax())])
        quantile = stats.t.ppf(1 - rate / (2 * count), count - 2)
        limit = (count - 1) * quantile / np.sqrt((count - 2 + quantile**2) * count)
        if np.abs(values[removed[-1]] - rest.mean()) > limit * rest.std(ddof=1) > 0:
            last = taken + 1
        left.remove(removed[-1])
    return sorted(removed[:last])


@pytest.mark.parametrize("size", [0.0, 3.0, 1e6])
@pytest.mark.parametrize("seed", range(20))
def test_outliers_follow_the_definition(seed, size):
    rng = np.random.default_rng(seed)
    values = rng.normal(100, 1, size=int(rng.integers(4, 90))).round(1)  # some are equal
    some = rng.integers(0, len(values), 5)
    values[some] += size * rng.choice([-1, 1], 5) * rng.exponential(size=5)
    assert np.flatnonzero(find_outliers(values, 0.05)).tolist() == as_rosner_writes_it(values, 0.05)
