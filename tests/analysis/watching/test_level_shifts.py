"""Changes of level in series with noise, drift and outliers. benchmarks/level_shifts.py measures the rates."""

from __future__ import annotations

import numpy as np
import pytest

from stagescope.analysis.watching.level_shifts import HISTORY, LONGEST, SHORTEST, find_shifts, threshold_of

STEPS, LEAST = 160, 0.05


def noise(count=8, memory=0.0, deviation=0.01, seed=3):
    generator = np.random.default_rng(seed)
    found = np.empty((count, STEPS))
    found[:, 0] = generator.standard_normal(count)
    for step in range(1, STEPS):
        found[:, step] = memory * found[:, step - 1] + np.sqrt(1 - memory**2) * generator.standard_normal(
            count
        )
    return deviation * found


def shifts_of(values):
    return find_shifts(values, np.zeros(len(values), np.int64), np.full(len(values), LEAST))


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9])
def test_a_lasting_change_is_found_in_its_row_with_its_first_step_and_size(memory):
    values = noise(memory=memory)
    values[5, -7:] += 0.1
    (shift,) = shifts_of(values)
    assert (shift.row, shift.length) == (5, 7)
    assert shift.size == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize("length", range(1, SHORTEST))
def test_a_few_long_steps_are_no_change(length):
    values = noise()
    values[5, -length:] += 1.0
    assert shifts_of(values) == []


def test_outliers_steady_drift_and_missing_values_are_no_changes():
    values = noise()
    values[0, ::9] += 0.5
    values[1] += np.linspace(0, 0.3, STEPS)
    values[2, -LONGEST - 20 :] = np.nan
    values[3] = np.nan
    assert shifts_of(values) == []


def test_a_small_or_a_downward_change_is_none_to_alarm_about():
    values = noise(deviation=0.001)
    values[4, -8:] += 0.5 * LEAST
    values[5, -8:] -= 0.2
    assert shifts_of(values) == []


def test_drift_with_independent_noise_on_top_is_no_change():
    """Neighboring steps of such a series look like noise that is soon forgotten, distant ones do not."""
    generator = np.random.default_rng(1)
    count, steps, memory = 40, 1500, 0.98
    drift = np.empty((count, steps))
    drift[:, 0] = generator.standard_normal(count)
    innovations = generator.standard_normal((count, steps))
    for step in range(1, steps):
        drift[:, step] = memory * drift[:, step - 1] + np.sqrt(1 - memory**2) * innovations[:, step]
    values = 0.05 * drift + 0.02 * generator.standard_normal((count, steps))
    for row, last in ((2, 335), (2, 340), (9, 446), (9, 460), (21, 660)):  # found by neighboring steps alone
        assert shifts_of(values[row : row + 1, last - HISTORY : last]) == []


def test_series_without_noise_and_too_short_ones_raise_no_false_alarm():
    assert shifts_of(np.zeros((3, STEPS))) == []
    assert shifts_of(noise()[:, :20]) == []
    assert find_shifts(np.empty((0, STEPS)), np.zeros(0, np.int64), np.zeros(0)) == []


def test_more_series_and_less_known_noise_need_larger_changes():
    known = np.array([30.0, 200.0])
    few, many = threshold_of(known, 10), threshold_of(known, 10_000)
    assert (many > few).all()
    assert few[0] > few[1] > 4
