"""Messages that queue on a slow link although their receiver computes between them."""

from __future__ import annotations

import pytest

from truth.cases import Case, Truth
from truth.causes import slow_link, uniform_latency
from truth.confusion import rows_of
from truth.plan import DOWN, MS, Costs, Shape, make_plan


@pytest.mark.parametrize("ranks", [4, 6])
def test_waits_for_queued_messages_are_exposed_communication(ranks: int) -> None:
    shape = Shape("interleaved", ranks=ranks, replicas=2, microbatches=2 * ranks, chunks=2, steps=6)
    base = uniform_latency(make_plan(shape, Costs(), seed=2), 0)
    case = Case("", slow_link(base, DOWN, 1, 10 * MS), (Truth("exposed communication", "rank 1", base),))
    [row] = rows_of([case])
    assert row.found_ns[1] == pytest.approx(row.lost_ns, rel=0.1)
    assert abs(row.reported.ledger_of_last["unattributed"]) < 0.01 * row.iteration_ns
