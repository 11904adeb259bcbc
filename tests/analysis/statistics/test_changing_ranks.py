"""Ranks that are slow in some steps, or slower and slower, are found, and nothing else is."""

import numpy as np
import pytest

from planted_runs import Shape, random_times, run
from stagescope.analysis.statistics.changing_ranks import CHANGING_RANKS
from stagescope.analysis.statistics.stragglers import find_stragglers
from stagescope.model import empty_timeline


def changing(times):
    return find_stragglers(run(times)).changing


def named(times):
    return changing(times).select("rank", "finding", "has_peers", "slow_steps").rows()


@pytest.mark.parametrize("pipelines", [2, 3, 4])
def test_rank_that_is_slow_in_some_steps_is_named_with_them(pipelines):
    times = random_times(Shape(pipelines=pipelines, steps=10))
    times.action_ns[:, 1, [1, 5, 8], 2] *= 1.2
    (row,) = changing(times).to_dicts()
    assert (row["rank"], row["finding"], row["has_peers"]) == (6, "intermittent", True)
    assert (row["slow_count"], row["steps"], row["slow_steps"]) == (3, 10, "1, 5, 8")
    assert row["excess_fraction"] == pytest.approx(0.2, abs=0.02)
    assert row["first_fraction"] == pytest.approx(0, abs=0.02)
    assert row["extra_ns_per_step"] == pytest.approx(0.06 * 8 * 30e6, rel=0.15)


@pytest.mark.parametrize("pipelines", [2, 4])
def test_rank_that_becomes_slower_is_named_with_both_ends(pipelines):
    times = random_times(Shape(pipelines=pipelines, steps=20))
    times.action_ns[:, 1, :, 2] *= np.linspace(1, 1.09, 20)[:, None]
    (row,) = changing(times).to_dicts()
    assert (row["rank"], row["finding"], row["slow_steps"]) == (6, "drifting", None)
    assert row["first_fraction"] == pytest.approx(0, abs=0.01)
    assert row["excess_fraction"] == pytest.approx(0.09, abs=0.01)
    assert row["extra_ns_per_step"] == pytest.approx(0.045 * 8 * 30e6, rel=0.15)


def test_rank_that_becomes_as_fast_as_its_peers_is_named():
    times = random_times(Shape(pipelines=2, steps=20))
    times.action_ns[:, 1, :, 2] *= np.linspace(1.09, 1, 20)[:, None]
    (row,) = changing(times).to_dicts()
    assert (row["rank"], row["finding"]) == (6, "drifting")
    assert row["first_fraction"] > 0.07
    assert row["excess_fraction"] < 0.02


def test_without_replicas_a_rank_is_compared_with_its_other_steps():
    times = random_times(Shape(pipelines=1, stages=6, steps=12))
    times.action_ns[:, :, :, 4] *= 1.5  # a stage with more work is none that changes
    times.action_ns[:, :, 3:6, 2] *= 1.2
    assert named(times) == [(2, "intermittent", False, "3-5")]
    times = random_times(Shape(pipelines=1, stages=6, steps=20))
    times.action_ns[:, :, :, 2] *= np.linspace(1, 1.12, 20)[:, None]
    assert named(times) == [(2, "drifting", False, None)]


def test_what_all_ranks_share_is_no_change_of_a_rank():
    times = random_times(Shape(pipelines=1, stages=6, steps=12))
    times.action_ns[:, :, 3:6] *= 1.2
    times.action_ns[:] *= np.linspace(1, 1.2, 12)[:, None, None]
    assert named(times) == []


def test_rank_that_is_slow_in_all_steps_does_not_change():
    times = random_times(Shape(pipelines=3))
    times.action_ns[:, 1, :, 2] *= 1.3
    assert named(times) == []


def test_one_slow_step_is_an_outlier_and_no_intermittent_rank():
    times = random_times(Shape(pipelines=3))
    times.action_ns[:, 1, 7, 2] *= 2
    assert named(times) == []


def test_disturbed_actions_are_no_intermittent_rank():
    times = random_times(Shape(pipelines=2))
    disturbed = np.random.default_rng(5).random(times.action_ns[:, 0, :, 3].shape) < 0.4
    times.action_ns[:, 0, :, 3][disturbed] *= 2
    assert named(times) == []


def test_ranks_that_all_drift_a_little_are_not_named():
    rng = np.random.default_rng(7)
    for _ in range(10):
        times = random_times(Shape(pipelines=3, steps=12), int(rng.integers(1000)))
        level = rng.normal(size=(1, 3, 12, 4, 1))
        for step in range(1, 12):
            level[:, :, step] = 0.9 * level[:, :, step - 1] + 0.19**0.5 * level[:, :, step]
        times.action_ns[:] *= 1 + 0.01 * level
        assert named(times) == []


def test_table_always_has_the_declared_columns():
    for timeline in (empty_timeline(), run(random_times(Shape())), run(random_times(Shape(1, 1, 1, 1)))):
        assert dict(find_stragglers(timeline).changing.schema) == dict(CHANGING_RANKS.schema)
