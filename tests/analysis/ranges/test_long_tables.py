"""Tables that are in parts, one for each range of steps."""

from functools import partial

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from stagescope.analysis.ranges import long_tables
from stagescope.analysis.ranges.long_tables import LongTable


def part(steps, pipelines=(0, 4, 8)):
    rows = [(pipeline, step, 10 * step + pipeline) for pipeline in pipelines for step in steps]
    return pl.DataFrame(rows, schema={"pipeline": pl.Int32, "step": pl.Int32, "ns": pl.Int64}, orient="row")


def table(order, *parts):
    return LongTable([partial(pl.DataFrame.lazy, rows.sort(order)) for rows in parts], order)


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(long_tables, "ROWS_AT_ONCE", 6)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("order", [("pipeline", "step"), ("step", "pipeline")], ids=["pipeline", "step"])
def test_pieces_one_after_the_other_are_all_rows_sorted(order):
    parts = [part([0, 1]), part([2, 3], pipelines=[0, 8]), part([4])]
    long = table(order, *parts)
    assert_frame_equal(long.rows(), pl.concat(parts).sort(order))
    pieces = list(long.pieces())
    assert len(pieces) == 3
    assert_frame_equal(pl.concat(pieces), long.rows())


@pytest.mark.usefixtures("small_pieces")
def test_a_pipeline_with_many_rows_is_divided_by_ranges():
    parts = [part(range(first, first + 4), pipelines=[0, 4]) for first in (0, 4, 8)]
    long = table(("pipeline", "step"), *parts)
    pieces = list(long.pieces())
    assert [rows.height for rows in pieces] == [4] * 6
    assert_frame_equal(pl.concat(pieces), long.rows())


def test_parts_are_the_rows_of_each_range():
    parts = [part([0, 1]), part([]), part([4])]
    changed = table(("pipeline", "step"), *parts).changed(lambda rows: rows.filter(pl.col("pipeline") == 4))
    assert [rows["step"].to_list() for rows in changed.parts()] == [[0, 1], [], [4]]


def test_alike_rows_stay_in_order():
    twice = pl.concat([part([0, 1]), part([0, 1]).with_columns(pl.col("ns") + 1)]).sort(
        "pipeline", "step", "ns"
    )
    long = table(("pipeline", "step"), twice, part([2]))
    assert long.rows().filter(pl.col("pipeline") == 4)["ns"].to_list() == [4, 5, 14, 15, 24]


@pytest.mark.usefixtures("small_pieces")
def test_changes_are_made_to_all_rows_one_after_the_other():
    long = table(("pipeline", "step"), part([0, 1]), part([2, 3]))
    changed = long.changed(lambda rows: rows.with_columns(pl.col("ns") * 2)).changed(
        lambda rows: rows.filter(pl.col("ns") > 20)
    )
    expected = long.rows().with_columns(pl.col("ns") * 2).filter(pl.col("ns") > 20)
    assert_frame_equal(changed.rows(), expected)
    assert_frame_equal(pl.concat(changed.pieces()), expected)


def test_a_table_without_rows_has_one_empty_piece():
    (piece,) = table(("pipeline", "step"), part([]), part([])).pieces()
    assert_frame_equal(piece, part([]))
