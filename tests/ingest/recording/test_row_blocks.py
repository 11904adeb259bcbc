"""Rows that wait in files come back in the order of their keys, and by ranges of these."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from stagescope.ingest.recording import row_blocks
from stagescope.ingest.recording.row_blocks import FOREVER, RowWriter, and_whether_last


@pytest.fixture
def rows():
    """Return rows that are almost in the order of their keys, of which some are equal, and one far from its place."""
    random = np.random.default_rng(0)
    keys = np.arange(400) // 3 + random.integers(-5, 5, 400)
    keys[390] = -1_000
    return pl.DataFrame({"key": keys, "number": np.arange(400)})


def written(rows, place):
    writer = RowWriter(place, "key")
    for block in rows.iter_slices(70):
        writer.add(block)
    return writer.written()


def test_rows_come_back_in_order_in_blocks_of_whole_keys(rows, monkeypatch, tmp_path):
    monkeypatch.setattr(row_blocks, "ROWS_OF_BLOCK", 50)
    blocks = list(written(rows, tmp_path / "rows").in_order())
    assert pl.concat(blocks).equals(rows.sort("key", maintain_order=True))
    assert len(blocks) > 5
    assert max(block.height for block in blocks) < 100
    assert pl.concat(block.select("key").unique() for block in blocks)["key"].is_unique().all()


def test_a_range_has_its_rows_alone(rows, tmp_path):
    found = written(rows, tmp_path / "rows")
    assert found.within(20, 40).equals(
        rows.filter(pl.col("key").is_between(20, 39)).sort("key", maintain_order=True)
    )
    assert found.within(10_000, FOREVER).equals(rows.clear())


def test_no_rows_are_one_block_without_rows(rows, tmp_path):
    writer = RowWriter(tmp_path / "none", "key")
    writer.add(rows.clear())
    writer.add(rows.clear())
    assert [block.equals(rows.clear()) for block in writer.written().in_order()] == [True]
    assert [block.equals(rows.clear()) for block in writer.written().blocks(["key", "number"])] == [True]


@pytest.mark.parametrize("rows_of_block", [70, 1_000])
def test_rows_in_order_leave_no_files(rows_of_block, rows, tmp_path):
    writer = RowWriter(tmp_path / "rows", "key")
    for block in rows.iter_slices(rows_of_block):
        writer.add(block)
    assert pl.concat(writer.in_order()).equals(rows.sort("key", maintain_order=True))
    assert list(tmp_path.iterdir()) == []


def test_the_last_block_is_known(rows):
    assert [is_last for _, is_last in and_whether_last(rows.iter_slices(150))] == [False, False, True]
