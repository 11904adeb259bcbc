"""The noise of many series: what it is, and that equal series are not found to differ."""

import numpy as np
import polars as pl
import pytest

from stagescope.analysis.statistics import noise
from stagescope.analysis.statistics.estimates import medians_of_others
from stagescope.analysis.statistics.noise import (
    count_independent,
    estimate_changes,
    estimate_levels,
    fit_noise,
)


def drift(rng, shape, memory=0.9):
    """Return AR(1) series with a standard deviation of 1."""
    level = rng.normal(size=shape)
    for step in range(1, shape[-1]):
        level[..., step] = memory * level[..., step - 1] + (1 - memory**2) ** 0.5 * level[..., step]
    return level


def compared(values):
    """Return stages x replicas x steps as replicas relative to their peers, and how many are independent."""
    stages, replicas, steps = values.shape
    others = np.concatenate([medians_of_others(stage) for stage in values])
    return values.reshape(-1, steps) - others, stages * (replicas - 1.0)


def white(seed, size=(8, 4, 10)):
    return np.random.default_rng(seed).normal(size=size)


def test_white_noise_gives_its_variance_and_little_drift():
    series, independent = compared(white(0, (32, 4, 40)))
    noise = fit_noise(series, independent)
    assert noise.variance == pytest.approx(np.var(series), rel=0.1)
    assert noise.drift_share < 0.2


def test_drift_is_recognized():
    series, independent = compared(drift(np.random.default_rng(0), (16, 4, 20)))
    noise = fit_noise(series, independent)
    assert noise.drift_share > 0.8
    white_variance = noise._replace(drift_share=0.0).mean_variance(np.array([20.0]))
    assert noise.mean_variance(np.array([20.0])) > 5 * white_variance


def test_level_of_one_slow_series_is_found_although_it_is_as_large_as_the_noise():
    values = white(1)
    values[2, 3] += 1.5  # the mean of ten steps has a standard error of 0.37
    series, independent = compared(values)
    p_values = estimate_levels(series, fit_noise(series, independent)).p_above(0.0)
    assert p_values.argmin() == 11
    assert p_values[11] < 0.05


def test_a_slow_half_is_found_over_time():
    values = white(2, (8, 2, 20)) / 10
    values[:, 1] += 1.0
    series, independent = compared(values)
    p_values = estimate_levels(series, fit_noise(series, independent)).p_above(0.0)
    assert (p_values[1::2] < 1e-6).all()
    assert (p_values[::2] > 0.5).all()


def test_noisy_series_keeps_its_own_error():
    values = white(3)
    values[0, 0] *= 20
    series, independent = compared(values)
    levels = estimate_levels(series, fit_noise(series, independent))
    assert levels.error[0] > 5 * levels.error[10]


def test_change_of_a_series_is_that_of_its_line():
    values = white(4) / 100
    values[1, 2] += np.linspace(0, 1, 10)
    series, independent = compared(values)
    changes = estimate_changes(series, fit_noise(series, independent))
    assert changes.value[6] == pytest.approx(1, abs=0.05)
    assert changes.p_above(0.0)[6] < 1e-6


def test_series_of_one_pipeline_that_vary_together_count_once():
    rng = np.random.default_rng(5)
    pipelines = pl.Series(np.repeat(np.arange(4), 8))
    peers = np.full(32, 3)
    alone = count_independent(rng.normal(size=(32, 10)), pipelines, peers)
    together = count_independent(np.repeat(rng.normal(size=(4, 10)), 8, axis=0), pipelines, peers)
    assert alone == pytest.approx(24, abs=6)
    assert together == pytest.approx(3, abs=0.5)


@pytest.mark.parametrize(("stages", "replicas", "steps"), [(4, 4, 10), (4, 2, 10), (8, 2, 6), (2, 3, 20)])
@pytest.mark.parametrize("amount", [0.0, 0.3, 3.0])
def test_equal_series_differ_no_more_often_than_stated_however_they_drift(stages, replicas, steps, amount):
    rng = np.random.default_rng(6)
    levels = changes = 0
    for _ in range(200):
        size = (stages, replicas, steps)
        series, independent = compared(rng.normal(size=size) + amount * drift(rng, size))
        noise = fit_noise(series, independent)
        levels += estimate_levels(series, noise).p_above(0.0).min() * len(series) < 0.01
        changes += estimate_changes(series, noise).p_above(0.0).min() * len(series) < 0.01
    # Two of 200 are expected at the rate of 1 %; more than 9 have a probability of 0.01 %.
    assert levels <= 9
    assert changes <= 9


@pytest.mark.parametrize("count", [2, 3, 10, 399, 401, 1000])
def test_the_variance_of_a_change_by_drift_is_that_of_its_weighted_samples(count):
    """The closed form equals the sum over all pairs of samples, which takes their square in time and memory."""
    place = np.arange(count) - (count - 1) / 2
    weight = place * (count - 1) / (place**2).sum()
    wanted = weight @ noise.MEMORY ** np.abs(np.subtract.outer(place, place)) @ weight
    drift = noise.Noise(1.0, 1.0, 1.0).change_variance(np.array([float(count)]))[0]
    of_mean = noise.Noise(1.0, 1.0, 1.0).mean_variance(np.array([float(count)]))[0]
    assert drift == pytest.approx(wanted * (1 + of_mean), rel=1e-12)
