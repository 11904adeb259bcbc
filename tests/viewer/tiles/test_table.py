"""The way of a large table, a part at a time, against the way of the same spans as a timeline."""

import numpy as np
import polars as pl
import pytest

from column_blobs import read_blob
from running_server import run_of
from stagescope.viewer.tiles import sources, table
from stagescope.viewer.tiles.levels import Part
from stagescope.viewer.tiles.run import open_run
from stagescope.viewer.tiles.table import find_large, save_table
from stagescope.viewer.tiles.tiles import tile_blob
from stagescope.vocabulary.errors import TableError
from synthetic import Shape, pipeline_timeline

TIMELINE = pipeline_timeline(Shape(ranks=5, microbatches=6, steps=4))


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch):
    monkeypatch.setattr(table, "LARGE", 100)
    monkeypatch.setattr(table, "SPANS_AT_ONCE", 90)


def written(spans, tmp_path):
    path = tmp_path / "run.parquet"
    spans.write_parquet(path, row_group_size=50)
    return path


def opened(spans, tmp_path, **options):
    folder = tmp_path / "large"
    folder.mkdir()
    save_table(find_large(written(spans, tmp_path)), folder, **options)
    return open_run(folder)


def test_a_table_that_is_read_a_part_at_a_time_has_the_levels_of_the_whole(tmp_path):
    large, whole = opened(TIMELINE.spans, tmp_path), run_of(TIMELINE, tmp_path / "whole")
    every = Part(0, whole.levels.shape.end + 1, np.arange(5))
    assert read_blob(tile_blob(large.levels, 0, every)) == read_blob(tile_blob(whole.levels, 0, every))
    for level in range(1, 1 + len(set(large.levels.exponents) & set(whole.levels.exponents))):
        exponent = large.levels.exponents[level - 1]
        mine, theirs = (run.levels.blocks_in(every, exponent) for run in (large, whole))
        assert mine.span_count.tolist() == theirs.span_count.tolist()
        assert mine.start.tolist() == theirs.start.tolist()


def test_meta_equals_that_of_a_timeline_except_for_the_analysis(tmp_path):
    large, whole = opened(TIMELINE.spans, tmp_path), run_of(TIMELINE, tmp_path / "whole")
    for key in ("base_ns", "end", "span_count", "kinds", "time_unit", "tile_bins"):
        assert large.meta[key] == whole.meta[key], key
    assert large.meta["ranks"]["rank"] == whole.meta["ranks"]["rank"]
    assert large.meta["ranks"]["stages"] == whole.meta["ranks"]["stages"]
    times = [[(one["step"], one["start"], one["end"]) for one in run.meta["steps"]] for run in (large, whole)]
    assert times[0] == times[1]
    assert large.meta["sections"] == []
    assert [(one["severity"], one["code"]) for one in large.meta["diagnostics"]] == [
        ("warning", "viewer.analysis_omitted")
    ]


def test_progress_is_reported_up_to_the_last_span(tmp_path):
    reported = []
    opened(TIMELINE.spans, tmp_path, on_done=lambda done, every: reported.append((done, every)))
    count = TIMELINE.spans.height
    assert reported[-1] == (count, count)
    assert [done for done, _ in reported] == sorted(done for done, _ in reported)
    assert len(reported) > 2


def test_names_of_all_parts_are_known(tmp_path):
    count = TIMELINE.spans.height
    names = [f"action {number % 7}" if number % 3 else None for number in range(count)]
    named = TIMELINE.spans.with_columns(name=pl.Series(names))
    large = opened(named, tmp_path)
    columns, _ = read_blob(tile_blob(large.levels, 0, Part(0, large.levels.shape.end + 1, np.arange(5))))
    assert sorted(filter(None, columns["name"])) == sorted(filter(None, names))


FIRST = pl.int_range(pl.len()) == 0
LAST = pl.int_range(pl.len()) == pl.len() - 1


@pytest.mark.parametrize(
    "mend",
    [
        lambda spans: spans.head(99),
        lambda spans: spans.drop("stage"),
        lambda spans: spans.reverse(),
        lambda spans: spans.with_columns(rank=pl.when(LAST).then(0).otherwise("rank").cast(pl.Int32)),
        lambda spans: spans.with_columns(
            end_ns=pl.when(LAST).then(pl.col("start_ns") - 1).otherwise("end_ns")
        ),
        lambda spans: spans.with_columns(step=pl.when(FIRST).then(None).otherwise("step")),
        lambda spans: spans.with_columns(lane=pl.when(LAST).then(None).otherwise("lane")),
        lambda spans: pl.concat([spans[91:], spans[:91]]),
    ],
    ids=[
        "small",
        "no stages",
        "backwards",
        "rank comes again",
        "ends before its start",
        "a action without step",
        "null",
        "cut and swapped",
    ],
)
def test_incomplete_or_unsorted_tables_are_read_as_a_timeline(tmp_path, mend):
    assert find_large(written(TIMELINE.spans, tmp_path)) is not None
    assert find_large(written(mend(TIMELINE.spans), tmp_path)) is None


def test_what_is_no_table_goes_the_way_of_a_timeline(tmp_path):
    path = tmp_path / "run.parquet"
    path.write_bytes(b"PAR1 and nothing that follows from it PAR1")
    assert find_large(path) is None


def test_a_value_that_fits_no_column_is_an_error(tmp_path):
    wrong = TIMELINE.spans.with_columns(kind=pl.lit("nonsense"))
    with pytest.raises(TableError, match="nonsense"):
        opened(wrong, tmp_path)


def test_a_rank_that_is_longer_than_a_part_is_not_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "SPANS_AT_ONCE", 7)
    large, whole = opened(TIMELINE.spans, tmp_path), run_of(TIMELINE, tmp_path / "whole")
    every = Part(0, whole.levels.shape.end + 1, np.arange(5))
    assert large.levels.spans_in(every).place.tolist() == whole.levels.spans_in(every).place.tolist()
    assert (
        large.levels.spans_in(every).records["start"].tolist()
        == whole.levels.spans_in(every).records["start"].tolist()
    )


def test_a_timeline_is_cut_between_rows(tmp_path, monkeypatch):
    whole = run_of(TIMELINE, tmp_path / "whole")
    monkeypatch.setattr(sources, "SPANS_AT_ONCE", 100)
    cut = run_of(TIMELINE, tmp_path / "cut")
    for path in (tmp_path / "whole").iterdir():
        if path.name != "meta.json":
            assert (tmp_path / "cut" / path.name).read_bytes() == path.read_bytes(), path.name
    assert cut.meta["levels"] == whole.meta["levels"]
