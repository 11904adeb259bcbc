"""The Timeline made from a spans table alone, and its immutability."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import polars as pl
import pytest
from tests.planted_clocks import Plan, plant

from stagescope.clocks import align_clocks
from stagescope.model import SPANS, Timeline, empty_timeline
from stagescope.vocabulary.errors import TableError

SPANS_OF_TWO_RANKS = pl.DataFrame(
    {
        "start_ns": [30, 10, 40],
        "end_ns": [35, 20, 60],
        "rank": [1, 0, 0],
        "kind": ["forward", "forward", "backward"],
        "lane": ["compute"] * 3,
        "color": ["red"] * 3,
    }
)


def test_spans_alone_imply_ranks_and_steps():
    timeline = Timeline.from_spans(SPANS_OF_TWO_RANKS.with_columns(step=pl.Series([4, 3, 4])))
    assert timeline.spans.columns == SPANS.names
    assert timeline.spans["start_ns"].to_list() == [10, 40, 30]
    assert timeline.ranks["rank"].to_list() == [0, 1]
    assert timeline.steps.rows() == [(3, 0, 10, 20), (4, 0, 40, 60), (4, 1, 30, 35)]
    assert timeline.diagnostics.is_empty()


def test_spans_without_any_step_belong_to_step_0_and_a_diagnostic_records_it():
    timeline = Timeline.from_spans(SPANS_OF_TWO_RANKS)
    assert timeline.steps.rows() == [(0, 0, 10, 60), (0, 1, 30, 35)]
    assert timeline.diagnostics["code"].to_list() == ["steps.assumed"]


def test_spans_that_name_some_steps_keep_the_others_outside_of_steps():
    timeline = Timeline.from_spans(SPANS_OF_TWO_RANKS.with_columns(step=pl.Series([None, 3, None])))
    assert timeline.spans["step"].to_list() == [3, None, None]
    assert timeline.steps.rows() == [(3, 0, 10, 20)]


def test_given_ranks_are_completed_with_what_the_spans_imply():
    spans = SPANS_OF_TWO_RANKS.with_columns(pp=pl.col("rank"), dp=pl.lit(0))
    ranks = pl.DataFrame({"rank": [0, 5], "machine": ["a", "b"], "pp": [None, 7]})
    timeline = Timeline.from_spans(spans, ranks=ranks)
    assert timeline.ranks.select("rank", "machine", "pp", "dp").rows() == [
        (0, "a", 0, 0), (1, None, 1, 0), (5, "b", 7, None),
    ]  # fmt: skip
    with pytest.raises(TableError, match="rank 1 has several values of pp: 3, 1"):
        Timeline.from_spans(spans, ranks=pl.DataFrame({"rank": [1], "pp": [3]}))


def test_given_steps_are_kept():
    steps = pl.DataFrame({"step": [0], "rank": [0], "start_ns": [1], "end_ns": [99]})
    assert Timeline.from_spans(SPANS_OF_TWO_RANKS, steps=steps).steps.rows() == [(0, 0, 1, 99)]


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        (SPANS_OF_TWO_RANKS.drop("kind", "lane"), "table spans lacks the column(s) lane, kind"),
        (SPANS_OF_TWO_RANKS.clear(), "table spans has no rows"),
        (SPANS_OF_TWO_RANKS.with_columns(rank=pl.lit("a")), "column rank: expected Int32, found 'a'"),
        (
            SPANS_OF_TWO_RANKS.with_columns(end_ns=pl.lit(None)),
            "column end_ns: expected Int64 in ns, found None",
        ),
    ],
)
def test_an_invalid_spans_table_is_a_table_error(spans: pl.DataFrame, message: str):
    with pytest.raises(TableError) as caught:
        Timeline.from_spans(spans)
    assert message in str(caught.value)


def test_only_an_aligned_timeline_has_an_alignment():
    assert empty_timeline().alignment is None
    planted = plant(Plan(ranks=2, microbatches=2, steps=1))
    assert planted.timeline.alignment is None
    aligned = align_clocks(planted.timeline)
    assert aligned.timeline.alignment is aligned.clocks
    assert aligned.timeline.with_diagnostics([]).alignment is aligned.clocks


def test_a_timeline_cannot_be_changed_in_place():
    timeline = empty_timeline()
    with pytest.raises(FrozenInstanceError):
        timeline.spans = timeline.spans  # type: ignore[misc]
    assert replace(timeline, alignment=None) is not timeline
