"""Timestamps far from everything else of their rank are dropped and counted; nothing else is."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawing import timeline_from_text
from stagescope.ingest.merge import merge_timelines
from stagescope.ingest.plausible_times import DAY_NS, MAX_NS, plausible_interval
from stagescope.model import Timeline
from stagescope.vocabulary.errors import InputError

RUN = timeline_from_text("F0 F1 F2 F3 B0 B1 B2 B3\n. F0 F1 F2 B0 B1 B2 .", cell_ns=1_000_000)
LEAST, MOST = -(2**63), 2**63 - 1
FAR = (LEAST, MOST, MAX_NS, 10**18, -(10**18), 40 * DAY_NS)


def changed(timeline, column, at, value):
    values = timeline.spans[column].to_list()
    values[at] = value
    return timeline.with_spans(timeline.spans.with_columns(pl.Series(column, values, dtype=pl.Int64)))


def implausible(timeline):
    found = timeline.diagnostics.filter(code="timestamps.implausible")
    return found.select("severity", "rank", "count").rows()


@pytest.mark.parametrize("column", ["start_ns", "end_ns"])
def test_a_span_far_from_all_others_is_dropped_and_counted(column):
    for value in FAR:
        found = merge_timelines([changed(RUN, column, 2, value)])
        rest = RUN.spans.with_row_index().filter(pl.col("index") != 2).drop("index")
        assert found.spans.sort("rank", "start_ns").equals(rest.sort("rank", "start_ns"))
        assert implausible(found) == [("error", 0, 1)]


def test_starts_and_ends_of_different_origins_are_refused():
    spans = RUN.spans.with_columns(pl.col("end_ns") + 1_763_600_000_000_000_000)
    with pytest.raises(
        InputError, match=r"the spans of rank 0 last 447 years: .* different units or origins"
    ):
        merge_timelines([RUN.with_spans(spans)])


def test_a_step_with_implausible_times_gets_those_of_its_other_spans():
    damaged = Timeline.from_spans(changed(RUN, "start_ns", 2, LEAST).spans)
    found = merge_timelines([damaged])
    assert damaged.steps["start_ns"].min() == LEAST
    assert found.steps.equals(Timeline.from_spans(RUN.spans).steps)


def test_a_wait_far_from_all_spans_becomes_unknown():
    found = merge_timelines([changed(changed(RUN, "wait_start_ns", 1, 5), "wait_end_ns", 1, MOST)])
    assert found.spans.height == RUN.spans.height
    assert found.spans["wait_end_ns"].null_count() == RUN.spans.height
    assert implausible(found) == [("error", 0, 1)]


@given(
    st.lists(st.integers(0, DAY_NS), min_size=1, max_size=40),
    st.sampled_from([0, 10**18, -(10**17)]),
    st.integers(1, 10**4),
)
def test_ranks_on_clocks_of_their_own_and_long_runs_are_plausible(pauses_ns, offset_ns, gap_days):
    """Neither another origin, nor a long run, nor a pause between two parts of about equal size is suspicious."""
    moments = np.cumsum(np.array(pauses_ns, np.int64)) + offset_ns
    twice = np.concatenate([moments, moments + gap_days * DAY_NS])
    assert plausible_interval(twice) == (twice.min(), twice.max())


@given(st.lists(st.integers(0, 10**12), min_size=10, max_size=40), st.sampled_from(FAR))
def test_one_far_moment_is_outside_of_the_interval(moments, far):
    assert plausible_interval(np.array([*moments, far], np.int64)) == (min(moments), max(moments))


def test_nothing_known_gives_an_empty_interval():
    assert plausible_interval(np.array([], np.int64)) == (0, 0)
    assert plausible_interval(np.array([LEAST, MOST], np.int64)) == (0, 0)
