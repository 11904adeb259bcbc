import numpy as np
import pytest

from evidence_rows import evidence_from_rows, there_and_back
from stagescope.clocks.bounds import bound
from stagescope.clocks.grid import Adjustment, grid_of
from stagescope.clocks.limits import constraints_of, limits_of
from stagescope.clocks.reference_bounds import reference_limits

MOMENTS = range(0, 10_000, 100)


def bounds_of(rows, clocks, *, adjustments=()):
    grid = grid_of(np.linspace(0, 9_900, 12), np.where(np.arange(clocks), 1e-4, 0.0), adjustments)
    reference = np.zeros(clocks, np.int64)
    evidence = evidence_from_rows(rows)
    limits = limits_of(constraints_of(evidence, grid, 0.0), grid)
    return bound(limits, grid, reference, reference_limits(limits, evidence, grid, 0.0))


def test_an_offset_is_bounded_by_the_delays_of_both_directions():
    bounds = bounds_of(there_and_back(MOMENTS, ahead_ns=lambda _: 500, latency_ns=20.0), 2)
    # The correction is -500 within 20 ns, plus the 40 ns by which the reference may have been set without being
    # noticed.
    assert bounds.lower_ns[6, 1] == pytest.approx(-500 - 20 - 40, abs=2)
    assert bounds.upper_ns[6, 1] == pytest.approx(-500 + 20 + 40, abs=2)
    assert not bounds.contradictory.any()


def test_an_unnoticed_adjustment_of_the_reference_is_within_the_bounds():
    # All messages take 20 ns as long as the reference goes right; set ahead by 39, one way seems to take 59, one -19.
    rows = there_and_back(MOMENTS, ahead_ns=lambda at_ns: 19.5 - 39 * (at_ns >= 5_000), latency_ns=20.0)
    bounds = bounds_of(rows, 2)
    assert not bounds.contradictory.any()
    # Of the two clocks either may be the one: what has to be added to the reference in the end is 0 or -39.
    assert bounds.lower_ns[-1, 0] <= -39
    assert bounds.upper_ns[-1, 0] >= 0
    # To the other it is -19.5 or, if it was not the reference, 19.5.
    assert bounds.lower_ns[-1, 1] <= -19.5
    assert bounds.upper_ns[-1, 1] >= 19.5


def test_each_hop_adds_its_own_margin():
    rows = there_and_back(MOMENTS, ahead_ns=lambda _: 0)
    chain = rows + [(source + 1, target + 1, *rest) for source, target, *rest in rows]
    upper_ns = bounds_of(chain, 3).upper_ns[6]
    assert np.diff(upper_ns).tolist() == pytest.approx([20, 20], abs=2)


def test_the_bound_of_the_reference_is_the_smallest_margin_of_its_pairs():
    wide = there_and_back(MOMENTS, ahead_ns=lambda _: 0, latency_ns=90.0)
    narrow = [
        (2 * source, 2 * target, *rest)
        for source, target, *rest in there_and_back(MOMENTS, ahead_ns=lambda _: 0)
    ]
    assert bounds_of(wide, 2).upper_ns[6, 0] == pytest.approx(180, abs=2)
    assert bounds_of(wide + narrow, 3).upper_ns[6, 0] == pytest.approx(40, abs=2)


def test_an_adjustment_of_the_reference_is_measured_by_the_other_clocks():
    rows = there_and_back(MOMENTS, ahead_ns=lambda at_ns: -300 * (at_ns >= 5_000), latency_ns=20.0)
    bounds = bounds_of(rows, 2, adjustments=(Adjustment(0, 4_950.0, 5_050.0, 300.0),))
    assert bounds.lower_ns[0, 0] <= 0 <= bounds.upper_ns[0, 0]
    # The reference was set forward by 300, so its correction is -300 from then on; the other clock keeps running.
    assert bounds.lower_ns[-1, 0] <= -300 <= bounds.upper_ns[-1, 0]
    assert bounds.lower_ns[-1, 1] <= 0 <= bounds.upper_ns[-1, 1]
    # The size is known to the margin of the pair, 40 ns, on either side; an unnoticed adjustment next to it adds
    # another 40, and one after the last messages of one direction 40 more on one side.
    assert bounds.upper_ns[-1, 0] - bounds.lower_ns[-1, 0] == pytest.approx(200, abs=4)


def test_the_bound_of_the_reference_is_tighter_before_the_moment_with_the_largest_margin():
    # At the end all messages take 500 ns, so an adjustment there may be larger than one at the beginning.
    rows = there_and_back(range(0, 9_000, 100), ahead_ns=lambda _: 0, latency_ns=20.0)
    rows += there_and_back(range(9_000, 10_000, 100), ahead_ns=lambda _: 0, latency_ns=500.0)
    bounds = bounds_of(rows, 2)
    assert bounds.upper_ns[3, 0] == pytest.approx(40, abs=4)
    assert bounds.upper_ns[-1, 0] == pytest.approx(520, abs=4)


def test_after_the_last_messages_the_bound_of_the_reference_is_wider_by_a_margin():
    rows = there_and_back(range(0, 5_000, 100), ahead_ns=lambda _: 0, latency_ns=20.0)
    rows += [(0, 1, at_ns, 20.0) for at_ns in range(5_000, 10_000, 100)]
    lower_ns = bounds_of(rows, 2).lower_ns[:, 0]
    assert lower_ns[3] == pytest.approx(-40, abs=4)
    assert lower_ns[-1] == pytest.approx(-80, abs=4)


def test_the_bounds_hold_for_both_candidates_of_an_adjustment():
    rows = there_and_back(MOMENTS, ahead_ns=lambda at_ns: 300 * (at_ns >= 5_000), latency_ns=20.0)
    bounds = bounds_of(rows, 2, adjustments=(Adjustment(1, 4_950.0, 5_050.0, 300.0, may_be_reference=True),))
    assert bounds.upper_ns[0, 0] == pytest.approx(40, abs=4)
    # Either machine 1 was set forward by 300, or the reference was set back by 300.
    for clock, either_ns in ((0, (0, 300)), (1, (-300, 0))):
        assert bounds.lower_ns[-1, clock] <= either_ns[0]
        assert bounds.upper_ns[-1, clock] >= either_ns[1]


def test_contradictory_cycles_are_detected():
    rows = (
        [(0, 1, at, -50) for at in MOMENTS]
        + [(1, 2, at, 10) for at in MOMENTS]
        + [(2, 0, at, 10) for at in MOMENTS]
    )
    assert bounds_of(rows, 3).contradictory.any()
