from __future__ import annotations

import polars as pl

from stagescope.ingest.ascend.pipeline_info import RAW_ACTIONS
from stagescope.ingest.ascend.plan import LOGITS, Plan
from stagescope.ingest.ascend.plan_matching import FittedPlan
from stagescope.ingest.ascend.spans import spans_of_actions


def actions(*sorts, places=None):
    rows = [
        {"rank": 0, "step": 0, "marker": sort if sort != LOGITS else "backward", "sort": sort, "message": f"mark {at}",
         "start_ns": at, "end_ns": at + 1, "group": 0, "pp": 0}
        for at, sort in enumerate(sorts)
    ]  # fmt: skip
    schema = dict(RAW_ACTIONS) | {"sort": pl.String, "group": pl.Int64, "pp": pl.Int32}
    return pl.DataFrame(rows, schema=schema).with_columns(
        place=pl.Series(places or [None] * len(sorts), dtype=pl.Int32)
    )


def fitted(plan):
    return FittedPlan(plan, plan.rows(), 0, 0)


def test_marks_of_unknown_place_follow_their_names():
    spans = spans_of_actions(actions("forward", "backward", LOGITS, "weight"), fitted(Plan("1f1b", 2, 4)))
    assert spans["kind"].to_list() == ["forward", "backward", "loss", "backward_weight"]
    assert spans.select("stage", "chunk", "microbatch").null_count().row(0) == (4, 4, 4)
    assert spans["name"].to_list() == ["mark 0", "mark 1", "logits", "mark 3"]


def test_a_backward_before_its_weight_gradient_is_an_input_gradient():
    spans = spans_of_actions(actions("backward", "weight", "backward", "forward"), fitted(Plan("1f1b", 2, 4)))
    assert spans["kind"].to_list() == ["backward_input", "backward_weight", "backward", "forward"]


def test_an_overlapped_mark_of_unknown_place_is_a_pair():
    spans = spans_of_actions(actions("overlap", "forward"), fitted(Plan("1f1b", 2, 4)))
    assert spans["kind"].to_list() == ["forward", "backward", "forward"]
    assert spans["pair"].to_list() == [0, 0, None]


def test_a_place_gives_kind_stage_chunk_and_micro_batch():
    plan = Plan("dualpipev", 2, 4, 2)
    row = plan.rows()[0]
    at = next(place for place, planned in enumerate(row) if len(planned.parts) > 1)
    spans = spans_of_actions(actions("overlap", places=[at]), fitted(plan))
    found = spans.select("kind", "stage", "chunk", "microbatch").rows()
    assert found == [tuple(action) for action in row[at].parts]
    assert spans["lane"].unique().to_list() == ["compute"]


def test_counted_numbers_are_kept():
    counted = actions("forward", "backward").with_columns(chunk=pl.lit(0), microbatch=pl.lit(5))
    spans = spans_of_actions(counted)
    assert spans.select("chunk", "stage", "microbatch").rows() == [(0, None, 5)] * 2
