import numpy as np
import pytest

from evidence_rows import evidence_from_rows, there_and_back
from stagescope.clocks.grid import Adjustment, grid_of
from stagescope.clocks.limits import constraints_of, limits_of
from stagescope.clocks.reference_bounds import reference_limits, unnoticed_adjustments

OUTLIER_FRACTION = 0.01
"""The fraction of unnoticed outliers: of seven consecutive observations, at least three are correct."""


def margins_in(grid, rows, outlier_fraction):
    evidence = evidence_from_rows(rows)
    return reference_limits(
        limits_of(constraints_of(evidence, grid, outlier_fraction), grid), evidence, grid, outlier_fraction
    )


def margins_at_the_ends(rows, clocks, *, outlier_fraction=OUTLIER_FRACTION, unbounded=()):
    """Return how far the reference, clock 0, may have been set forward by the first knot and by the last one."""
    grid = grid_of(np.linspace(0, 9_900, 100), np.where(np.arange(clocks), 1e-6, 0.0), (), unbounded)
    reference_limits = margins_in(grid, rows, outlier_fraction)
    ahead_ns = unnoticed_adjustments(
        reference_limits, grid, np.zeros(clocks, np.int64), np.full((100, clocks), np.inf)
    )[1]
    return ahead_ns[0, 0], ahead_ns[-1, 0]


def until(moment_ns, *, afterwards_ns, every_ns=100):
    """Return observations whose way back takes longer from a moment on, as if clock 0 had been set forward."""
    rows = there_and_back(range(0, 10_000, every_ns), ahead_ns=lambda _: 0, latency_ns=20.0)
    return [
        (*row[:3], afterwards_ns) if row[0] == 1 and row[2] >= moment_ns else row
        for row in rows
        if row[0] == 1 or row[2] < moment_ns
    ]


def test_without_outliers_every_observation_counts():
    assert margins_at_the_ends(until(9_900, afterwards_ns=500.0), 2, outlier_fraction=0.0)[
        1
    ] == pytest.approx(520, abs=2)
    rows = there_and_back(range(0, 10_000, 100), ahead_ns=lambda _: 0, latency_ns=20.0)
    reference_limits = margins_in(grid_of(np.linspace(0, 9_900, 9), np.zeros(2), ()), rows, 0.0)
    assert reference_limits.enclosing is reference_limits.sure


def test_an_adjustment_inside_the_last_block_is_within_the_margin():
    assert margins_at_the_ends(until(9_650, afterwards_ns=500.0), 2)[1] == pytest.approx(560, abs=2)
    # Two long delays may be outliers.
    assert margins_at_the_ends(until(9_750, afterwards_ns=500.0), 2)[1] < 100


def test_near_the_end_the_pair_with_later_observations_determines_the_margin():
    early = there_and_back(range(0, 7_000, 100), ahead_ns=lambda _: 0, latency_ns=20.0)
    late = there_and_back(range(0, 10_000, 2_000), ahead_ns=lambda _: 0, latency_ns=900.0)
    rows = early + [(2 * source, 2 * target, *rest) for source, target, *rest in late]
    first_ns, last_ns = margins_at_the_ends(rows, 3)
    assert first_ns < 100
    assert last_ns == pytest.approx(1_800, abs=20)


def test_observations_in_unbounded_stretches_of_other_clocks_count():
    unbounded = (Adjustment(1, 9_500.0, np.inf, 0.0),)
    assert margins_at_the_ends(until(9_650, afterwards_ns=500.0), 2, unbounded=unbounded)[1] == pytest.approx(
        560, abs=2
    )
