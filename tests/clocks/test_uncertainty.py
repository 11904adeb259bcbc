"""The estimated error, and estimates that need one direction or collectives, on runs with planted clocks."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from planted_clocks import ClockStep, Plan, plant, uncovered
from stagescope.clocks import align_clocks
from stagescope.clocks.estimate import Fit
from stagescope.clocks.grid import Adjustment, grid_of, slewed_stretches
from stagescope.clocks.uncertainty import birge_ratios, deviation_of_references, offset_errors
from stagescope.clocks.windows import Windows

FAST = (1.0, 1.0, 0.1, 0.02)
"""The last two stages are so fast that gradients wait for their receivers: no backward receive ever waits."""

PLANS = {
    "base": Plan(),
    "collectives": Plan(collectives=2),
    "one collective a step": Plan(collectives=1),
    "one-sided": Plan(costs=FAST),
    "one-sided, one collective a step": Plan(costs=FAST, collectives=1),
    "one-sided, collectives": Plan(costs=FAST, collectives=2),
    "one-sided, two machines": Plan(ranks=2, costs=(1.0, 0.02)),
    "one-sided, two machines, collectives": Plan(ranks=2, costs=(1.0, 0.02), collectives=2),
    "wander": Plan(wander_ppm=5.0, collectives=2),
    "three steps": Plan(steps=3, collectives=2),
    "outliers": Plan(corrupt=0.05, collectives=2),
    "eight machines": Plan(ranks=8, collectives=2, drift_ppm=50.0),
    "a clock set": Plan(collectives=2, clock_steps=(ClockStep(2, 0.5, 300_000),)),
}
AROUND_NS = 300_000_000


def errors_of(plan):
    """Return the error and the estimated error of all timestamps with an estimate, far from clock adjustments."""
    planted = plant(plan)
    aligned = align_clocks(planted.timeline)
    assert uncovered(planted, aligned.timeline).is_empty()
    errors = planted.errors_ns(aligned.timeline).sort("at_ns")
    first_ns, last_ns = planted.truth["start_ns"].min(), planted.truth["end_ns"].max()
    for step in plan.clock_steps:
        moment_ns = first_ns + step.fraction * (last_ns - first_ns)
        errors = errors.filter((pl.col("at_ns") - moment_ns).abs() > AROUND_NS)
    pieces = aligned.timeline.clocks.select("clock", "estimated_error_ns", piece_ns="start_ns").sort(
        "piece_ns"
    )
    found = errors.join_asof(pieces, left_on="at_ns", right_on="piece_ns", by="clock", check_sortedness=False)
    return found.select("clock", pl.col("error_ns").abs(), "estimated_error_ns").drop_nulls(), aligned


def but_exhaustive(names):
    """Return all plans, of which only these are part of the usual tests."""
    return [name if name in names else pytest.param(name, marks=pytest.mark.exhaustive) for name in PLANS]


@pytest.mark.parametrize(
    "name", but_exhaustive(["base", "one-sided", "one-sided, collectives", "three steps"])
)
def test_the_estimated_error_covers_the_error(name):
    errors, aligned = errors_of(replace(PLANS[name], seed=4_100))
    covered = (errors["error_ns"] <= errors["estimated_error_ns"]).mean()
    assert covered >= 0.97
    assert 0 < aligned.clocks.estimated_error_ns <= aligned.clocks.worst_error_ns


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PLANS)
def test_the_estimated_error_covers_99_percent_of_all_errors(name):
    found = pl.concat([errors_of(replace(PLANS[name], seed=7_000 + seed))[0] for seed in range(20)])
    assert (found["error_ns"] <= found["estimated_error_ns"]).mean() >= 0.97


@pytest.mark.parametrize(
    ("name", "limit_us"),
    [
        ("one-sided", 60),
        ("one-sided, one collective a step", 60),
        pytest.param("one-sided, collectives", 30, marks=pytest.mark.exhaustive),
        ("one-sided, two machines, collectives", 30),
    ],
)
def test_a_pair_with_one_tight_direction_follows_its_rate(name, limit_us):
    errors, _ = errors_of(replace(PLANS[name], seed=5_200))
    assert errors["error_ns"].max() <= 1e3 * limit_us


def test_collectives_bound_what_messages_bound_on_one_side_only():
    messages = align_clocks(plant(replace(PLANS["one-sided"], seed=3)).timeline).clocks
    both = align_clocks(plant(replace(PLANS["one-sided, collectives"], seed=3)).timeline).clocks
    assert messages.worst_error_ns > 10_000_000
    assert both.worst_error_ns < 1_500_000


def test_an_unknown_latency_is_part_of_the_estimated_error():
    # With a single pair, and delays that are short one way only, nothing shows how long the shortest delay is.
    _, aligned = errors_of(replace(PLANS["one-sided, two machines"], seed=3))
    assert aligned.clocks.estimated_error_ns > 1_000_000


def test_a_clock_that_is_adjusted_repeatedly_in_one_direction_was_probably_slewed():
    def adjusted(clock, moments, size_ns):
        return [Adjustment(clock, at_ns - 1e6, at_ns + 1e6, size_ns) for at_ns in moments]

    knots_ns = np.linspace(0.0, 20e9, 200)
    adjustments = (
        *adjusted(2, (5e9, 7e9, 9e9), 2e5),
        *adjusted(1, (5e9, 9e9), -3e5),
        *adjusted(1, (7e9,), 3e5),
    )
    grid = grid_of(knots_ns, np.full(3, 2e-4), adjustments)
    assert slewed_stretches(grid, (2,)) == [(2.999e9, 9.001e9), (4.999e9, 11.001e9)]
    assert slewed_stretches(grid, (1,)) == []


def test_a_clock_that_nothing_connects_to_a_reference_has_no_error():
    windows = Windows(
        one=np.array([0, 2]),
        other=np.array([1, 3]),
        at_ns=np.zeros(2),
        change_ns=np.zeros(2),
        weight=np.array([1e-6, 1e-6]),
        constant=np.array([0, 1]),
        constant_ns=np.array([1.0, 1.0]),
    )
    found_ns = offset_errors(windows, np.array([True, False, False, False]))
    assert found_ns == pytest.approx([0.0, np.hypot(1.0, 1e3), np.nan, np.nan], nan_ok=True)


def test_no_error_is_estimated_where_a_side_is_not_bounded():
    machines = align_clocks(plant(Plan(one_way_links=((1, 2),), steps=4)).timeline).clocks
    assert [machine.estimated_error_ns is None for machine in machines.machines] == [True, False, True, True]
    assert machines.estimated_error_ns is not None
    apart = align_clocks(plant(Plan(missing_links=((1, 2),), steps=4)).timeline).clocks
    assert [machine.estimated_error_ns is None for machine in apart.machines] == [True, False, True, True]


def deviation_ns(gained_ns, slewed=()):
    """Return how far a reference may deviate before and after all other clocks gained this on it."""
    times_ns = np.linspace(0.0, 10e9, 41)
    passed = np.clip(times_ns - 4e9, 0.0, 1e9) / 1e9
    drift = np.array([0.0, 2e-5, -1e-5])
    smooth_ns = times_ns[:, None] * drift + passed[:, None] * np.array([0.0, *gained_ns])
    grid = grid_of(np.array([1e9, 9e9]), np.full(3, 2e-4), ())
    fitted, reference = Fit(times_ns, smooth_ns, np.zeros(0)), np.zeros(3, np.int64)
    error_ns = np.full((2, 3), 1_000.0)
    return deviation_of_references(fitted, error_ns, grid, reference, np.array(slewed, np.int64))[:, 1]


@pytest.mark.parametrize(
    ("gained_ns", "expected_ns"),
    [((9e4, 9e4), 9e4 + 3_600), ((9e4, 0.0), 0.0), ((9e4, 5e4), 5e4), ((9e4, -9e4), 0.0)],
)
def test_a_reference_deviates_by_what_all_other_clocks_may_have_in_common(gained_ns, expected_ns):
    assert deviation_ns(gained_ns) == pytest.approx([3_600.0, expected_ns], abs=1.0)


def test_a_clock_whose_slew_was_removed_does_not_show_that_its_reference_was_steady():
    # A part of what the reference did was removed with it.
    assert deviation_ns((9e4, 0.0), slewed=(2,)) == pytest.approx([3_600.0, 9e4 + 3_600], abs=1.0)
    assert deviation_ns((9e4, 0.0), slewed=(1, 2)) == pytest.approx([3_600.0, 0.0], abs=1.0)


def test_the_errors_of_a_pair_are_as_large_as_its_residuals_show():
    pair = np.repeat([0, 1, 2], [5, 5, 2])
    size_ns = np.where(pair == 0, 300.0, 1_000.0)
    windows = Windows(
        one=np.zeros(12, np.int64),
        other=pair + 1,
        at_ns=np.arange(12.0),
        change_ns=size_ns * np.tile([1.0, -1.0], 6),
        weight=np.full(12, 1 / 500.0**2),
        constant=pair,
        constant_ns=np.ones(3),
    )
    assert birge_ratios(windows, 3) == pytest.approx([1.0, 2 * np.sqrt(5 / 4), 1.0])
