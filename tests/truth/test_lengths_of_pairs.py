"""Micro-batches of unequal length in schedules that overlap the actions of two of them."""

from __future__ import annotations

import pytest

from truth.cases import Case, Truth
from truth.causes import unequal_microbatches
from truth.confusion import rows_of
from truth.plan import Costs, Shape, make_plan


@pytest.mark.parametrize("seed", range(2))
def test_a_pair_has_the_lengths_of_both_its_micro_batches(seed: int) -> None:
    base = make_plan(Shape("dualpipev", microbatches=12, chunks=2, steps=6), Costs(), seed)
    case = Case("", unequal_microbatches(base, 0.15, seed), (Truth("data imbalance", "", base),))
    [row] = rows_of([case])
    assert row.found_ns[1] == pytest.approx(row.lost_ns, rel=0.1)
