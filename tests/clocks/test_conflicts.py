import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evidence_rows import evidence_from_rows, there_and_back
from stagescope.clocks.conflicts import exclusion_ns, find_conflicts, find_outliers, tight, unproven_outliers

BUDGET = np.array([0.0, 200e-6])
MOMENTS = range(0, 1_000_000, 10_000)


def conflicts_of(rows):
    evidence = evidence_from_rows(rows)
    return find_conflicts(evidence, BUDGET), len(evidence)


def test_correct_observations_have_no_conflicts():
    found, _ = conflicts_of(there_and_back(range(0, 10_000, 100), ahead_ns=lambda at_ns: 500 + 1e-4 * at_ns))
    assert len(found) == 0


def test_a_single_outlier_conflicts_with_many_and_is_the_only_one_dropped():
    rows = there_and_back(range(0, 10_000, 100), ahead_ns=lambda _: 500)
    rows[60] = (0, 1, rows[60][2], 100)
    found, count = conflicts_of(rows)
    assert np.flatnonzero(find_outliers(found, count)).tolist() == [60]
    # 20 ns back, 100 - 500 ns out, and negligible drift.
    assert exclusion_ns(found, count)[60] > 379
    assert exclusion_ns(found, count)[0] == 0


def test_a_clock_adjustment_is_not_taken_for_outliers():
    found, count = conflicts_of(
        there_and_back(range(0, 10_000, 100), ahead_ns=lambda at: 300 * (at >= 5_000))
    )
    assert len(found) > 0
    assert not find_outliers(found, count).any()


def seen_by_few(delays_back_ns):
    """Return which observations follow an adjustment near the end, which look like outliers, and which surely are.

    Only the last three messages back could decide as well; if they were correct, they would take 320 ns.
    """
    rows = there_and_back(MOMENTS, ahead_ns=lambda at: -300 * (at >= 950_000))
    rows = [row for row in rows if row[0] == 0 or row[2] < 950_000]
    rows += [(1, 0, 992_000 + 2_000 * number, delay_ns) for number, delay_ns in enumerate(delays_back_ns)]
    evidence = evidence_from_rows(rows)
    conflicts = find_conflicts(evidence, BUDGET)
    false = find_outliers(conflicts, len(evidence))
    saw = (evidence.source == 0) & (evidence.sent_ns >= 950_000)
    return saw, false, false & ~unproven_outliers(evidence, conflicts, false, 2)


def test_observations_contradicted_by_a_few_outliers_at_the_end_may_be_correct():
    saw, false, proved = seen_by_few((200, 320, 190))
    assert np.array_equal(false, saw)
    assert not proved.any()


def test_observations_contradicted_by_more_than_a_few_are_outliers():
    saw, false, proved = seen_by_few((200, 210, 190))
    assert np.array_equal(false, saw)
    assert np.array_equal(proved, saw)


def test_two_later_observations_of_the_same_direction_prove_an_outlier():
    rows = there_and_back(MOMENTS, ahead_ns=lambda _: 0)
    rows[-6] = (0, 1, rows[-6][2], -100)
    rows = [row for row in rows if row[0] == 0 or row[2] < 975_000] + [
        (1, 0, 992_000, 20),
        (1, 0, 994_000, 20),
    ]
    evidence = evidence_from_rows(rows)
    conflicts = find_conflicts(evidence, BUDGET)
    false = find_outliers(conflicts, len(evidence))
    assert false.sum() == 1
    assert not unproven_outliers(evidence, conflicts, false, 2).any()


def test_receives_that_did_not_wait_are_used_only_where_none_waited():
    rows = there_and_back(range(0, 1_000, 100), ahead_ns=lambda _: 0)
    evidence = evidence_from_rows(rows)
    mixed = evidence_from_rows(rows, waited=False)
    assert tight(evidence, 2).all()
    assert tight(mixed, 2).all()
    mixed.waited[0] = True
    assert tight(mixed, 2)[evidence.source == 0].tolist() == [True] + [False] * 9
    assert tight(mixed, 2)[evidence.source == 1].all()


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e4)), min_size=1, max_size=30), st.floats(-1e6, 1e6)
)
def test_correct_clocks_with_any_delays_have_no_conflicts(messages, ahead_ns):
    rows = [
        (number % 2, 1 - number % 2, sent_ns, delay_ns + (ahead_ns if number % 2 == 0 else -ahead_ns))
        for number, (sent_ns, delay_ns) in enumerate(messages)
    ]
    assert len(conflicts_of(rows)[0]) == 0
