"""Levels of series that shift and stay there are found; noise and drift have one level."""

import numpy as np
import pytest

from stagescope.analysis.statistics.step_levels import explains, fit_levels, has_shift

RATE = 2e-4


def noise(rows, steps, memory=0.0, seed=0):
    """Return an AR(1) process with a deviation of 1 %."""
    draws = 0.01 * np.random.default_rng(seed).normal(size=(rows, steps))
    for step in range(1, steps):
        draws[:, step] = memory * draws[:, step - 1] + np.sqrt(1 - memory**2) * draws[:, step]
    return draws


def test_levels_before_and_after_shifts_are_the_means_between_them():
    series = noise(4, 60)
    series[1, 30:] += 0.2
    series[2, 20:40] += 0.3
    levels = fit_levels(series, RATE)
    assert has_shift(levels).tolist() == [False, True, True, False]
    assert (np.flatnonzero(np.diff(levels[1])) + 1).tolist() == [30]
    assert (np.flatnonzero(np.diff(levels[2])) + 1).tolist() == [20, 40]
    assert levels[2, 30] == pytest.approx(series[2, 20:40].mean())
    assert all(explains(series[row], levels[row]) for row in range(4))
    assert not explains(series[2], levels[1])


def test_missing_steps_have_no_level():
    series = noise(2, 40)
    series[0, 20:] += 0.2
    series[0, [3, 25]] = np.nan
    series[1] = np.nan
    levels = fit_levels(series, RATE)
    assert np.isnan(levels[0]).nonzero()[0].tolist() == [3, 25]
    assert has_shift(levels).tolist() == [True, False]


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [6, 20, 100])
def test_noise_and_drift_have_no_shift(memory, steps):
    found = [has_shift(fit_levels(noise(8, steps, memory, seed), RATE)).any() for seed in range(50)]
    assert not any(found)


def test_one_long_step_is_no_level():
    series = noise(4, 40)
    series[2, 20] += 0.5
    assert not has_shift(fit_levels(series, RATE)).any()


def test_series_without_noise_or_steps_have_no_shift():
    assert not has_shift(fit_levels(np.zeros((3, 10)), RATE)).any()
    assert fit_levels(np.zeros((3, 0)), RATE).shape == (3, 0)
    assert not has_shift(fit_levels(np.zeros((0, 5)), RATE)).any()
