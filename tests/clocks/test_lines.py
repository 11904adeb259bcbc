import numpy as np
import pytest

from stagescope.clocks.lines import Delays, fit_lines, misfit, stretches_of, with_spreads

SECOND_NS = 1e9


def delays(rates_ppm, *, count=400, seed=0, one_way=False):
    """Return delays of 10 s, in which the offset changes at each of these rates for an equal part of the time."""
    rng = np.random.default_rng(seed)
    at_ns = np.sort(rng.uniform(0, 10 * SECOND_NS, count))
    ends_ns = np.linspace(0, 10 * SECOND_NS, len(rates_ppm) + 1)
    gained_ns = np.concatenate([[0.0], np.cumsum(np.diff(ends_ns) * np.array(rates_ppm) * 1e-6)])
    sign = np.where(one_way | (rng.random(count) < 0.5), 1.0, -1.0)
    delay_ns = 20e3 + rng.exponential(40e3, count) + sign * np.interp(at_ns, ends_ns, gained_ns)
    channel = np.where(sign > 0, 0, 1)
    found = Delays(at_ns, delay_ns, sign, channel, np.ones(count))
    return with_spreads(found, np.zeros(count, np.int64))


@pytest.mark.parametrize("one_way", [False, True])
@pytest.mark.parametrize("rate_ppm", [-50_000.0, 0.0, 30.0])
def test_the_slope_of_the_line_is_the_rate(rate_ppm, one_way):
    own = delays([rate_ppm], one_way=one_way)
    lines = fit_lines(own, np.array([0]), np.array([len(own)]))
    assert 1e6 * lines.rate[0] == pytest.approx(rate_ppm, abs=3)
    heights_ns = lines.level_ns[0, own.channel] + lines.rate[0] * own.sign * (own.at_ns - lines.center_ns[0])
    assert (own.delay_ns >= heights_ns - 1).all()
    assert misfit(own, np.array([0]), np.array([len(own)]), float(lines.rate[0]))[0] == pytest.approx(
        lines.cost[0]
    )


def test_the_spread_is_that_of_exponential_delays():
    assert np.unique(delays([500.0], count=4_000).spread_ns) == pytest.approx([40e3, 40e3], rel=0.3)


def test_delays_are_divided_where_the_rate_changes():
    own = delays([0.0, 500.0, 0.0])
    ends_s = own.at_ns[stretches_of(own)[1:-1]] / SECOND_NS
    assert ends_s == pytest.approx([10 / 3, 20 / 3], abs=0.3)


@pytest.mark.parametrize("seed", range(5))
def test_delays_of_one_rate_are_not_divided(seed):
    own = delays([20.0], seed=seed)
    assert stretches_of(own).tolist() == [0, len(own)]
