"""Ranks, steps, stages and sizes that no run has are ignored and counted."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from drawing import timeline_from_text
from stagescope.ingest.merge import merge_timelines
from stagescope.model import COUNTERS
from stagescope.model.validate import conform
from stagescope.vocabulary.limits import limit

RUN = timeline_from_text("F0 F1 B0 B1\n. F0 B0 .")


def with_value(column, value):
    values = [value, *RUN.spans[column].to_list()[1:]]
    return RUN.with_spans(RUN.spans.with_columns(pl.Series(column, values, dtype=RUN.spans[column].dtype)))


def notes(timeline):
    return timeline.diagnostics.filter(severity="error").select("code", "rank", "count").rows()


@pytest.mark.parametrize("column", ["step", "stage", "chunk", "microbatch", "pair", "peer", "bytes"])
def test_an_impossible_value_becomes_null_and_is_counted(column):
    bound = limit("microbatch-number" if column == "microbatch" else "ranks")
    values = [-1, -(2**31)] + [2**31 - 1, bound] * (column not in ("step", "pair", "bytes"))
    for value in values:
        found = merge_timelines([with_value(column, value)])
        assert found.spans[column][0] is None
        assert found.spans.drop(column).equals(RUN.spans.drop(column))
        assert notes(found) == [("values.impossible", 0, 1)]
    assert notes(merge_timelines([with_value(column, bound - 1)])) == []


def test_impossible_values_of_counters_are_dropped_and_counted():
    values = [1.0, float("nan"), float("inf"), 2.0**63, -1e300, -5.0]
    rows = {"rank": 0, "name": "resident memory", "time_ns": range(6), "value": values}
    found = merge_timelines([replace(RUN, counters=conform(pl.DataFrame(rows), COUNTERS))])
    assert found.counters["value"].to_list() == [1.0, -5.0]
    assert notes(found) == [("values.impossible", None, 4)]


@pytest.mark.parametrize("rank", [-1, -(2**31), 131_072, 2**31 - 1])
def test_spans_of_an_impossible_rank_are_dropped_and_counted(rank):
    moved = RUN.with_spans(
        RUN.spans.with_columns(rank=pl.when(rank=1).then(rank).otherwise("rank").cast(pl.Int32))
    )
    found = merge_timelines([moved])
    assert found.spans["rank"].unique().to_list() == [0]
    assert rank not in found.ranks["rank"]
    assert notes(found) == [("values.impossible", None, 2)]
