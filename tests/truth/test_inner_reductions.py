"""Reductions inside of a step keep neighbors waiting, and are not confused with what else does."""

from __future__ import annotations

import polars as pl
import pytest

import stagescope
from stagescope.vocabulary.causes import CAUSE_COLUMNS
from truth.cases import Case, Truth, reduction_inside
from truth.causes import Place, equal_stages, reducing_inside, slow_rank, slow_stages
from truth.confusion import rows_of
from truth.plan import MS, Costs, Shape, make_plan
from truth.spans import timeline_of

CASES = {
    "gpipe": reduction_inside(7, Shape("gpipe", steps=6), 2),
    "zb-h1": reduction_inside(7, Shape("zb-h1", steps=6), 1, overlap=0.5),
}
"""Schedules that truth/cases.py has no such case of."""


@pytest.mark.parametrize("name", CASES)
def test_slow_reduction_is_found_with_its_stage(name):
    [row] = rows_of([CASES[name]])
    assert row.is_attributed[1], row.found_ns
    assert row.is_named, row.reported.first_sentence
    assert row.reported.changes[0][0].startswith("gradient reduction")


def test_parts_sum_to_the_iteration_and_culprits_and_intervals_are_of_the_rank_that_reduces():
    case = reduction_inside(8, Shape("interleaved", chunks=2, steps=3), 5)
    report = stagescope.analyze(timeline_of(case.run))
    total = report.iterations.select(pl.sum_horizontal("busy_ns", *CAUSE_COLUMNS)).to_series()
    assert (total == report.iterations["iteration_ns"]).all()
    reduction = report.culprits.filter(cause="gradient_reduction").sort("idle_ns", descending=True)
    assert set(reduction.head(8).select("culprit_rank", "victim_rank").rows()) == {
        *((1, victim) for victim in range(4)),
        *((5, victim) for victim in range(4, 8)),
    }
    waits = report.idle.filter(
        pl.col("waiting_for") == "reduction", pl.col("end_ns") - pl.col("start_ns") > 40 * MS
    )
    assert set(waits["cause"]) == {"gradient_reduction"}
    assert set(waits["culprit_rank"]) == {1, 5}
    own = waits.filter(pl.col("waits_for_rank").is_null())
    assert set(own["rank"]) == {1, 5}
    assert (own["rank"] == own["culprit_rank"]).all()
    parts = report.critical_path.filter(part="reduction")
    assert set(parts.filter(pl.col("end_ns") - pl.col("start_ns") > 40 * MS)["from_rank"]) == {1, 5}


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_waiting_for_a_slow_replica_in_a_reduction_is_no_reduction(schedule):
    shape = Shape(schedule, replicas=2, chunks=1 + (schedule != "1f1b"), steps=6)
    base = reducing_inside(make_plan(shape, Costs(), 9), MS)
    case = Case("", slow_rank(base, Place(1, 1), 1.3), (Truth("straggler", "rank 5", base),))
    [row] = rows_of([case])
    assert row.is_attributed[1], row.found_ns
    assert row.is_named, row.reported.first_sentence
    report = stagescope.analyze(timeline_of(case.run))
    last = report.iterations.filter("is_last")["pipeline"]
    assert set(last) == {4}
    waits = report.culprits.filter(cause="data_parallel_wait")
    assert waits.sort("idle_ns")["culprit_rank"][-1] == 5


def test_slow_stage_has_what_the_step_would_save_in_spite_of_its_reductions():
    base = reducing_inside(
        make_plan(Shape("interleaved", replicas=2, chunks=2, steps=6), Costs(), 10), 4 * MS
    )
    plan, even = slow_stages(base, {2: 1.3}), equal_stages(base, {2: 1.3})
    [row] = rows_of([Case("", plan, (Truth("stage imbalance", "stage 2", even),))])
    assert row.found_ns[1] == pytest.approx(row.lost_ns, abs=0.01 * row.iteration_ns)
