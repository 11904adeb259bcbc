"""What the delays of one pair show about changes of its rate."""

import numpy as np
import pytest

from evidence_rows import evidence_from_rows
from stagescope.clocks.rate_changes import rate_changes

SECOND_NS = 1e9


def messages(ahead_ns, each=300, length_ns=10 * SECOND_NS):
    rng = np.random.default_rng(5)
    rows = [
        (source, 1 - source, sent_ns, 20_000 + rng.exponential(40_000) + sign * ahead_ns(sent_ns))
        for source, sign in ((0, 1), (1, -1))
        for sent_ns in np.sort(rng.uniform(0, length_ns, each))
    ]
    return evidence_from_rows(rows)


def test_a_constant_rate_has_one_stretch_and_no_corner():
    changes, stretches, corners = rate_changes(messages(lambda at_ns: 2e-5 * at_ns), 2)
    assert (changes, corners, len(stretches)) == ([], [], 1)
    assert stretches[0].rate == pytest.approx(2e-5, abs=2e-6)


def test_a_change_of_the_rate_is_located():
    changes, stretches, _ = rate_changes(messages(lambda at_ns: 4e-4 * max(0.0, at_ns - 4.3 * SECOND_NS)), 2)
    (change,) = changes
    assert change.at_ns == pytest.approx(4.3 * SECOND_NS, abs=0.1 * SECOND_NS)
    assert change.rates == pytest.approx((0.0, 4e-4), abs=1e-5)
    assert len(stretches) == 2


def test_a_clock_that_was_set_is_a_corner_but_no_change_of_the_rate():
    changes, _, corners = rate_changes(messages(lambda at_ns: 300_000.0 * (at_ns > 6 * SECOND_NS)), 2)
    assert changes == []
    assert corners
    assert all(each.from_ns < 6 * SECOND_NS < each.to_ns for each in corners)
