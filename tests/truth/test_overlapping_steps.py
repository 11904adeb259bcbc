"""Causes in schedules whose ranks begin a step while others still end the one before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from truth.cases import Case, Truth
from truth.causes import Place, equal_stages, loading, slow_rank, slow_stages
from truth.confusion import rows_of
from truth.plan import MS, Costs, Shape, make_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from truth.plan import Plan

SHAPE = Shape("zb-v", replicas=2, chunks=2, steps=6)
CAUSES: dict[str, Callable[[Plan], Plan]] = {
    "straggler": lambda base: slow_rank(base, Place(1, 1), 1.2),
    "stage imbalance": lambda base: slow_stages(base, {0: 1.2}),
    "data loading": lambda base: loading(base, per_microbatch_ns=15 * MS, recorded=True),
    "gradient reduction": lambda base: base.with_end(reduce_ns=45 * MS),
    "optimizer": lambda base: base.with_end(optimizer_ns=43 * MS),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_costs_of_causes_are_those_of_iterations_rather_than_of_windows(cause: str) -> None:
    ends = {"gradient reduction": Costs(reduce=0), "optimizer": Costs(optimizer=0)}
    base = make_plan(SHAPE, ends.get(cause, Costs()), seed=3)
    without = equal_stages(base, {0: 1.2}) if cause == "stage imbalance" else base
    case = Case(cause, CAUSES[cause](base), (Truth(cause, "", without),))
    [row] = rows_of([case])
    assert row.found_ns[1] == pytest.approx(row.lost_ns, rel=0.03, abs=MS)


def test_loading_at_the_start_of_a_step_is_not_hidden_by_the_end_of_the_one_before() -> None:
    base = make_plan(SHAPE._replace(replicas=1), Costs(), seed=4)
    case = Case(
        "", loading(base, per_step_ns=15 * MS, recorded=True), (Truth("data loading", "rank 0", base),)
    )
    [row] = rows_of([case])
    assert row.found_ns[1] == pytest.approx(row.lost_ns, rel=0.02)


def test_parts_of_overlapping_steps_sum_to_the_iteration() -> None:
    base = slow_rank(make_plan(SHAPE, Costs(), seed=5), Place(2, 0), 1.3)
    [row] = rows_of([Case("", base, (Truth("straggler", "rank 2", base),))])
    assert sum(filter(None, row.reported.ledger_of_last.values())) == pytest.approx(
        row.iteration_ns, rel=0.01
    )
    assert abs(row.reported.ledger_of_last["unattributed"]) < 0.01 * row.iteration_ns


def test_steps_with_a_barrier_do_not_overlap() -> None:
    base = make_plan(SHAPE, Costs(reduce=45 * MS), seed=6).with_end(barrier=True)
    without = base.with_end(reduce_ns=0)
    [row] = rows_of([Case("", base, (Truth("gradient reduction", "", without),))])
    assert abs(row.reported.ledger_of_last["unattributed"]) < 0.01 * row.iteration_ns
