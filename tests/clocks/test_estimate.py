import numpy as np
import pytest

from evidence_rows import evidence_from_rows
from stagescope.clocks import condensed
from stagescope.clocks.estimate import fit
from stagescope.clocks.grid import Adjustment, grid_of
from stagescope.clocks.knots import moments_of
from stagescope.clocks.normal_equations import Way

SECOND_NS = 1e9
ANCHORED = np.array([True, False])


def messages(ahead_ns, *, each=400, spreads_ns=(30_000, 60_000), length_ns=10 * SECOND_NS):
    rng = np.random.default_rng(5)
    rows = []
    for source, spread_ns, sign in ((0, spreads_ns[0], 1), (1, spreads_ns[1], -1)):
        for sent_ns in np.sort(rng.uniform(0, length_ns, each)):
            delay_ns = 20_000 + rng.exponential(spread_ns)
            rows.append((source, 1 - source, sent_ns, delay_ns + sign * ahead_ns(sent_ns)))
    return evidence_from_rows(rows)


def corrections(evidence, *, adjustments=(), at_ns=(0.5, 5.0, 9.5)):
    grid = grid_of(np.linspace(0, 10 * SECOND_NS, 20), np.array([0.0, 2e-4]), adjustments)
    moments_ns = np.array(at_ns) * SECOND_NS
    fitted = fit(evidence, grid, ANCHORED, trusted=True)
    return fitted, fitted.at(
        grid, moments_of(fitted.times_ns, len(ANCHORED), np.ones(len(at_ns), np.int64), moments_ns)
    )


def test_recovers_offset_and_drift_with_unequal_spreads():
    _, found_ns = corrections(messages(lambda at_ns: 5_000 + 20e-6 * at_ns))
    assert found_ns.tolist() == pytest.approx([-15_000, -105_000, -195_000], abs=1_500)


def test_recovers_a_varying_drift():
    def ahead_ns(at_ns):
        return 20_000 * np.sin(2 * np.pi * at_ns / (8 * SECOND_NS))

    _, found_ns = corrections(messages(ahead_ns))
    true_ns = [-ahead_ns(at * SECOND_NS) for at in (0.5, 5.0, 9.5)]
    assert found_ns.tolist() == pytest.approx(true_ns, abs=15_000)


def test_recovers_the_size_of_a_clock_adjustment():
    adjustment = Adjustment(1, 4.9 * SECOND_NS, 5.1 * SECOND_NS, 250_000.0)
    fitted, _ = corrections(
        messages(lambda at_ns: 300_000 * (at_ns >= 5 * SECOND_NS)), adjustments=(adjustment,)
    )
    assert fitted.jumps_ns.tolist() == pytest.approx([-300_000], abs=3_000)


def test_half_of_a_path_asymmetry_remains():
    rng = np.random.default_rng(6)
    rows = [
        (source, 1 - source, at_ns, 20_000 + 40_000 * (source == 0) + rng.exponential(5_000))
        for source in (0, 1)
        for at_ns in rng.uniform(0, 10 * SECOND_NS, 300)
    ]
    _, found_ns = corrections(evidence_from_rows(rows))
    assert found_ns.tolist() == pytest.approx([-20_000] * 3, abs=1_000)


def test_without_observations_nothing_is_corrected():
    _, found_ns = corrections(messages(lambda _: 0).where(np.array([], int)))
    assert found_ns.tolist() == [0, 0, 0]


@pytest.mark.parametrize("most_operations", [condensed.MOST_OPERATIONS, 0])
def test_a_ring_of_clocks_is_solved_exactly_where_iterations_do_not_converge(most_operations, monkeypatch):
    monkeypatch.setattr(condensed, "MOST_OPERATIONS", most_operations)
    clocks, per_way = 220, 120
    rng = np.random.default_rng(2)
    true_ns = rng.uniform(-1e6, 1e6, clocks)
    true_ns[0] = 0.0
    rows = []
    for one in range(clocks):
        for source, target in ((one, (one + 1) % clocks), ((one + 1) % clocks, one)):
            sent_ns = np.sort(rng.uniform(0, 10 * SECOND_NS, per_way))
            delay_ns = 20_000 + rng.exponential(20_000, per_way) + true_ns[target] - true_ns[source]
            rows += [
                (source, target, *each) for each in zip(sent_ns.tolist(), delay_ns.tolist(), strict=True)
            ]
    budget = np.full(clocks, 2e-4)
    grid = grid_of(np.linspace(0, 10 * SECOND_NS, 20), budget, ())
    fitted = fit(evidence_from_rows(rows), grid, np.arange(clocks) == 0, trusted=True)
    found_ns = fitted.at(
        grid, moments_of(fitted.times_ns, clocks, np.arange(clocks), np.full(clocks, 5 * SECOND_NS))
    )
    assert fitted.method.way is Way.CONDENSED if most_operations else fitted.method.way > Way.ITERATED
    assert np.abs(found_ns + true_ns).max() < 30_000
