"""Parameters that FSDP gathers inside of the first forward of a step are exposed communication, and no jitter."""

from __future__ import annotations

import polars as pl
import pytest

import stagescope
from stagescope.analysis import build_explained_report
from stagescope.analysis.graph.actions import find_actions
from truth.causes import Excess, slow_actions
from truth.engine import simulate
from truth.plan import MS, Costs, Shape, make_plan
from truth.spans import spans_of, timeline_of

GATHER_NS = 40 * MS
STAGE = 1


def gather_of(forwards):
    """Return the gathers that begin with these forwards."""
    until = pl.col("start_ns") + GATHER_NS
    name = pl.format("all_gather in mesh_dp {} (1)", "stage")
    return forwards.with_columns(
        kind=pl.lit("collective"), lane=pl.lit("comm"), microbatch=None, name=name, pair="step",
        end_ns=until, wait_start_ns="start_ns", wait_end_ns=until,
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs():
    """Return a run, and the same with gathers in the first forwards of a stage."""
    base = make_plan(Shape(replicas=2, steps=6), Costs(noise=0.0), 0)
    excesses = [
        Excess(step, replica, STAGE, 0, GATHER_NS)
        for step in range(base.shape.steps)
        for replica in range(base.shape.replicas)
    ]
    return simulate(base), simulate(slow_actions(base, excesses))


def test_gathers_inside_of_forwards_are_exposed_communication(runs):
    without, run = runs
    spans = spans_of(run)
    first = spans.filter(pl.col("kind") == "forward", stage=STAGE, microbatch=0)
    gathers = gather_of(first).select(pl.col(name).cast(dtype) for name, dtype in spans.schema.items())
    report = build_explained_report(stagescope.Timeline.from_spans(pl.concat([spans, gathers])))
    base = dict(build_explained_report(timeline_of(without)).losses.select("part", "ns").iter_rows())
    losses = dict(report.losses.select("part", "ns").iter_rows())
    cost_ns = run.iteration_ns - without.iteration_ns
    assert losses["exposed_communication"] - base["exposed_communication"] == pytest.approx(cost_ns, abs=MS)
    assert losses["jitter"] == pytest.approx(base["jitter"], abs=MS)
    assert f"data-parallel collectives inside of actions of stage {STAGE}" in report.verdict.why
    assert report.findings.is_empty()


def test_wait_for_the_last_replica_is_no_communication():
    row = {
        "lane": "compute", "kind": "forward", "step": 0, "stage": 0, "microbatch": 0, "pair": None, "name": None,
        "wait_start_ns": None, "wait_end_ns": None,
    }  # fmt: skip
    call = {
        **row, "lane": "comm", "kind": "collective", "microbatch": None, "pair": 3,
        "name": "all_gather in mesh_dp 0,1 (1)", "end_ns": 90, "wait_end_ns": 90,
    }  # fmt: skip
    rows = [
        {**row, "rank": 0, "start_ns": 0, "end_ns": 100},
        {**call, "rank": 0, "start_ns": 0, "wait_start_ns": 0},
        {**row, "rank": 1, "start_ns": 80, "end_ns": 100},
        {**call, "rank": 1, "start_ns": 80, "wait_start_ns": 80},
    ]
    frame = pl.DataFrame(rows, infer_schema_length=None).with_columns(dp="rank", pp=pl.lit(0))
    actions = find_actions(stagescope.Timeline.from_spans(frame))
    assert actions.inner.replicas_ns.tolist() == [80, 0]
    assert actions.inner.reduction_ns.tolist() == [10, 10]
