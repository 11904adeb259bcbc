"""The span tables of simulated runs are complete and consistent with the simulation."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

import stagescope
from truth.causes import loading
from truth.engine import simulate
from truth.orders import SCHEDULES
from truth.plan import MS, Costs, Shape, make_plan
from truth.spans import spans_of, timeline_of

CHUNKS = {"interleaved": 2, "zb-v": 2, "dualpipev": 2}


def run_of(schedule="1f1b", **changes):
    shape = Shape(schedule, replicas=2, microbatches=8, steps=2, chunks=CHUNKS.get(schedule, 1))
    return simulate(loading(make_plan(shape, Costs()), **changes))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_spans_have_every_action_and_message_of_every_step_and_replica(schedule):
    run = run_of(schedule)
    spans, counts = spans_of(run), len(run.program.messages)
    parts = sum(len(entry.parts) for entry in run.program.entries)
    actions = spans.filter(pl.col("microbatch").is_not_null() & (pl.col("lane") == "compute"))
    assert actions.height == parts * 4
    assert actions.select("dp", "step", "kind", "stage", "microbatch").is_unique().all()
    assert (spans["kind"].str.starts_with("send")).sum() == counts * 4
    assert (spans["kind"].str.starts_with("recv")).sum() == counts * 4


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_send_has_its_receive(schedule):
    spans = spans_of(run_of(schedule))
    sends, receives = (
        spans.filter(pl.col("kind").str.starts_with(way)).with_columns(
            forward=pl.col("kind").str.ends_with("forward"), here="rank", there="peer"
        )
        for way in ("send", "recv")
    )
    next_stage = pl.col("stage") + pl.when("forward").then(1).otherwise(-1)
    same = ["step", "microbatch", "forward", "stage", "here", "there"]
    other_end = sends.with_columns(stage=next_stage.cast(pl.Int32), here="there", there="here")
    matched = other_end.join(receives, on=same)
    assert matched.height == sends.height == receives.height
    assert (matched["end_ns_right"] > matched["start_ns"]).all()


def test_iteration_is_the_span_table_from_start_to_start():
    run = run_of()
    first = (
        spans_of(run).filter(lane="compute").group_by("step").agg(pl.min("start_ns")).sort("step")["start_ns"]
    )
    assert first[1] - first[0] == pytest.approx(run.iterations_ns[0], rel=0.01)


def test_timeline_has_the_coordinates_of_all_ranks():
    ranks = timeline_of(run_of()).ranks
    assert ranks.select("rank", "dp", "pp").rows() == [(r, r // 4, r % 4) for r in range(8)]


def test_loading_is_recorded_only_where_asked():
    loads = {"per_microbatch_ns": MS, "per_step_ns": 2 * MS}
    assert not (spans_of(run_of(**loads))["name"] == "data loading").any()
    named = spans_of(run_of(**loads, recorded=True)).filter(name="data loading")
    spent = named.group_by("rank").agg((pl.col("end_ns") - pl.col("start_ns")).sum()).sort("rank")
    assert spent.rows() == [(0, 20 * MS), (4, 20 * MS)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedule_of_a_run_is_recognized(schedule):
    verdict = stagescope.analyze(timeline_of(run_of(schedule))).verdict
    assert verdict.why.startswith(schedule)


def test_transfers_can_be_left_unrecorded():
    run = run_of()
    spans = spans_of(replace(run, plan=replace(run.plan, records_transfers=False)))
    assert not spans["kind"].str.contains("send|recv").any()
