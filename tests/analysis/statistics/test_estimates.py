"""Means, errors, p-values and false discoveries, checked against scipy.stats and random samples."""

import numpy as np
import pytest
from scipy import stats

from stagescope.analysis.statistics.estimates import (
    difference,
    discoveries,
    estimate_means,
    medians_of_others,
)


def test_few_samples_give_the_t_test():
    samples = np.random.default_rng(0).normal(0.3, 1, (1, 5))
    expected = stats.ttest_1samp(samples[0], 0, alternative="greater").pvalue
    assert estimate_means(samples).p_above(0)[0] == pytest.approx(expected)
    low, high = estimate_means(samples).intervals()
    interval = stats.ttest_1samp(samples[0], 0).confidence_interval()
    assert (low[0], high[0]) == pytest.approx((interval.low, interval.high))


def test_many_samples_give_the_trimmed_t_test_of_yuen():
    rng = np.random.default_rng(1)
    one, other = rng.normal(0, 1, (1, 30)), rng.normal(0.5, 2, (1, 40))
    expected = stats.ttest_ind(other[0], one[0], equal_var=False, trim=0.2)
    found = difference(estimate_means(one), estimate_means(other))
    assert found.value / found.error == pytest.approx(expected.statistic)
    assert found.degrees == pytest.approx(expected.df)


def test_one_extreme_sample_does_not_move_a_trimmed_mean():
    samples = np.array([[1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.02, 0.98, 1.01, 0.99]])
    wild = samples.copy()
    wild[0, 3] = 1e6
    assert abs(estimate_means(wild).value - estimate_means(samples).value)[0] < 0.02


def test_missing_samples_do_not_count():
    assert estimate_means(np.array([[1.0, np.nan, 3.0]])).value == pytest.approx([2])
    alone = estimate_means(np.array([[np.nan, 4.0]]))
    assert (alone.count[0], alone.degrees[0], alone.p_above(0)[0]) == (1, 0, 1)
    assert np.isnan(alone.intervals()[0][0])
    assert np.isnan(estimate_means(np.full((1, 3), np.nan)).value[0])


def test_samples_without_spread_have_p_values_of_0_or_1():
    assert estimate_means(np.ones((1, 4))).p_above(0.5)[0] == 0
    assert estimate_means(np.ones((1, 4))).p_above(1.0)[0] == 1


@pytest.mark.parametrize("count", [2, 4, 8, 20])
def test_null_hypotheses_are_rejected_as_often_as_stated(count):
    p_values = estimate_means(np.random.default_rng(count).normal(size=(20_000, count))).p_above(0)
    assert (p_values < 0.05).mean() == pytest.approx(0.05, abs=0.006)


def test_false_discoveries_stay_at_the_stated_rate():
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(400):
        samples = rng.normal(size=(50, 6))
        samples[:10] += 3
        found = discoveries(estimate_means(samples).p_above(0), 0.05)
        shares.append(found[10:].sum() / max(found.sum(), 1))
    assert np.mean(shares) < 0.05
    assert found[:10].sum() >= 9


def test_discoveries_equal_the_step_up_procedure():
    rng = np.random.default_rng(3)
    for count in (1, 2, 40, 41, 400):
        p_values = np.round(rng.uniform(size=count) ** 3, 3)  # some are equal
        for rate in (0.001, 0.05, 0.2):
            expected = stats.false_discovery_control(p_values) <= rate
            assert discoveries(p_values, rate).tolist() == expected.tolist()
    assert discoveries(np.array([]), 0.05).tolist() == []


def test_medians_of_others_exclude_the_row_itself_and_missing_values():
    rng = np.random.default_rng(0)
    for rows in range(1, 6):
        values = rng.normal(size=(rows, 30))
        values[rng.random(values.shape) < 0.3] = np.nan
        found = medians_of_others(values)
        for row, column in np.ndindex(*values.shape):
            others = np.delete(values[:, column], row)
            others = others[np.isfinite(others)]
            expected = np.median(others) if len(others) else np.nan
            assert found[row, column] == pytest.approx(expected, nan_ok=True)
