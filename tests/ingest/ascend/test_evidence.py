"""Evidence from the times of transfers, and when order alone may decide."""

import numpy as np
import pytest

from stagescope.ingest.ascend.evidence import Expected, Observed, are_trusted, fit_any, pair_costs
from stagescope.ingest.ascend.transfers import RECEIVE, SEND

MS = 1_000_000.0
NAN = float("nan")


def observed(*start_ms, is_batch=False):
    start_ns = np.array(start_ms) * MS
    count = len(start_ns)
    rows, ones = np.arange(count), np.ones(count)
    return Observed(rows, start_ns, start_ns + 0.1 * MS, start_ns - MS, ones, ones, np.full(count, is_batch))


def expected(*ready_ms, is_open=()):
    ready_ns = np.array(ready_ms) * MS
    rows, action_ns = np.arange(len(ready_ns)), np.full(len(ready_ns), MS)
    needed_ns = ready_ns + 0.3 * MS
    return Expected(rows, ready_ns, needed_ns, needed_ns - MS, action_ns, np.isin(rows, is_open))


def trusted(seen, due, partner, *, end=SEND, clock_offset_ns=None):
    return are_trusted(end, seen, due, np.array(partner), clock_offset_ns).tolist()


def test_a_send_at_the_end_of_its_action_is_evident():
    assert trusted(observed(1, 7), expected(1, 4, 7), [0, 2]) == [True, True]


def test_a_late_send_is_trusted_where_nothing_is_missing_around_it():
    assert trusted(observed(1, 4.5, 7), expected(1, 4, 7), [0, 1, 2]) == [True, True, True]
    assert trusted(observed(1, 4.5), expected(1, 4), [0, 1]) == [True, True]


def test_a_late_send_is_not_trusted_where_one_is_missing():
    assert trusted(observed(1, 4.5, 10), expected(1, 4, 7, 10), [0, 1, 3]) == [True, False, True]
    assert trusted(observed(1, 4.5), expected(1, 4, 7), [0, 1]) == [True, False]


def test_a_message_of_unknown_actions_holds_a_place_in_the_order():
    assert trusted(observed(1, 4.5, 10), expected(1, 4, NAN, 10), [0, 1, 3]) == [True, False, True]


def test_order_is_no_evidence_next_to_a_message_of_unknown_position():
    assert trusted(observed(1, 4.5, 7), expected(1, 4, 7, is_open=[1]), [0, 1, 2]) == [True, False, True]


def test_order_is_no_evidence_for_batches():
    assert trusted(observed(1, 4.5, 7, is_batch=True), expected(1, 4, 7), [0, 1, 2]) == [True, False, True]


def test_simultaneous_messages_need_all_transfers_in_order():
    assert trusted(observed(1, 4, 4, 9), expected(1, 4, 4, 9, 12), [0, 1, 2, 3]) == [True] * 4
    assert trusted(observed(1, 4, 9), expected(1, 4, 4, 9, 12), [0, 1, 3]) == [True, False, True]
    assert trusted(observed(1, 4, 4, 9), expected(1, 4, 4, 9, 12), [0, 0, 1, 3]) == [True, False, False, True]


def test_a_receive_is_evident_by_its_transfer_time():
    due = expected(1, 4, 7)
    assert trusted(observed(1, 7), due, [0, 2], end=RECEIVE, clock_offset_ns=0.0) == [True, True]
    assert trusted(observed(1, 4, 6.8), due, [0, 1, 2], end=RECEIVE, clock_offset_ns=0.0)[:2] == [True, True]


def test_a_receive_is_evident_by_the_action_that_waited_for_it():
    seen = observed(1.2, 7.2)
    assert trusted(seen, expected(1, 4, 7), [0, 2], end=RECEIVE) == [True, True]
    busy = expected(1, 4, 7)._replace(free_ns=expected(1, 4, 7).needed_ns)
    assert trusted(seen, busy, [0, 2], end=RECEIVE) == [False, False]


def test_reports_transfers_that_fit_no_message():
    assert fit_any(SEND, observed(1, 5), expected(1, 4), np.array([0, -1]), None).tolist() == [True, False]
    assert fit_any(SEND, observed(1), expected(), np.array([-1]), None).tolist() == [False]


@pytest.mark.parametrize(("end", "start_ms"), [(SEND, 0.5), (RECEIVE, 1.5)])
def test_impossible_pairs_have_infinite_cost(end, start_ms):
    assert pair_costs(end, observed(start_ms), expected(1), None).tolist() == [np.inf]


def test_an_unknown_time_is_neutral_evidence():
    assert pair_costs(SEND, observed(1), expected(NAN), None).tolist() == [0.3]
