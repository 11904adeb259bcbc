import numpy as np
import pytest

from evidence_rows import evidence_from_rows, there_and_back
from stagescope.clocks.correction import correction_of
from stagescope.clocks.evidence import Coarse
from stagescope.clocks.groups import shift_groups
from stagescope.clocks.solution import solve

MOMENTS = range(0, 100_000_000, 1_000_000)
DRIFT_NS = 40_000.0


def shifted(rows, clocks, offsets_ns=None):
    """Return the corrections of all clocks after their groups were shifted; `rows` are in coarse time."""
    evidence = evidence_from_rows(rows)
    coarse = Coarse(0, np.array(offsets_ns or [0] * clocks))
    solution = solve(evidence, clocks, 200.0)
    timestamps_ns = np.array([0, 100_000_000])
    pieces = [correction_of(solution, coarse, clock, timestamps_ns) for clock in range(clocks)]
    return shift_groups(pieces, solution, evidence, coarse, DRIFT_NS)


def test_one_way_messages_bound_one_side_and_shift_by_the_least_amount():
    rows = [(0, 1, at, 30_000) for at in MOMENTS]
    pieces = shifted(rows, 2)[1]
    # Consistent without a shift: nothing arrived before it was sent. How far the other clock is behind is unknown.
    assert pieces.offset_ns.tolist() == [0] * len(pieces.offset_ns)
    assert np.isinf(pieces.upper_ns).all()
    assert pieces.lower_ns.tolist() == pytest.approx([-30_000 - DRIFT_NS] * len(pieces.lower_ns), abs=100)


def test_a_group_whose_messages_arrive_before_they_were_sent_is_shifted():
    rows = [(0, 1, at, -5_000_000) for at in MOMENTS]
    pieces = shifted(rows, 2)[1]
    assert pieces.offset_ns[0] == pytest.approx(5_000_000 - DRIFT_NS, abs=100)
    assert np.isinf(pieces.upper_ns).all()
    assert np.isfinite(pieces.lower_ns).all()


def test_a_group_without_messages_to_the_first_is_not_shifted_and_unbounded():
    rows = there_and_back(MOMENTS, ahead_ns=lambda _: 0)
    apart = [(source + 2, target + 2, *rest) for source, target, *rest in rows]
    pieces = shifted(rows + apart, 4, offsets_ns=[0, 0, 77, 99])
    assert np.isfinite(pieces[1].lower_ns).all()
    for clock in (2, 3):
        assert np.isinf(pieces[clock].lower_ns).all()
        assert np.isinf(pieces[clock].upper_ns).all()
    assert pieces[2].offset_ns[0] == 0
    # Within its group, the second clock is aligned to the reference of the group.
    assert pieces[3].offset_ns[0] == pytest.approx(-22, abs=5)


def test_a_few_outliers_among_one_way_messages_do_not_shift_a_group():
    rows = [(0, 1, at, 30_000 - 90_000_000 * (at % 10_000_000 == 0)) for at in MOMENTS]
    pieces = shifted(rows, 2)[1]
    assert pieces.offset_ns.tolist() == [0] * len(pieces.offset_ns)
    assert (pieces.lower_ns <= -30_000).all()


def test_one_way_messages_before_and_after_an_adjustment_give_the_wider_bound():
    rows = [(0, 1, at, 30_000 + 500_000 * (at >= 50_000_000)) for at in MOMENTS]
    pieces = shifted(rows, 2)[1]
    assert pieces.lower_ns[0] == pytest.approx(-530_000 - DRIFT_NS, abs=100)
