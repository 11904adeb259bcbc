"""Lengths of micro-batches are recovered where they were planted, and never found in noise."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from planted_runs import Shape, ends_of, random_times, run
from stagescope.analysis import build_explained_report
from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.idle.action_classes import find_action_classes
from stagescope.analysis.idle.microbatch_lengths import Sample, fit_lengths
from stagescope.analysis.idle.usual_costs import find_usual_costs

SHAPE = Shape(pipelines=1, steps=6)


def classes_of(timeline):
    actions = find_actions(timeline)
    duration_ns = (actions.table["end_ns"] - actions.table["start_ns"]).to_numpy()
    return actions.table, find_action_classes(actions, duration_ns)


def with_lengths(shape, seed, spread, weights=(1.0, 1.3)):
    """Return the times of a run whose micro-batches differ, and their lengths by pipeline, step and micro-batch."""
    times = random_times(shape, seed)
    size = (shape.pipelines, shape.steps, shape.microbatches)
    length = np.random.default_rng(seed + 100).normal(0, spread, size)
    for kind, weight in enumerate(weights):
        times.action_ns[kind] *= np.exp(weight * length)[:, :, None, :]
    return times, length


@pytest.mark.parametrize("seed", range(3))
def test_recovers_planted_lengths_within_the_noise(seed):
    times, length = with_lengths(SHAPE, seed, 0.3)
    table, classes = classes_of(run(times))
    forwards = table.with_columns(found=pl.Series(classes.length_of_action)).filter(
        pl.col("kind") == "forward"
    )
    found = np.log(
        forwards.filter(pl.col("stage") == 2).sort("step", "microbatch")["found"].to_numpy().reshape(6, 8)
    )
    planted = length[0] - length[0].mean(axis=1, keepdims=True)
    found -= found.mean(axis=1, keepdims=True)
    assert np.abs(found - planted).max() < 0.06


@pytest.mark.parametrize("seed", range(20))
def test_noise_has_no_lengths(seed):
    _, classes = classes_of(run(random_times(Shape(pipelines=2, steps=5, noise=0.05), seed)))
    assert (classes.length_of_action == 1).all()
    assert classes.table["balanced_ns"].to_list() == classes.table["mean_ns"].to_list()


def test_drift_of_whole_steps_is_no_data_imbalance():
    _, classes = classes_of(run(random_times(Shape(pipelines=3, steps=10, step_noise=0.05))))
    assert (classes.table["balanced_ns"] == classes.table["mean_ns"]).all()


def test_unequal_data_of_replicas_is_balanced():
    times, _ = with_lengths(Shape(pipelines=4, steps=8), 1, 0.4)
    lost = build_explained_report(run(times)).explanation
    straggler, imbalance = (
        abs(lost.ledger.steps[name].mean()) for name in ("straggler_ns", "data_imbalance_ns")
    )
    assert imbalance > 10 * straggler


def test_a_single_rank_shows_no_shared_length():
    value = np.array([0.5, -0.5, 0.5, -0.5])
    rows, cells = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    assert fit_lengths(Sample(value, rows, cells, np.array([0, 0]), 1)) is None


def test_pause_is_jitter_and_not_the_usual_cost_of_its_class():
    duration_ns = np.array([10.0, 11, 9, 10, 1000, 10, 11, 9, 10, 10])
    usual = find_usual_costs(duration_ns, np.array([0] * 5 + [1] * 5), 2)
    assert usual.is_outlier.nonzero()[0].tolist() == [4]
    assert usual.mean_ns.tolist() == [10.0, 10.0]


def test_unequal_lengths_are_not_outliers():
    lengths = np.exp(np.random.default_rng(0).normal(0, 0.43, 32))
    assert not find_usual_costs(lengths, np.zeros(32, dtype=np.int64), 1).is_outlier.any()


def test_of_two_replicas_the_faster_one_is_the_reference():
    times = random_times(Shape(pipelines=2, steps=4))
    times.action_ns[:, 1, :, 2] *= 1.2
    report = build_explained_report(run(times))
    slow = report.ledger.filter(pl.col("pipeline") == 4)
    assert slow["straggler_ns"].mean() == pytest.approx(0.2 * 8 * 30e6, rel=0.15)


def test_of_two_equal_replicas_neither_is_slow():
    report = build_explained_report(run(random_times(Shape(pipelines=2, steps=10, noise=0.03))))
    assert abs(report.ledger["straggler_ns"].mean()) < 0.002 * report.ledger["window_ns"].mean()


def test_long_micro_batch_is_no_outlier_but_a_pause_of_one_rank_is():
    usual = np.full((4, 8), 100.0)
    usual[:, 3] = [300.0, 280.0, 260.0, 310.0]
    usual[1, 6] = 400.0
    of_action, cell = (each.ravel() for each in np.indices(usual.shape))
    found = find_usual_costs(usual.ravel(), of_action, 4, cell).is_outlier
    assert np.flatnonzero(found).tolist() == [8 + 6]
    alone = find_usual_costs(usual.ravel(), of_action, 4).is_outlier
    assert alone.sum() == 5


def test_of_four_replicas_two_of_which_are_slow_the_others_are_the_reference():
    # As both ranks of a tensor-parallel pair are: the mean of the two in the middle would be a reference for neither.
    times = random_times(Shape(pipelines=4, steps=6))
    without_ns = ends_of(times).step_ns.mean()
    times.action_ns[:, :2, :, 1] *= 1.3
    lost = dict(build_explained_report(run(times)).losses.select("part", "ns").iter_rows())
    assert lost["straggler"] == pytest.approx(ends_of(times).step_ns.mean() - without_ns, rel=0.05)
    assert lost["stage_imbalance"] < 0.01 * without_ns


@pytest.mark.parametrize("pipelines", [1, 2])
def test_rank_that_is_slow_in_some_micro_batches_is_no_data_imbalance(pipelines):
    times = random_times(Shape(pipelines=pipelines, steps=16, noise=0.01))
    times.action_ns[:, 0, :, 2, 1::4] *= 1.5
    report = build_explained_report(run(times))
    lost = dict(report.losses.select("part", "fraction").iter_rows())
    assert lost["data_imbalance"] == 0
    assert lost["jitter"] > 0.03
    assert "data imbalance" not in report.verdict.why
    # The costliest action is one of many: the cause is not from it alone.
    assert "in step" not in report.verdict.why
    assert "took 1.5x as long as usual, always on rank 2" in " ".join(report.findings["evidence"])
