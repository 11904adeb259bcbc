"""Levels on disk against the same computed plainly from the spans."""

import os

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from running_server import run_of
from stagescope.model import SPANS, empty_timeline
from stagescope.model.validate import conform
from stagescope.viewer.span_data import viewer_spans
from stagescope.viewer.tiles import levels as levels_module
from stagescope.viewer.tiles.levels import Part, TooManyError, open_levels
from stagescope.viewer.tiles.records import LANE_COUNT
from synthetic import Shape, pipeline_timeline

TIMELINE = pipeline_timeline(Shape(ranks=5, microbatches=16, steps=6))
KINDS = ("forward", "backward", "optimizer")


@pytest.fixture(scope="module")
def levels(tmp_path_factory):
    return run_of(TIMELINE, tmp_path_factory.mktemp("levels") / "run").levels


@pytest.fixture(scope="module")
def spans():
    found = viewer_spans(TIMELINE.spans, range(5))
    return found.with_columns(pl.col("start") - found["start"].min()).with_row_index("id")


def drawn(rows):
    """Return a timeline of (rank, start, duration, kind)."""
    frame = pl.DataFrame(rows, schema=["rank", "start_ns", "duration", "kind"], orient="row")
    columns = {"end_ns": pl.col("start_ns") + pl.col("duration"), "lane": pl.lit("compute")}
    return empty_timeline().with_spans(conform(frame.with_columns(**columns).drop("duration"), SPANS))


def overlapping(spans, start, end, rows):
    end_ns = pl.col("start") + pl.max_horizontal("duration", 1)
    return spans.filter(pl.col("row").is_in(rows) & (pl.col("start") < end) & (end_ns > start))


@given(st.integers(0, 300_000_000), st.integers(1, 80_000_000), st.sets(st.integers(0, 4), min_size=1))
@settings(max_examples=60, deadline=None)
def test_the_spans_of_a_part_are_those_that_a_plain_filter_finds(levels, spans, start, length, rows):
    part = Part(start, start + length, np.array(sorted(rows)))
    found = levels.spans_in(part)
    wanted = overlapping(spans, start, start + length, sorted(rows))
    assert found.place.tolist() == wanted["id"].to_list()
    assert found.records["start"].tolist() == wanted["start"].to_list()
    assert (found.track // LANE_COUNT).tolist() == wanted["row"].to_list()
    for name in ("duration", "kind", "lane", "sublane"):
        assert found.records[name].tolist() == wanted[name].to_list()


def test_on_every_level_all_spans_and_all_their_time_are_there(levels, spans):
    whole = Part(0, levels.shape.end + 1, np.arange(5))
    by_kind = dict(spans.group_by("kind").agg(pl.sum("duration")).iter_rows())
    assert len(levels.exponents) >= 3
    for exponent in levels.exponents:
        blocks = levels.blocks_in(whole, exponent)
        assert blocks.span_count.sum() == spans.height
        assert blocks.start.min() == 0
        assert blocks.end.max() == levels.shape.end
        # A file has busy in 255ths and one kind per block, so that only the sum over all kinds is close.
        assert abs(blocks.kind_busy.sum() - sum(by_kind.values())) < sum(by_kind.values()) * 0.02


def test_what_is_seen_of_a_level_differs_from_the_spans_by_less_than_a_bin(levels, spans):
    """Where a level shows nothing there is no span; where it shows a block, a span is less than a bin away."""
    for exponent in levels.exponents:
        width = 1 << exponent
        blocks = levels.blocks_in(Part(0, levels.shape.end + 1, np.arange(5)), exponent)
        for (row, lane), own in spans.group_by("row", "lane"):
            mine = blocks.track == row * LANE_COUNT + lane
            first = np.searchsorted(blocks.start[mine], own["start"].to_numpy(), side="right") - 1
            assert (first >= 0).all()
            assert (blocks.end[mine][first] >= (own["start"] + own["duration"]).to_numpy()).all()
            for start, end, count in zip(*(c[mine] for c in blocks[1:4]), strict=True):
                assert count == 1 or end - start < 2 * width


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 4000), st.integers(0, 300), st.sampled_from(KINDS)),
        min_size=1,
    ),
    st.integers(0, 4000),
    st.integers(1, 500),
)
@settings(max_examples=25, deadline=None)
def test_whatever_overlaps_and_wherever_a_part_begins_nothing_is_left_out(
    tmp_path_factory, rows, start, length
):
    timeline = drawn(rows)
    levels = run_of(timeline, tmp_path_factory.mktemp("drawn") / "run").levels
    ranks = sorted(timeline.spans["rank"].unique())
    spans = viewer_spans(timeline.spans, ranks)
    spans = spans.with_columns(pl.col("start") - spans["start"].min()).with_row_index("id")
    part = Part(start, start + length, np.arange(len(ranks)))
    wanted = overlapping(spans, start, start + length, range(len(ranks)))
    assert levels.spans_in(part).place.tolist() == wanted["id"].to_list()
    for exponent in levels.exponents:
        blocks = levels.blocks_in(part, exponent)
        for row, begin, duration in wanted.select("row", "start", "duration").iter_rows():
            covers = (blocks.start <= begin) & (blocks.end >= begin + duration)
            assert (covers & (blocks.track // LANE_COUNT == row)).any()


def test_tiles_of_a_level_that_lie_side_by_side_are_the_blocks_of_both(levels):
    for exponent in levels.exponents:
        width = (1 << exponent) * 64
        rows = np.arange(5)
        parts = [Part(begin, begin + width, rows) for begin in range(0, levels.shape.end + 1, width)]
        pieces = [levels.blocks_in(part, exponent) for part in parts]
        starts = {
            (track, start, end, count)
            for blocks in pieces
            for track, start, end, count in zip(*(column.tolist() for column in blocks[:4]), strict=True)
        }
        whole = levels.blocks_in(Part(0, levels.shape.end + 1, rows), exponent)
        assert starts == set(zip(*(column.tolist() for column in whole[:4]), strict=True))


def test_more_than_an_answer_may_hold_is_not_read(levels, monkeypatch):
    monkeypatch.setattr(levels_module, "MOST_RECORDS", 100)
    with pytest.raises(TooManyError):
        levels.spans_in(Part(0, levels.shape.end + 1, np.arange(5)))


def test_a_run_without_spans_has_levels_with_nothing_in_them(tmp_path):
    levels = run_of(empty_timeline(), tmp_path / "run").levels
    part = Part(0, 10, np.zeros(0, np.int64))
    assert len(levels.spans_in(part).place) == 0
    assert all(len(levels.blocks_in(part, exponent)) == 0 for exponent in levels.exponents)


@pytest.mark.parametrize("name", ["spans", "spans.index", "shape.json", "level"])
def test_levels_that_are_not_whole_are_not_opened(tmp_path, name):
    run_of(TIMELINE, tmp_path / "run")
    path = next((tmp_path / "run").glob(f"{name}*")) if name == "level" else tmp_path / "run" / name
    size = path.stat().st_size
    os.truncate(path, size - 10)
    with pytest.raises((OSError, ValueError)):
        open_levels(tmp_path / "run")
    path.unlink()
    with pytest.raises(OSError):  # noqa: PT011 - the subclass depends on the system
        open_levels(tmp_path / "run")


def test_files_of_an_open_run_can_go_while_it_is_read(tmp_path):
    levels = run_of(TIMELINE, tmp_path / "run").levels
    for path in (tmp_path / "run").iterdir():
        path.unlink()
    assert len(levels.spans_in(Part(0, levels.shape.end + 1, np.arange(5))).place) == TIMELINE.spans.height
