import itertools

import numpy as np
import polars as pl
import pytest

from column_blobs import read_blob
from drawing import timeline_from_text
from running_server import run_of
from stagescope.model import empty_timeline
from stagescope.viewer.tiles import tiles
from stagescope.viewer.tiles.levels import Part, TooManyError
from stagescope.viewer.tiles.tiles import TILE_BINS, tile_blob, tiling
from synthetic import Shape, pipeline_timeline

TIMELINE = pipeline_timeline(Shape(ranks=3, microbatches=8, steps=8))


@pytest.fixture(scope="module")
def levels(tmp_path_factory):
    return run_of(TIMELINE, tmp_path_factory.mktemp("tiles") / "run").levels


def tile(levels, level, start, end, rows):
    return read_blob(tile_blob(levels, level, Part(start, end, np.array(rows))))


def test_every_level_is_twice_as_coarse_as_the_one_before(levels):
    found = tiling(levels)
    widths = [level["bin_ns"] for level in found.levels]
    assert all(coarse == 2 * fine for fine, coarse in itertools.pairwise(widths))
    assert len(widths) == len(levels.exponents) + 1
    assert found.tile_bins == TILE_BINS


def test_tile_of_contiguous_spans_stores_the_first_id(levels):
    columns, facts = tile(levels, 0, 0, levels.shape.end + 1, [1])
    first = int(levels.spans.index.first[3])
    assert facts == {"origin": min(columns["start"]), "first": first}
    assert "id" not in columns


def test_a_tile_of_spans_that_lie_apart_has_the_id_of_each(levels):
    columns, facts = tile(levels, 0, 0, 3_000_000, [0, 2])
    assert "first" not in facts
    found = levels.spans_in(Part(0, 3_000_000, np.array([0, 2])))
    assert columns["id"] == found.place.tolist()


def test_facts_are_in_the_rows_of_their_spans(levels):
    whole, _ = tile(levels, 0, 0, levels.shape.end + 1, [0, 1, 2])
    columns, _ = tile(levels, 0, 20_000_000, 40_000_000, [0, 2])
    assert any(value is not None for value in columns["peer"])
    for name in ("peer", "wait", "wait_duration", "start", "kind"):
        assert columns[name] == [whole[name][number] for number in columns["id"]]
    assert "name" not in columns  # null for all of them


def test_tile_of_blocks_counts_the_spans_of_each(levels):
    level = len(levels.exponents)
    columns, _ = tile(levels, level, 0, levels.shape.end + 1, [0, 1, 2])
    assert sum(columns["count"]) == TIMELINE.spans.height
    assert set(columns) == {"row", "kind", "lane", "start", "duration", "count", "busy"}
    assert all(0 <= value <= 255 for value in columns["busy"])


def test_blocks_and_spans_count_from_the_begin_of_the_run(levels):
    for level in range(len(levels.exponents) + 1):
        columns, _ = tile(levels, level, 0, levels.shape.end + 1, [0, 1, 2])
        assert min(columns["start"]) == 0


def test_an_empty_tile_is_a_table_without_rows(tmp_path):
    levels = run_of(timeline_from_text("F0 B0"), tmp_path / "run").levels
    for level in range(len(levels.exponents) + 1):
        assert tile(levels, level, 10_000_000, 20_000_000, [0])[0]["start"] == []
    nothing = run_of(empty_timeline(), tmp_path / "nothing").levels
    assert read_blob(tile_blob(nothing, 0, Part(0, 5, np.zeros(0, np.int64))))[0]["start"] == []


def test_more_than_a_tile_may_hold_is_refused(levels, monkeypatch):
    monkeypatch.setattr(tiles, "MOST_IN_TILE", 10)
    for level in (0, 1):
        with pytest.raises(TooManyError):
            tile(levels, level, 0, levels.shape.end + 1, [0, 1, 2])


def test_names_are_texts(tmp_path):
    timeline = timeline_from_text("F0 B0\nF0 B0")
    named = timeline.with_spans(timeline.spans.with_columns(name=pl.Series(["a", None, "b", "a"])))
    levels = run_of(named, tmp_path / "run").levels
    assert tile(levels, 0, 0, 5000, [0, 1])[0]["name"] == ["a", None, "b", "a"]
