"""Figures of a selection against a plain computation with sets of nanoseconds."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from running_server import run_of
from stagescope.viewer.analysis_data import gather_extras
from stagescope.viewer.span_data import viewer_spans
from stagescope.viewer.tiles import statistics
from stagescope.viewer.tiles.levels import Part
from stagescope.viewer.tiles.statistics import select_statistics
from synthetic import Shape, pipeline_timeline

TIMELINE = pipeline_timeline(Shape(ranks=4, microbatches=6, steps=3))
UNIT_NS = 1000


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_of(TIMELINE, tmp_path_factory.mktemp("figures") / "run", gather_extras(TIMELINE))


@pytest.fixture(scope="module")
def spans():
    found = viewer_spans(TIMELINE.spans, range(4))
    return found.with_columns(pl.col("start") - found["start"].min())


def union_ns(intervals):
    total, reach = 0, None
    for start, end in sorted(intervals):
        begin = start if reach is None else max(start, reach)
        if end > begin:
            total += end - begin
        reach = end if reach is None else max(reach, end)
    return total


def selected_plainly(spans, start, end, rows):
    found = {"count": 0, "sum": 0, "busy": 0, "wait": 0, "kinds": {}}
    for row in rows:
        busy, waits = [], []
        for span in spans.filter(row=row).iter_rows(named=True):
            first, last = max(span["start"], start), min(span["start"] + span["duration"], end)
            if span["wait"] is not None:
                begin = span["start"] + span["wait"]
                waits.append((max(begin, start), min(begin + span["wait_duration"], end)))
            if span["start"] >= end or span["start"] + span["duration"] <= start:
                continue
            count, total = found["kinds"].get(span["kind"], (0, 0))
            found["kinds"][span["kind"]] = (count + 1, total + last - first)
            if span["lane"] == 0:
                busy.append((first, last))
        found["busy"] += union_ns(busy)
        found["wait"] += union_ns(waits)
    return found


@given(
    st.integers(-5_000_000, 60_000_000), st.integers(1, 60_000_000), st.sets(st.integers(0, 3), min_size=1)
)
@settings(max_examples=30, deadline=None)
def test_statistics_equal_a_plain_loop(run, spans, start, length, rows):
    part = Part(start, start + length, np.array(sorted(rows)))
    found, wanted = select_statistics(run.levels, part), selected_plainly(spans, start, start + length, rows)
    assert {one["kind"]: (one["count"], one["sum_ns"]) for one in found["kinds"]} == wanted["kinds"]
    assert found["busy_ns"] == wanted["busy"]
    assert found["wait_ns"] == wanted["wait"]
    assert found["idle_ns"] == len(rows) * length - wanted["busy"]
    assert found["span_count"] == sum(count for count, _ in wanted["kinds"].values())
    assert found["sum_ns"] == sum(total for _, total in wanted["kinds"].values())


def test_reading_rows_in_groups_gives_the_same_result(run, monkeypatch):
    part = Part(0, run.levels.shape.end + 1, np.arange(4))
    whole = select_statistics(run.levels, part, run.idle)
    monkeypatch.setattr(statistics, "ROWS_AT_ONCE_SPANS", 1)
    assert select_statistics(run.levels, part, run.idle) == whole


def test_waits_are_the_idle_intervals_clipped_to_the_selection(run):
    start, end = 5_000_000, 25_000_000
    found = select_statistics(run.levels, Part(start, end, np.array([1, 2])), run.idle)["waits"]
    wanted = {}
    for row, begin, duration, cause in run.idle.select("row", "start", "duration", "waiting_for").iter_rows():
        inside = min(begin + duration, end) - max(begin, start)
        if row in (1, 2) and inside > 0:
            wanted[cause] = wanted.get(cause, 0) + inside
    assert {one["waiting_for"]: one["sum_ns"] for one in found} == wanted
    assert [one["sum_ns"] for one in found] == sorted(wanted.values(), reverse=True)
    assert len(wanted) > 1


def test_sums_beyond_what_a_double_holds_are_exact(tmp_path):
    long = TIMELINE.spans.head(3).with_columns(
        rank=pl.lit(0, pl.Int32), start_ns=pl.lit(0, pl.Int64), end_ns=pl.lit(2**55 + 1, pl.Int64),
        kind=pl.lit("forward").cast(TIMELINE.spans.schema["kind"]),
        lane=pl.lit("compute").cast(TIMELINE.spans.schema["lane"]),
    )  # fmt: skip
    run = run_of(TIMELINE.with_spans(long), tmp_path / "run")
    found = select_statistics(run.levels, Part(0, 2**56, np.array([0])))
    assert (found["sum_ns"], found["busy_ns"]) == (3 * (2**55 + 1), 2**55 + 1)
