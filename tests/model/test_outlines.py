"""The outlines of spans: what other ranks can depend on, without actions and transfers inside of turns."""

from __future__ import annotations

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from stagescope.analysis.graph.actions import find_turns
from stagescope.analysis.iteration.shared_reductions import list_reductions
from stagescope.model.outlines import inner_collectives, outline, with_others
from stagescope.model.pipelines import find_pipelines
from stagescope.model.timeline import Timeline
from stagescope.vocabulary.kinds import ACTION_KINDS
from truth.engine import simulate
from truth.plan import Costs, Shape, make_plan
from truth.spans import timeline_of


@pytest.fixture(scope="module")
def timeline():
    return timeline_of(simulate(make_plan(Shape("zb-v", chunks=2, replicas=2, steps=4), Costs(noise=0.1), 1)))


def test_turns_and_reductions_are_those_of_all_spans(timeline):
    spans = timeline.spans
    pipelines = find_pipelines(spans, timeline.ranks)
    rows = outline(spans)
    assert_frame_equal(find_turns(rows, pipelines), find_turns(spans, pipelines))
    assert_frame_equal(list_reductions(rows), list_reductions(spans))
    assert rows.height < spans.height / 5


def test_all_that_is_no_action_transfer_or_inner_collective_is_kept(timeline):
    beside = ~pl.col("kind").is_in(
        [*ACTION_KINDS, "send_forward", "recv_forward", "send_backward", "recv_backward"]
    )
    assert_frame_equal(outline(timeline.spans).filter(beside), timeline.spans.filter(beside))


def row(kind, start_ns, end_ns, **others):
    lane = "compute" if kind in ACTION_KINDS else "comm"
    place = {"rank": 0, "lane": lane, "kind": kind, "step": 0, "stage": 0, "microbatch": 0}
    return {
        **place,
        "start_ns": start_ns,
        "end_ns": end_ns,
        "wait_start_ns": None,
        "wait_end_ns": None,
        **others,
    }


def spans_of(*rows):
    return Timeline.from_spans(pl.DataFrame(list(rows), infer_schema_length=None)).spans


def test_transfers_and_collectives_that_go_on_after_a_turn_are_kept():
    spans = spans_of(
        row("forward", 0, 10),
        row("send_forward", 10, 12),
        row("collective", 12, 14, microbatch=None, name="all_gather in mesh_dp 0,1 (1)", pair=0),
        row("forward", 14, 20, microbatch=1),
        row("backward", 20, 40),
        row("send_forward", 38, 39, wait_start_ns=40, wait_end_ns=45),
        row("collective", 39, 50, microbatch=None, name="all_gather in mesh_dp 0,1 (1)", pair=1),
        row("forward", 100, 110, stage=2, step=1),
    )
    kept = outline(spans)
    assert kept.select("kind", "start_ns").rows() == [
        ("forward", 0),
        ("backward", 20),
        ("send_forward", 38),
        ("collective", 39),
        ("forward", 100),
    ]
    assert inner_collectives(spans)["start_ns"].to_list() == [12]


def test_spans_without_a_rank_in_a_turn_are_kept():
    spans = spans_of(
        row("send_forward", 0, 10), row("collective", 20, 30, name="all_reduce in 0,1 (1)", pair=0)
    )
    assert_frame_equal(outline(spans), spans)
    assert inner_collectives(spans).is_empty()
    assert outline(spans.clear()).is_empty()


def test_spans_of_others_are_added_in_order_without_transfers(timeline):
    own = timeline.spans.filter(pl.col("rank") < 2)
    others = outline(timeline.spans.filter(pl.col("rank") >= 2))
    every = with_others(own, others)
    assert set(every["rank"]) == set(timeline.spans["rank"])
    assert every.select("rank", "start_ns").rows() == sorted(every.select("rank", "start_ns").rows())
    assert not every["kind"].is_in(["send_forward", "recv_forward"]).any()
    assert with_others(own, None) is own
